package engine

import (
	"context"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podview"
	"github.com/nodectl/nodectl/pkg/status"
)

// noteOverdue marks the status of a pod whose stop is overdue. The first time it also sends an
// event and logs.
func (w *worker) noteOverdue(p *v1.Pod, v plan.View) {
	left := status.MarkOverdue(p, v.Have, w.rec.StopSince, podview.StopGrace(v.Record, v.Have), v.Now)
	if left != nil && (w.reported.pod == nil || w.reported.pod.Status.Reason != status.ReasonOverdue) {
		w.event(w.instanceSpec(), "", pod.EventWarning, eventGrace, "Container runtime did not kill the pod within specified grace period.")
		w.log.Warn("Container is still running after its grace period; waiting for it",
			"containers", strings.Join(left, ","), "stopping_for", v.Now.Sub(w.rec.StopSince).Round(time.Second).String())
	}
}

// overdue returns a channel that fires when the stop in progress becomes overdue; nil: never.
func (w *worker) overdue(v plan.View) <-chan time.Time {
	if w.rec.StopSince.IsZero() {
		return nil
	}
	left := time.Until(status.OverdueAt(w.rec.StopSince, podview.StopGrace(v.Record, v.Have)))
	if left <= 0 {
		return nil // it was overdue before this plan, whose report said so
	}
	return time.After(left)
}

// reportOverdue reads and reports the pod while a stop is in progress.
func (w *worker) reportOverdue(ctx context.Context) {
	have, err := w.env.runtime.Pod(ctx, w.key)
	if err != nil || have.Empty() {
		return // the read after the stop shows its state
	}
	v := w.view(ctx, have)
	if p := plan.Next(v); p.Stopping {
		w.sendReport(ctx, v, p)
	}
}
