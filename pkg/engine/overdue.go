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

// noteOverdue marks a pod whose stop is overdue, and reports that once.
func (w *worker) noteOverdue(p *v1.Pod, v plan.View) {
	left := status.MarkOverdue(p, v.Have, w.rec.StopSince, podview.StopGrace(v.Record, v.Have), v.Now)
	if left != nil && (w.reported.pod == nil || w.reported.pod.Status.Reason != status.ReasonOverdue) {
		w.event(w.madeOf(), "", pod.EventWarning, eventGrace, "Container runtime did not kill the pod within specified grace period.")
		w.log.Warn("Container is still running after its grace period; waiting for it",
			"containers", strings.Join(left, ","), "age", v.Now.Sub(w.rec.StopSince).Round(time.Second).String())
	}
}

// overdue fires when a stop in progress becomes overdue; nil for never.
func (w *worker) overdue(v plan.View) <-chan time.Time {
	if w.rec.StopSince.IsZero() {
		return nil
	}
	left := time.Until(status.OverdueAt(w.rec.StopSince, podview.StopGrace(v.Record, v.Have)))
	if left <= 0 {
		return nil // reported when the stop began
	}
	return time.After(left)
}

// reportOverdue reports the pod during a stop.
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
