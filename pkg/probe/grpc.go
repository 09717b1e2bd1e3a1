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
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nodectl/nodectl/pkg/pod"
)

// grpcCheck asks the health service behind the probe's port, in plain text, how
// the probe's service is: SERVING is success, anything else and every trouble on
// the way is failure (C-1.29.15).
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
		return &pod.ProbeFailure{Message: because(op, within(timeout))}
	case err != nil:
		return &pod.ProbeFailure{Message: grpcTrouble(status.Code(err), timeout)}
	case answer.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING:
		return &pod.ProbeFailure{Message: "service is " + answer.GetStatus().String()}
	}
	return nil
}

// grpcTrouble words a health check without an answer. What the server says
// beside the code stays out of the text.
func grpcTrouble(code codes.Code, timeout time.Duration) string {
	switch code {
	case codes.DeadlineExceeded:
		return "no answer " + within(timeout)
	case codes.Unimplemented:
		return "the server does not speak grpc.health.v1.Health"
	case codes.NotFound:
		return "the server does not know the service"
	case codes.Unavailable:
		return "the server closed the connection or does not speak gRPC"
	}
	return "the health check failed with code " + code.String()
}
