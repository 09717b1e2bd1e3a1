package engine

import (
	"context"

	"github.com/nodectl/nodectl/pkg/activity"
	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
)

// specToRun returns the spec by which the pod's worker runs the pod now, if its desired spec is want.
// That is want, unless plan.Delayed delays it until a layer has answered. Until then the pod is
// in l.waiting, and specToRun returns the recorded spec, or nil if the worker gets no update.
func (l *loop) specToRun(ctx context.Context, key pod.Key, want *pod.Spec) *pod.Spec {
	if e := l.pods[key]; e != nil { // it has the recorded spec until its layer answers
		if ready, configured := l.state.Ready(want.Origin.Layer()); configured && !ready {
			return nil
		}
		delete(l.waiting, key)
		return want
	}
	o := l.orphans[key]
	d := plan.Delayed(l.state, want, o.FoundPod, l.cfg.RequireSourceReady)
	if d == nil {
		delete(l.waiting, key)
		return want
	}
	if !l.waiting[key] {
		l.waiting[key] = true
		l.env.board.SetState(key, activity.State{WaitFor: "source " + d.Layer + " has not answered yet"})
		log := l.log.With("pod", key.String(), "source", d.Layer)
		switch {
		case d.Stop:
			log.Info("Resuming pod termination started by the previous agent; not starting the pod again until its source answers")
		case o.Running:
			log.Info("Keeping running pod unchanged until its source answers")
		default:
			log.Info("Not starting pod until its source answers")
		}
	}
	if d.Stop {
		l.stopOrphan(ctx, key, o)
	}
	return d.As
}
