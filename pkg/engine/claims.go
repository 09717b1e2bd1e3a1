package engine

import (
	"context"
	"errors"

	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podview"
)

// errNoDrivers says why a pod with ResourceClaims waits on a node that cannot prepare any.
var errNoDrivers = errors.New("prepare dynamic resources: this agent serves no DRA drivers: it does not run as root")

// handleHealth has the workers of pods with claims report the health of their devices. It does not
// have them try failed steps again, because a driver may report health at any rate.
func (l *loop) handleHealth() {
	if !l.start.dispatching() {
		return
	}
	for _, e := range l.pods {
		if e.updates != nil && e.want != nil && pod.HasClaims(e.want.Pod) {
			l.queueUpdate(e, false)
		}
	}
}

// adoptClaims passes the claims of the containers of a listing to Config.Claims. Like adoptDevices,
// it passes only those of orphaned pods once a listing has found all pods.
func (l *loop) adoptClaims(found listing) {
	if l.cfg.Claims == nil {
		return
	}
	records := plan.RecordsOf(found.pods, found.records)
	var holders []pod.ClaimHolder
	for _, have := range found.pods {
		if o, orphaned := l.orphans[have.Key]; l.nodeState.claimsKnown && (!orphaned || l.isForeign(o)) {
			continue
		}
		if h := claimsOf(have, records[have.Key]); len(h.Claims) > 0 {
			holders = append(holders, h)
		}
	}
	l.nodeState.claimsKnown = l.nodeState.claimsKnown || found.err == nil && found.only == nil
	l.cfg.Claims.Adopt(holders)
}

// claimsOf returns the claims of a pod's containers. A terminated pod has none when nothing of it
// runs.
func claimsOf(have pod.Actual, rec pod.Record) pod.ClaimHolder {
	h := pod.ClaimHolder{Key: have.Key, UID: have.UID}
	if rec.UID == have.UID && rec.Terminal != "" && !podview.MayRun(have) {
		return h
	}
	for _, c := range podview.AllContainers(have) {
		h.Claims = append(h.Claims, c.Claims...)
	}
	return h
}

// prepareClaims prepares the claims of a pod whose sandbox or container is about to be created. Another
// spec that ends the pod, or a halt of the node, cancels it.
func (w *worker) prepareClaims(ctx context.Context, want *pod.Spec, container string) error {
	switch {
	case !pod.HasClaims(want.Pod):
		return nil
	case w.env.claims == nil:
		return &pod.StartError{Reason: pod.ReasonWaitsForDriver, Err: errNoDrivers}
	}
	preparing, cancel := context.WithCancel(ctx)
	defer cancel()
	superseded := false
	news := func() {
		if w.mustEnd(want, container) || w.update.halt.Message != "" {
			superseded = true
			cancel()
		}
	}
	err := w.call(ctx, w.env.starts.SlotTimeout(), news, func() error { return w.env.claims.Prepare(preparing, want) })
	if superseded {
		return errStale
	}
	return err
}

// claimsFor returns the devices of claims for a container that is about to be created.
func (w *worker) claimsFor(ctx context.Context, want *pod.Spec, container string) ([]pod.ClaimAllocation, error) {
	if err := w.prepareClaims(ctx, want, container); err != nil || !pod.HasClaims(want.Pod) {
		return nil, err
	}
	return w.env.claims.Of(want, container)
}

// releaseClaims unprepares the claims of a pod that has stopped. The worker reports the end of the
// pod only after that, since the cluster may then give the devices to another pod.
func (w *worker) releaseClaims(ctx context.Context, v plan.View, p plan.Plan) error {
	over := v.Want == nil || deleting(v.Want) || w.instanceTerminated(v, p)
	if !over || podview.MayRun(v.Have) {
		return nil
	}
	if w.env.claims == nil || !w.env.claims.Uses(w.rec.UID) {
		return nil
	}
	w.save() // the end of the pod: a driver may take long to answer
	err := w.unprepare(ctx, w.rec.UID)
	if err != nil && ctx.Err() == nil {
		w.event(w.instanceSpec(), "", pod.EventWarning, eventKillPod, "error killing pod: %s", err)
	}
	return err
}

// unprepare unprepares the claims of a pod, except those that other pods use. It does nothing if the
// UID belongs to another pod.
func (w *worker) unprepare(ctx context.Context, uid string) error {
	if own, err := w.isOwner(uid); !own {
		return err
	}
	return w.call(ctx, w.env.starts.SlotTimeout(), nil, func() error { return w.env.claims.Release(ctx, uid) })
}

// leaveClaims has the claims of an earlier pod of this name unprepared later. The worker does not
// wait for that, since the pod that replaces it may need no driver, and a driver may not answer.
func (w *worker) leaveClaims(uid string) {
	if w.env.claims != nil {
		w.env.claims.Leave(uid)
	}
}

// beforeReport does the work that has to precede the report of a plan: it puts the plan's decisions
// into the record, and releases claims. If ok is false, the worker has to read the pod again; if
// over is true, it has to return.
func (w *worker) beforeReport(ctx context.Context, v plan.View, p plan.Plan) (ok, over bool) {
	reason, err := "the state of the pod cannot be recorded", w.remember(ctx, v, p)
	if err == nil {
		reason, err = "the claims of the pod cannot be unprepared", w.releaseClaims(ctx, v, p)
	}
	switch {
	case err == nil:
		return true, false
	case w.failedSteps.leftBehind:
		return false, true
	}
	w.freeSlot(ctx)
	delay := w.failed()
	w.log.Warn("Delaying the report of the pod", "reason", reason, "error", err, "retry", delay.String())
	w.noteState(plan.Plan{WaitFor: reason + ": " + err.Error()}, delay)
	return false, !w.pause(ctx, delay)
}
