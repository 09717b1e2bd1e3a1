package cri

import (
	"context"
	"time"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/activity"
)

// method is one unary CRI method of a generated client.
type method[Q, A any] func(context.Context, *Q, ...grpc.CallOption) (*A, error)

// read makes a call that changes nothing: it ends with ctx or at its deadline.
func read[Q, A any](ctx context.Context, r *Runtime, name string, f method[Q, A], q *Q) (*A, error) {
	return bounded(ctx, r, name, r.cfg.Timeouts.Read, f, q)
}

// lingerLimit is how long a call that changes something may go on after its caller has left:
// the agent ends within two seconds (F4), and most calls are done by then.
const lingerLimit = 1500 * time.Millisecond

// act makes a call that changes something. The call does not end with ctx, but lingerLimit
// later, or at its own deadline.
func act[Q, A any](ctx context.Context, r *Runtime, name string, limit time.Duration, f method[Q, A], q *Q) (*A, error) {
	on, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		end := time.AfterFunc(lingerLimit, cancel)
		context.AfterFunc(on, func() { end.Stop() })
	})
	defer stop()
	return bounded(on, r, name, limit, f, q)
}

func bounded[Q, A any](ctx context.Context, r *Runtime, name string, limit time.Duration, f method[Q, A], q *Q) (*A, error) {
	if r.cfg.OnCall != nil {
		r.cfg.OnCall(name)
	}
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	defer activity.Begin(ctx, activity.Call{Kind: activity.Runtime, Name: name, Target: targetOf(q), Limit: time.Now().Add(limit)})()
	a, err := f(within, q)
	switch {
	case err == nil:
		return a, nil
	case over(ctx) != nil: // the caller left: the error comes from that
		return nil, canceled(name, over(ctx))
	case over(within) != nil:
		return nil, r.late(name, limit)
	}
	return nil, r.translate(name, err)
}

// targetOf returns the object of a request: a container, a sandbox or an image; "" for others.
func targetOf(q any) string {
	switch q := q.(type) {
	case interface{ GetContainerId() string }:
		return q.GetContainerId()
	case interface{ GetPodSandboxId() string }:
		return q.GetPodSandboxId()
	case interface{ GetImage() *runtimeapi.ImageSpec }:
		return q.GetImage().GetImage()
	}
	return ""
}

// over is ctx.Err, but also covers the moment after the deadline when ctx's own timer has
// not fired: the runtime has the same deadline and may answer first.
func over(ctx context.Context) error {
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}
