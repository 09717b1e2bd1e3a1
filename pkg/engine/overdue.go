package engine

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podview"
)

// reasonOverdue is the status reason of a pod that has been stopping for twice its grace and
// still has a running container: even SIGKILL does not end it (F32).
const reasonOverdue = "StopOverdue"

// overdueAt is when a stop that began at since, with grace in seconds, becomes overdue.
func overdueAt(since time.Time, grace int64) time.Time {
	return since.Add(2 * max(time.Duration(grace)*time.Second, minStop))
}

// markOverdue sets the status reason of a pod whose stop is overdue, and returns the
// containers that still run. A terminated pod keeps its reason.
func markOverdue(p *v1.Pod, have pod.Actual, since time.Time, grace int64, now time.Time) (left []string) {
	if pod.IsPhaseTerminal(p.Status.Phase) || since.IsZero() || now.Before(overdueAt(since, grace)) {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(have.Containers)) {
		if have.Containers[name].MayRun() {
			left = append(left, name)
		}
	}
	if left != nil {
		p.Status.Reason = reasonOverdue
		p.Status.Message = fmt.Sprintf("told to end at %s with %d s of grace, and not ended: %s",
			since.UTC().Format(time.RFC3339), grace, strings.Join(left, ", "))
	}
	return left
}

// noteOverdue marks a pod whose stop is overdue, and reports that once.
func (w *worker) noteOverdue(p *v1.Pod, v plan.View) {
	left := markOverdue(p, v.Have, w.rec.StopSince, podview.StopGrace(v.Record, v.Have), v.Now)
	if left != nil && (w.reported.pod == nil || w.reported.pod.Status.Reason != reasonOverdue) {
		w.event(w.madeOf(), "", pod.EventWarning, eventGrace, "Container runtime did not kill the pod within specified grace period.")
		w.log.Warn("Container does not end; it is waited for",
			"containers", strings.Join(left, ","), "age", v.Now.Sub(w.rec.StopSince).Round(time.Second).String())
	}
}

// overdue fires when a stop in progress becomes overdue; nil for never.
func (w *worker) overdue(v plan.View) <-chan time.Time {
	if w.rec.StopSince.IsZero() {
		return nil
	}
	left := time.Until(overdueAt(w.rec.StopSince, podview.StopGrace(v.Record, v.Have)))
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
