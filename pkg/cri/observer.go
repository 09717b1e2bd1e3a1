package cri

import (
	"context"
	"path"
	"time"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Call is one finished call to the runtime, without its request and response.
type Call struct {
	Method string // as CRI names it: "ListContainers"
	// Handler is the runtime handler of a RunPodSandbox; "" is the runtime's default.
	Handler string
	// UserNamespace is set for a RunPodSandbox with a user namespace of its own.
	UserNamespace bool
	Took          time.Duration
	Err           error // nil on success; ErrNotFound is an error too
}

// observed calls tell after every unary call. Streams are not reported.
func observed(tell func(Call)) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, q, a any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		began := time.Now()
		err := invoke(ctx, method, q, a, conn, opts...)
		c := Call{Method: path.Base(method), Took: time.Since(began), Err: err}
		if run, ok := q.(*runtimeapi.RunPodSandboxRequest); ok {
			users := run.GetConfig().GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions()
			c.Handler, c.UserNamespace = run.GetRuntimeHandler(), users != nil && users.GetMode() == runtimeapi.NamespaceMode_POD
		}
		tell(c)
		return err
	}
}
