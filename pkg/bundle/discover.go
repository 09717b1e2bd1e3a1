package bundle

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// DiscoveredRuntime is the result of Discover.
type DiscoveredRuntime struct {
	// Endpoint is the runtime's CRI endpoint; empty if the bundled runtime has to be
	// started.
	Endpoint string
	// Kind is the kind of runtime: "explicit", "containerd", "cri-o", "cri-dockerd" or
	// "bundled".
	Kind string
	// Tried has one line for each place without a runtime that answers.
	Tried []string
}

// NoRuntimeError says that no runtime answers on this machine, and that the binary contains
// none.
type NoRuntimeError struct{ Tried []string }

func (e *NoRuntimeError) Error() string {
	return "no container runtime found: " + strings.Join(e.Tried, "; ")
}

// Discover finds the runtime to use. An explicit endpoint is used as it is, whether or not
// it answers yet. Otherwise it is the first known socket on which CRI answers, else the
// bundled runtime if the binary contains one, else a *NoRuntimeError.
func Discover(ctx context.Context, explicit string) (DiscoveredRuntime, error) {
	return discover(ctx, explicit, []place{
		{"containerd", "/run/containerd/containerd.sock"},
		{"cri-o", "/run/crio/crio.sock"},
		{"cri-dockerd", "/run/cri-dockerd.sock"},
	}, carried != "")
}

// A place is a socket on which a runtime may listen.
type place struct{ kind, socket string }

func discover(ctx context.Context, explicit string, places []place, bundled bool) (DiscoveredRuntime, error) {
	if explicit != "" {
		return DiscoveredRuntime{Endpoint: "unix://" + socketPath(explicit), Kind: "explicit"}, nil
	}
	var f DiscoveredRuntime
	for _, p := range places {
		err := answers(ctx, p.socket)
		if err == nil {
			f.Endpoint, f.Kind = "unix://"+p.socket, p.kind
			return f, nil
		}
		f.Tried = append(f.Tried, fmt.Sprintf("%s: %v", p.socket, err))
		if ctx.Err() != nil {
			return f, context.Cause(ctx)
		}
	}
	if bundled {
		f.Kind = "bundled"
		return f, nil
	}
	f.Tried = append(f.Tried, "bundled runtime: "+ErrSlim.Error())
	return f, &NoRuntimeError{Tried: f.Tried}
}

// answers returns nil if CRI answers on the socket, else a short reason.
func answers(ctx context.Context, socket string) error {
	if _, err := os.Stat(socket); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return errors.New("does not exist")
		}
		return errors.New("not readable")
	}
	if !listens(socket) {
		return errors.New("no process answers")
	}
	c, err := dial("unix://" + socket)
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	switch _, err := c.version(ctx); status.Code(err) {
	case codes.OK:
		return nil
	case codes.Unimplemented:
		return errors.New("its CRI plugin is disabled") // as in the containerd that comes with Docker
	case codes.DeadlineExceeded:
		return errors.New("no answer within a second")
	default:
		return errors.New(status.Convert(err).Message())
	}
}
