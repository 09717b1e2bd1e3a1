package engine

import (
	"context"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/nodectl/nodectl/pkg/backoff"
	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
)

// waitForUpdate waits for an update of a newer generation after the worker has reported its pod
// gone, and ignores all others. Like wait it returns false when the worker has to return: the loop
// drops a pod that is gone and not desired.
func (w *worker) waitForUpdate(ctx context.Context) bool {
	w.freeSlot(ctx)
	for gen := w.update.gen; w.update.gen == gen; {
		if !w.wait(ctx, 0) {
			return false
		}
	}
	return true
}

// wait blocks until there is an update or d has passed; d = 0 sets no limit. It returns false
// when the worker has to return: the loop has closed the updates, or ctx is done.
func (w *worker) wait(ctx context.Context, d time.Duration) bool {
	var due <-chan time.Time
	if d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		due = t.C
	}
	select {
	case u, ok := <-w.updates:
		if ok {
			w.apply(u)
		}
		return ok
	case <-due:
		return true
	case <-ctx.Done():
		return false
	}
}

// pause blocks until d has passed. Another spec or an operation ends it early; other updates do
// not. Like wait it returns false when the worker has to return.
func (w *worker) pause(ctx context.Context, d time.Duration) bool {
	over := time.NewTimer(d)
	defer over.Stop()
	for {
		select {
		case u, ok := <-w.updates:
			if !ok {
				return false
			}
			if w.apply(u) {
				return true
			}
		case <-over.C:
			return true
		case <-ctx.Done():
			return false
		}
	}
}

// applyPending applies a pending update without waiting, and returns the result of apply; false if
// there is none.
func (w *worker) applyPending() (changed bool) {
	select {
	case u, ok := <-w.updates:
		return ok && w.apply(u)
	default:
		return false
	}
}

// apply stores u as the worker's update and acknowledges its operations. It reports whether the plan
// in progress is out of date: u has another spec (except onlyOtherData), a new operation, or another
// halt of the node.
func (w *worker) apply(u podUpdate) (changed bool) {
	changed = u.want != w.update.want
	if changed && u.want != nil && (w.update.want == nil || u.want.Hash != w.update.want.Hash) {
		clear(w.failedSteps.byContainer) // try a changed spec at once
	} else if changed && u.want != nil && (!u.want.Data.Same(w.update.want.Data) || !slices.Equal(u.want.Unread, w.update.want.Unread)) {
		login := pullSecrets(u.want) != pullSecrets(w.update.want)
		maps.DeleteFunc(w.failedSteps.byContainer, func(name string, t pod.Failure) bool { // retry failures that the changed data can repair
			return t.Reason == reasonMount || t.Reason == reasonConfig || login && w.failedSteps.step[name] == plan.PullImage
		})
	}
	if u.devices != w.update.devices {
		w.failedSteps.retrySooner(time.Now())
	}
	if changed && u.want != nil && w.update.want != nil && !sameClaims(&u.want.Pod.Status, &w.update.want.Pod.Status) {
		maps.DeleteFunc(w.failedSteps.byContainer, func(_ string, t pod.Failure) bool { return claims(t) }) // the cluster has made a claim for the pod
	}
	changed = !onlyOtherData(u.want, w.update.want) || u.halt != w.update.halt
	w.update = u
	acked := w.acked
	w.acknowledge()
	w.noteHalt()
	return changed || w.acked != acked
}

// hasten brings forward the next tries of steps that failed because of devices or claims. After a
// change of devices they are due at once. If changes follow each other quickly, they are due with a
// back-off. So a plugin that changes its devices all the time does not keep the workers busy.
func (t *failedSteps) retrySooner(now time.Time) {
	var due time.Time
	for name, of := range t.byContainer {
		if of.Reason != pod.ReasonWaitsForDevices && of.Reason != pod.ReasonUnexpectedAdmission && !claims(of) {
			continue
		}
		if due.IsZero() {
			due, _ = t.early.Next(now)
		}
		if of.Until.After(due) {
			of.Until = due
			t.byContainer[name] = of
		}
	}
}

// pullSecrets returns a hash of the Secrets with which a pod logs in to registries.
func pullSecrets(want *pod.Spec) string {
	hash, _ := want.Data.Hash(func(id pod.ObjectID) bool {
		return id.Kind == pod.KindSecret && slices.ContainsFunc(want.Pod.Spec.ImagePullSecrets, func(s v1.LocalObjectReference) bool { return s.Name == id.Name })
	})
	return hash
}

// failed counts a failure to read, stop or remove, and returns how long to wait before the next
// try.
func (w *worker) failed() time.Duration {
	w.failedSteps.failures++
	return retryDelay(w.failedSteps.failures)
}

// retryDelay is 200 ms, doubling to 10 s.
func retryDelay(failures int) time.Duration {
	return backoff.After(failures, 200*time.Millisecond, 10*time.Second)
}

// sameClaims reports whether two statuses name the same claims that the cluster has made for a pod.
func sameClaims(a, b *v1.PodStatus) bool {
	return equality.Semantic.DeepEqual(a.ResourceClaimStatuses, b.ResourceClaimStatuses) &&
		equality.Semantic.DeepEqual(a.ExtendedResourceClaimStatus, b.ExtendedResourceClaimStatus)
}
