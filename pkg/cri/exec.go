package cri

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// execSlack is how much longer than the command the call may take: the time to start and
// reap it does not count as the command's.
const execSlack = 10 * time.Second

// execAnswer is the largest answer to ExecSync that is read, as in the kubelet: a container
// decides how much its probes print. gRPC refuses a larger one unread.
const execAnswer = 16 << 20

// ExecSync runs cmd in the container and returns its exit code and output,
// stdout before stderr. A command that does not end within timeout is
// ErrExecTimeout; every other error is the runtime's. The end of ctx ends the
// wait, a moment later: containerd never ends a command whose call is broken off
// while it starts (F81). timeout counts in whole seconds, rounded up, and is at
// least one.
func (r *Runtime) ExecSync(ctx context.Context, containerID string, cmd []string, timeout time.Duration) (int32, []byte, error) {
	seconds := max(int64((timeout+time.Second-1)/time.Second), 1)
	limit := time.Duration(seconds)*time.Second + execSlack
	exec := func(ctx context.Context, q *runtimeapi.ExecSyncRequest, opts ...grpc.CallOption) (*runtimeapi.ExecSyncResponse, error) {
		return r.rt.ExecSync(ctx, q, append(opts, grpc.MaxCallRecvMsgSize(execAnswer))...)
	}
	a, err := act(ctx, r, "ExecSync", limit, exec,
		&runtimeapi.ExecSyncRequest{ContainerId: containerID, Cmd: cmd, Timeout: seconds})
	var call *CallError
	if errors.As(err, &call) && call.kind == ErrTimeout && !call.ours {
		return 0, nil, fmt.Errorf("%w after %ds", ErrExecTimeout, seconds)
	}
	if call != nil && call.code == codes.ResourceExhausted {
		return 0, nil, fmt.Errorf("the command printed more than %d MiB: %w", execAnswer>>20, err)
	}
	if err != nil {
		return 0, nil, err
	}
	return a.GetExitCode(), append(a.GetStdout(), a.GetStderr()...), nil
}
