package probe_test

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// serveGRPC serves the services of register on a port of its own.
func serveGRPC(t *testing.T, register func(*grpc.Server)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	register(s)
	done := make(chan struct{})
	go func() { defer close(done); s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-done })
	return l.Addr().String()
}

// check returns a request for the health of service at addr; nil leaves the service out.
func check(t *testing.T, addr string, service *string) pod.ProbeRequest {
	t.Helper()
	r := get(t, addr, "")
	port := r.Probe.HTTPGet.Port.IntVal
	r.Probe.ProbeHandler = v1.ProbeHandler{GRPC: &v1.GRPCAction{Port: port, Service: service}}
	return r
}

// Shows: C-1.29.15
func TestC_1_29_15_GRPCNeedsServing(t *testing.T) {
	t.Parallel()
	h := health.NewServer()
	h.SetServingStatus("ill", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	h.SetServingStatus("odd", grpc_health_v1.HealthCheckResponse_UNKNOWN)
	h.SetServingStatus("well", grpc_health_v1.HealthCheckResponse_SERVING)
	addr := serveGRPC(t, func(s *grpc.Server) { grpc_health_v1.RegisterHealthServer(s, h) })
	bare := serveGRPC(t, func(*grpc.Server) {})
	empty, well, ill, odd, strange := "", "well", "ill", "odd", "strange"
	for _, service := range []*string{nil, &empty, &well} {
		if err := ask(t, check(t, addr, service)); err != nil {
			t.Errorf("service %v: %v, want success", service, err)
		}
	}
	for _, tt := range []struct {
		addr    string
		service *string
		want    string
	}{
		{addr, &ill, `service unhealthy (responded with "NOT_SERVING")`},
		{addr, &odd, `service unhealthy (responded with "UNKNOWN")`},
		{addr, &strange, "error: health rpc probe failed: rpc error: code = NotFound desc = unknown service"},
		{bare, nil, "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): unknown service grpc.health.v1.Health"},
	} {
		if got := failure(t, ask(t, check(t, tt.addr, tt.service))); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
	h.SetServingStatus("", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	if got := failure(t, ask(t, check(t, addr, nil))); got != `service unhealthy (responded with "NOT_SERVING")` {
		t.Errorf("the server as a whole: got %q", got)
	}
}

// checks answers health checks by calling f.
type checks struct {
	grpc_health_v1.UnimplementedHealthServer
	f func(context.Context) (*grpc_health_v1.HealthCheckResponse, error)
}

func (c checks) Check(ctx context.Context, _ *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	return c.f(ctx)
}

// Shows: C-1.29.15
func TestC_1_29_15_GRPCRequest(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "http://127.0.0.1:1")
	t.Setenv("NO_PROXY", "")
	var agent []string
	addr := serveGRPC(t, func(s *grpc.Server) {
		grpc_health_v1.RegisterHealthServer(s, checks{f: func(ctx context.Context) (*grpc_health_v1.HealthCheckResponse, error) {
			md, _ := metadata.FromIncomingContext(ctx)
			agent = md.Get("user-agent")
			return &grpc_health_v1.HealthCheckResponse{Status: grpc_health_v1.HealthCheckResponse_SERVING}, nil
		}})
	})
	r := check(t, addr, nil)
	r.PodIP = "" // the host network
	if err := ask(t, r); err != nil {
		t.Fatal(err)
	}
	if len(agent) != 1 || !strings.HasPrefix(agent[0], "kube-probe/1.2") {
		t.Errorf("user agent %q, want kube-probe/1.2", agent)
	}
}

// Shows: C-1.29.15
func TestC_1_29_15_GRPCTransportErrorsAreFailures(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if got := failure(t, ask(t, check(t, l.Addr().String(), nil))); !strings.HasPrefix(got, `error: failed to connect service at "`+l.Addr().String()+`": dial tcp `) || !strings.HasSuffix(got, "connection refused") {
		t.Errorf("refused: got %q", got)
	}
	if got := failure(t, ask(t, check(t, raw(t, "HTTP/1.1 400 secret\r\n\r\n"), nil))); strings.Contains(got, "secret") {
		t.Errorf("not gRPC: got %q", got)
	}
	addr := serveGRPC(t, func(s *grpc.Server) {
		grpc_health_v1.RegisterHealthServer(s, checks{f: func(context.Context) (*grpc_health_v1.HealthCheckResponse, error) {
			return nil, status.Error(codes.Internal, "a\x1b word")
		}})
	})
	if got, want := failure(t, ask(t, check(t, addr, nil))), "error: health rpc probe failed: rpc error: code = Internal desc = a\uFFFD word"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A server that accepts the connection, or the request, and does not answer, fails the
// probe at the timeout.
//
// Shows: F80
func TestF80_GRPCTimeoutIsAHardWall(t *testing.T) {
	t.Parallel()
	mute := silent(t)
	var asked atomic.Int32
	stuck := serveGRPC(t, func(s *grpc.Server) {
		grpc_health_v1.RegisterHealthServer(s, checks{f: func(ctx context.Context) (*grpc_health_v1.HealthCheckResponse, error) {
			asked.Add(1)
			<-ctx.Done()
			return nil, ctx.Err()
		}})
	})
	for name, addr := range map[string]string{"Connection": mute, "Request": stuck} {
		r := check(t, addr, nil)
		want := "timeout: health rpc did not complete within 1s"
		if name == "Connection" {
			want = "timeout: failed to connect service \"" + addr + "\" within 1s: context deadline exceeded"
		}
		r.Probe.TimeoutSeconds = 1
		begin := time.Now()
		if got := failure(t, ask(t, r)); got != want {
			t.Errorf("%s: got %q", name, got)
		}
		if took := time.Since(begin); took < time.Second {
			t.Errorf("%s took %s, want at least 1s", name, took)
		}
	}
	if n := asked.Load(); n > 1 { // 0 on a machine that was busy for so long
		t.Errorf("the request was made %d times", n)
	}
}
