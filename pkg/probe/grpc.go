package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nodectl/nodectl/pkg/pod"
)

// grpcCheck asks the gRPC health service at the probe's port for the status of the probe's service,
// without TLS (C-1.29.15). SERVING is success; any other status, and an error, is failure.
func (p *Prober) grpcCheck(ctx context.Context, r pod.ProbeRequest, timeout time.Duration) error {
	addr, err := address(r.Container, r.PodIP, "", intstr.FromInt32(r.Probe.GRPC.Port))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var refused atomic.Pointer[net.OpError]
	conn, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUserAgent(p.userAgent("probe")),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
		grpc.WithMaxHeaderListSize(maxHeader),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
			if op, ok := errors.AsType[*net.OpError](err); ok {
				refused.Store(op)
			}
			return c, err
		}))
	if err != nil {
		return fmt.Errorf("prepare the health check: %w", err)
	}
	defer conn.Close()
	var service string
	if r.Probe.GRPC.Service != nil {
		service = *r.Probe.GRPC.Service
	}
	answer, err := grpc_health_v1.NewHealthClient(conn).Check(ctx,
		&grpc_health_v1.HealthCheckRequest{Service: service})
	switch op := refused.Load(); {
	case err != nil && op != nil && starved(op):
		return errStarved
	case err != nil && ctx.Err() == nil && op != nil:
		return &pod.ProbeFailure{Message: fmt.Sprintf("error: failed to connect service at %q: %s", addr, dialFailure(op))}
	case err != nil && status.Code(err) == codes.DeadlineExceeded && conn.GetState() != connectivity.Ready:
		return &pod.ProbeFailure{Message: fmt.Sprintf("timeout: failed to connect service %q within %v: %v", addr, timeout, context.DeadlineExceeded)}
	case err != nil:
		return &pod.ProbeFailure{Message: grpcFailure(status.Convert(err), timeout)}
	case answer.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING:
		return &pod.ProbeFailure{Message: fmt.Sprintf("service unhealthy (responded with %q)", answer.GetStatus())}
	}
	return nil
}

// grpcFailure is the kubelet's message for a health check without an answer.
func grpcFailure(s *status.Status, timeout time.Duration) string {
	said := sanitized([]byte(s.Message()))
	switch s.Code() {
	case codes.Unimplemented:
		return "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): " + said
	case codes.DeadlineExceeded:
		return fmt.Sprintf("timeout: health rpc did not complete within %v", timeout)
	}
	return fmt.Sprintf("error: health rpc probe failed: rpc error: code = %s desc = %s", s.Code(), said)
}
