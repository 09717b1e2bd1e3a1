// Package probe runs one probe of a container: a command in it, an HTTP request, a gRPC
// health check or a TCP connection. It runs lifecycle hooks in the same ways. As pure
// functions, it also computes when a probe is due and when its results change the probe
// status.
//
// Package prober decides when probes run and how many run at once; the runtime adapter runs
// commands. In this package, the prober is the type Prober.
//
// An answer of the container is a result. A failure of the prober itself is an error.
//
// Messages are the kubelet's. Only two of them contain data from a server, since tools read it: the
// body of a redirect, and the message of a gRPC status. The data is printable and short.
package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nodectl/nodectl/pkg/pod"
)

// attempts is how often a probe is tried if the prober itself fails (C-1.29.7).
const attempts = 3

// maxAnswer limits the part of an answer that is read: a body, a command's output
// (C-1.29.13, C-1.29.14).
const maxAnswer = 10 << 10

// loopback is the address for probes of pods on the host network (C-1.29.14).
const loopback = "127.0.0.1"

// Execer runs commands in containers.
type Execer interface {
	// ExecSync runs cmd in the container and waits for its end. output is stdout and stderr
	// together. A command that exceeds timeout is killed: the error then is or wraps
	// context.DeadlineExceeded, or has the gRPC code DeadlineExceeded. Any other error says that the
	// command could not be run.
	ExecSync(ctx context.Context, containerID string, cmd []string, timeout time.Duration) (exit int32, output []byte, err error)
}

// Config is the configuration of a Prober.
type Config struct {
	// Exec runs the commands of exec probes; if it is nil, these are errors.
	Exec Execer
	// Version follows "kube-probe/" and "kube-lifecycle/" in the User-Agent header.
	Version string
}

// Prober runs probes and hooks. It has no state, and many goroutines may use it.
type Prober struct {
	exec    Execer
	version string
}

// New returns a Prober.
func New(c Config) *Prober {
	version := c.Version
	if version == "" {
		version = "unknown"
	}
	return &Prober{exec: c.Exec, version: version}
}

// userAgent is the User-Agent of a request: kube-probe/1.2, kube-lifecycle/1.2.
func (p *Prober) userAgent(purpose string) string { return "kube-" + purpose + "/" + p.version }

// Probe runs one probe and waits for its answer, up to the probe's timeout for each try. It
// returns nil or a *pod.ProbeWarning for success, and a *pod.ProbeFailure for failure. Any
// other error says nothing about the container: ctx has ended, or the prober itself has failed in
// each of three tries (C-1.29.7). Probe does not try again after a try that took the whole timeout,
// so that a runtime that hangs does not take three timeouts (F81).
func (p *Prober) Probe(ctx context.Context, r pod.ProbeRequest) error {
	begin := time.Now()
	var err error
	for range attempts {
		err = p.once(ctx, r)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("probe canceled: %w", context.Cause(ctx))
		case !IsProberError(err), time.Since(begin) >= Timeout(r.Probe):
			return err
		}
	}
	return err
}

// once makes one try.
func (p *Prober) once(ctx context.Context, r pod.ProbeRequest) error {
	timeout := Timeout(r.Probe)
	switch {
	case r.Probe == nil:
		return errors.New("no probe given")
	case r.Probe.Exec != nil:
		return p.execute(ctx, r, timeout)
	case r.Probe.HTTPGet != nil:
		return p.httpGet(ctx, r, timeout)
	case r.Probe.TCPSocket != nil:
		return tcpSocket(ctx, r, timeout)
	case r.Probe.GRPC != nil:
		return p.grpcCheck(ctx, r, timeout)
	}
	return errors.New("the probe has no exec, httpGet, tcpSocket or grpc")
}

// tcpSocket opens and closes a connection (C-1.29.15).
func tcpSocket(ctx context.Context, r pod.ProbeRequest, timeout time.Duration) error {
	addr, err := address(r.Container, r.PodIP, r.Probe.TCPSocket.Host, r.Probe.TCPSocket.Port)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	switch {
	case starved(err):
		return errStarved
	case err != nil:
		op, _ := errors.AsType[*net.OpError](err) // Dial returns no other type
		return &pod.ProbeFailure{Message: dialFailure(op)}
	}
	conn.Close()
	return nil
}

// address joins host and port. If host is "", it takes the pod's IP, else loopback. It looks a port
// name up in the container's ports.
func address(c *v1.Container, podIP, host string, port intstr.IntOrString) (string, error) {
	if host == "" {
		host = podIP
	}
	if host == "" {
		host = loopback
	}
	n, err := portNumber(c, port)
	if err != nil {
		return "", err
	}
	return net.JoinHostPort(host, strconv.Itoa(n)), nil
}

// portNumber resolves a probe's port: a number, the name of one of the container's ports,
// or a number as text.
func portNumber(c *v1.Container, port intstr.IntOrString) (int, error) {
	n := int(port.IntVal)
	if port.Type == intstr.String {
		var known bool
		if n, known = namedPort(c, port.StrVal); !known {
			var err error
			if n, err = strconv.Atoi(port.StrVal); err != nil {
				return 0, fmt.Errorf("the container has no port named %q", port.StrVal)
			}
		}
	}
	if n < 1 || n > 65535 {
		return 0, fmt.Errorf("port %d is not between 1 and 65535", n)
	}
	return n, nil
}

func namedPort(c *v1.Container, name string) (int, bool) {
	if c == nil {
		return 0, false
	}
	for _, p := range c.Ports {
		if p.Name == name {
			return int(p.ContainerPort), true
		}
	}
	return 0, false
}

// errStarved is a failure of the prober: this process or machine has no free file descriptor, which
// says nothing about the container (F10).
var errStarved = errors.New("no file descriptor is left for a connection")

func starved(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// dialFailure returns the kubelet's message for a failed connection.
func dialFailure(op *net.OpError) string {
	if op == nil {
		return ""
	}
	return strings.ToValidUTF8(op.Error(), "")
}

// maxQuoted is how many bytes of a server's data a message may quote.
const maxQuoted = 1 << 10

// sanitized returns the start of a server's data as printable text.
func sanitized(b []byte) string {
	text := strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && !unicode.IsPrint(r) {
			return utf8.RuneError
		}
		return r
	}, strings.ToValidUTF8(string(b[:min(len(b), maxQuoted)]), "\uFFFD"))
	if len(b) > maxQuoted {
		text += "..."
	}
	return text
}

// within returns a probe's timeout as text for a message.
func within(timeout time.Duration) string { return fmt.Sprintf("within %s", timeout) }

// networkReason returns why a request has no answer, if that is a timeout or an error of the network;
// "" for any other error. The text has neither the URL nor data from the server. limit is the part of
// the text that names the timeout, such as "within 1s".
func networkReason(err error, limit string) string {
	var op *net.OpError
	var timed interface{ Timeout() bool }
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timed) && timed.Timeout():
		return "no answer " + limit
	case errors.As(err, &op):
		return strings.ToValidUTF8(op.Error(), "")
	}
	return ""
}
