package bundle

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// served listens on a socket and answers CRI's Version if answer is true, else only "not
// implemented".
func served(t *testing.T, answer bool) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	if answer {
		cri.RegisterRuntimeServiceServer(s, version{})
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	t.Cleanup(func() { s.Stop(); <-done })
	return socket
}

type version struct {
	cri.UnimplementedRuntimeServiceServer
}

func (version) Version(context.Context, *cri.VersionRequest) (*cri.VersionResponse, error) {
	return &cri.VersionResponse{RuntimeName: "test"}, nil
}

func TestDiscover(t *testing.T) {
	absent := place{"containerd", filepath.Join(t.TempDir(), "absent")}
	dead := place{"cri-o", filepath.Join(t.TempDir(), "dead")}
	l, err := net.Listen("unix", dead.socket)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	off, good := place{"containerd", served(t, false)}, place{"cri-dockerd", served(t, true)}

	for name, c := range map[string]struct {
		explicit string
		places   []place
		bundled  bool
		want     DiscoveredRuntime
		tried    []string
	}{
		"explicit":          {explicit: "/x.sock", want: DiscoveredRuntime{Endpoint: "unix:///x.sock", Kind: "explicit"}},
		"explicit URL":      {explicit: "unix:///x.sock", places: []place{good}, want: DiscoveredRuntime{Endpoint: "unix:///x.sock", Kind: "explicit"}},
		"one that answers":  {places: []place{absent, dead, off, good}, bundled: true, want: DiscoveredRuntime{Endpoint: "unix://" + good.socket, Kind: "cri-dockerd"}, tried: []string{"does not exist", "no process answers", "CRI plugin is disabled"}},
		"the bundled one":   {places: []place{absent, off}, bundled: true, want: DiscoveredRuntime{Kind: "bundled"}, tried: []string{"does not exist", "plugin is disabled"}},
		"none, and carried": {places: []place{absent, dead}, tried: []string{"does not exist", "no process answers", "contains no container runtime"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := discover(t.Context(), c.explicit, c.places, c.bundled)
			var none *NoRuntimeError
			if c.want.Kind == "" {
				if !errors.As(err, &none) || len(none.Tried) != len(c.tried) || strings.Contains(err.Error(), "\n") {
					t.Errorf("error %v", err)
				}
			} else if err != nil {
				t.Error(err)
			}
			if got.Endpoint != c.want.Endpoint || got.Kind != c.want.Kind || len(got.Tried) != len(c.tried) {
				t.Fatalf("found %+v, want %+v with %d tried", got, c.want, len(c.tried))
			}
			for i := range c.tried {
				if !strings.Contains(got.Tried[i], c.tried[i]) {
					t.Errorf("tried %q, want %q", got.Tried[i], c.tried[i])
				}
			}
		})
	}
}
