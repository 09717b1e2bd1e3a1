package engine

import (
	"context"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/activity"
	"github.com/nodectl/nodectl/pkg/panics"
	"github.com/nodectl/nodectl/pkg/pod"
)

// A worker that panics delays only its own pod (F8).
const (
	panicWindow = time.Minute
	// maxPanics is how many panics in one panicWindow quarantine the pod: the worker then leaves
	// the pod unchanged until its spec changes.
	maxPanics = 3
)

// runAndRecover runs the worker, also after panics, until its pod is gone or ctx ends.
func (w *worker) runAndRecover(ctx context.Context) {
	ctx = activity.WithPod(ctx, w.key)
	if !w.wait(ctx, 0) { // the first update
		return
	}
	for {
		p, ok := panics.Of(panics.ToError(func() error { w.run(ctx); return nil }))
		if !ok {
			return
		}
		if !w.recovered(ctx, p) {
			return
		}
	}
}

// recovered resets the worker after a panic, and waits before the next try. Like wait it returns
// false when the worker has to return.
func (w *worker) recovered(ctx context.Context, p *panics.Error) bool {
	w.freeSlot(ctx)
	w.planningSince.Store(0)
	w.last = observation{}
	now := time.Now()
	w.panics = slices.DeleteFunc(w.panics, func(at time.Time) bool { return now.Sub(at) >= panicWindow })
	w.panics = append(w.panics, now)
	attrs := []any{"panic", fmt.Sprint(p.Value)}
	if len(w.panics) == 1 {
		attrs = append(attrs, "stack", string(p.Stack)) // only with the first panic of a panicWindow
	}
	w.rec.Record, w.rec.dirty = pod.Record{}, false
	w.failedSteps.reset()
	w.created = make(map[string]string)
	w.reported.status = v1.PodStatus{}
	if w.reported.pod != nil {
		w.reported.status = w.reported.pod.Status
	}
	w.progress = progress{}
	if len(w.panics) < maxPanics {
		w.log.Error("Pod worker panicked; retrying", attrs...)
		return w.pause(ctx, retryDelay(len(w.panics)))
	}
	w.log.Error("Pod worker panicked too often; leaving the pod unchanged until it is edited", attrs...)
	if !w.quarantine(ctx) {
		return false
	}
	w.panics = nil
	return true
}

// quarantine reports that the worker leaves the pod unchanged, and waits until its spec changes.
// Like wait it returns false when the worker has to return.
func (w *worker) quarantine(ctx context.Context) bool {
	r := report{key: w.key, seq: w.seq, gen: w.update.gen, fresh: true, final: true, pod: &v1.Pod{}, reportMetadata: reportMetadata{observedUID: w.reported.reportMetadata.observedUID, notDesired: w.update.want == nil}}
	switch {
	case w.reported.pod != nil:
		shown := *w.reported.pod // shares all but the reason and message of the status
		r.pod = &shown
	case w.update.want != nil:
		r.pod = w.update.want.Pod.DeepCopy()
		r.pod.Status.Phase = v1.PodPending
	default:
		r.pod.Namespace, r.pod.Name = w.key.Namespace, w.key.Name
	}
	if w.update.want != nil {
		r.origin = w.update.want.Origin
	}
	r.pod.Status.Reason = "Quarantined"
	r.pod.Status.Message = "nodectl panicked several times within a minute while it handled this pod, and leaves it unchanged until it is edited"
	w.reported.pod = r.pod
	w.env.board.SetState(w.key, activity.State{WaitFor: r.pod.Status.Message})
	select {
	case w.env.reports <- r:
	case <-ctx.Done():
		return false
	}
	for want := w.update.want; w.update.want == want; {
		if !w.wait(ctx, 0) {
			return false
		}
	}
	return true
}
