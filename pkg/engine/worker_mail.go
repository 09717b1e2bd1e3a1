package engine

import (
	"context"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
)

// waitForNews blocks until a letter is newer than the one on which the pod was
// found gone; the loop may be about to forget this worker, and pokes for it may
// lie in the box.
func (w *worker) waitForNews(ctx context.Context) bool {
	w.freeSlot(ctx)
	for gen := w.letter.gen; w.letter.gen == gen; {
		if !w.wait(ctx, 0) {
			return false
		}
	}
	return true
}

// wait blocks until there is mail, d has passed (never, for d = 0), or the end;
// it returns false at the end.
func (w *worker) wait(ctx context.Context, d time.Duration) bool {
	var due <-chan time.Time
	if d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		due = t.C
	}
	select {
	case l, ok := <-w.mail:
		if ok {
			w.read(l)
		}
		return ok
	case <-due:
		return true
	case <-ctx.Done():
		return false
	}
}

// pause blocks until d has passed, whoever pokes; only another spec, or the end,
// cuts it short. It returns false at the end.
func (w *worker) pause(ctx context.Context, d time.Duration) bool {
	over := time.NewTimer(d)
	defer over.Stop()
	for {
		select {
		case l, ok := <-w.mail:
			if !ok {
				return false
			}
			if w.read(l) {
				return true
			}
		case <-over.C:
			return true
		case <-ctx.Done():
			return false
		}
	}
}

// takeMail reads what lies in the box without waiting, and reports as read does.
func (w *worker) takeMail() (changed bool) {
	select {
	case l, ok := <-w.mail:
		return ok && w.read(l)
	default:
		return false
	}
}

// read takes a letter, and reports whether it asks for another pod than the one before,
// or brings an errand.
func (w *worker) read(l letter) (changed bool) {
	changed = l.want != w.letter.want
	if changed && l.want != nil && (w.letter.want == nil || l.want.Hash != w.letter.want.Hash) {
		clear(w.trouble.of) // another text deserves another try
	} else if changed && l.want != nil && !l.want.Data.Same(w.letter.want.Data) {
		login := pullSecrets(l.want) != pullSecrets(w.letter.want)
		maps.DeleteFunc(w.trouble.of, func(name string, t pod.Trouble) bool { // so do other data, where they were missing
			return t.Reason == reasonMount || t.Reason == reasonConfig || login && w.trouble.step[name] == plan.PullImage
		})
	}
	changed = !onlyOtherData(l.want, w.letter.want)
	w.letter = l
	heeded := w.heeded
	w.heed()
	return changed || w.heeded != heeded
}

// pullSecrets tells what a pod logs in to registries with apart from anything else.
func pullSecrets(want *pod.Spec) string {
	return want.Data.Hash(func(kind, name string) bool {
		return kind == pod.KindSecret && slices.ContainsFunc(want.Pod.Spec.ImagePullSecrets, func(s v1.LocalObjectReference) bool { return s.Name == name })
	})
}

// failed counts a failure and returns how long to wait before the next try.
func (w *worker) failed() time.Duration {
	w.trouble.failures++
	return retryDelay(w.trouble.failures)
}

// retryDelay is 200 ms, doubling to 10 s.
func retryDelay(failures int) time.Duration {
	return min(200*time.Millisecond<<min(failures-1, 10), 10*time.Second)
}
