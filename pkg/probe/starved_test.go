package probe_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nodectl/nodectl/pkg/pod"
)

// TestF10_WithoutADescriptorNoContainerIsToBlame: if the agent cannot open a connection,
// that is not an answer of the container.
//
// Shows: F10
func TestF10_WithoutADescriptorNoContainerIsToBlame(t *testing.T) { // not parallel: the limit is the process's
	web := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer web.Close()
	host, port, err := net.SplitHostPort(web.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	addr := serveGRPC(t, func(s *grpc.Server) { grpc_health_v1.RegisterHealthServer(s, health.NewServer()) })
	all := map[string]pod.ProbeRequest{
		"http": get(t, web.Listener.Addr().String(), "/"),
		"grpc": check(t, addr, nil),
		"tcp":  {PodIP: host, Probe: &v1.Probe{TimeoutSeconds: 30, ProbeHandler: v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{Port: intstr.Parse(port)}}}},
	}
	for kind, r := range all {
		if err := ask(t, r); err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
	}
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	limit := func(l unix.Rlimit) {
		t.Helper()
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
			t.Fatal(err)
		}
	}
	limit(unix.Rlimit{Cur: 3, Max: was.Max})
	said := make(map[string]error)
	for kind, r := range all {
		said[kind] = ask(t, r)
	}
	limit(was)
	for kind, err := range said {
		if got, want := trouble(t, err), "no file descriptor is left for a connection"; got != want {
			t.Errorf("%s: got %q, want %q", kind, got, want)
		}
		if err := ask(t, all[kind]); err != nil {
			t.Errorf("%s, with room again: %v", kind, err)
		}
	}
}
