package apiserver

import (
	"crypto/sha256"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/nodectl/nodectl/pkg/apiclient"
	"github.com/nodectl/nodectl/pkg/backoff"
)

// take applies an answer to its entry, and decides the next request.
func (l *loop) take(a answer, now time.Time) {
	e := l.entry(a.key)
	e.busy = false
	what, retry := judge(a.request, a.err), a.retry
	if what == away {
		l.leave(a, e, retry, now)
		return
	}
	l.back()
	switch what {
	case fine:
		l.done(a, e, now)
		return
	case gone:
		// A read confirms it: NodeRestriction gives this answer also for a pod that the
		// server's cache does not hold yet.
		e.doubtful = e.doubtful || !e.seen
		e.back(now, firstPause/4, lastPause, 0)
	case stale:
		e.doubtful, e.taken = !e.seen || a.verb == create, a.verb == create
		e.back(now, firstPause/4, lastPause, 0)
	case tooLarge:
		l.tooLarge(a, e, now)
		return
	case failed:
		e.doubtful = e.doubtful || a.verb != get
		l.warn(e, "API server failed to handle a request about a pod; retrying", a.err, "")
		e.back(now, firstPause, lastPause, retry)
	case refused:
		if a.verb == create && e.pause < firstPause && isNodeUnknown(a.err) {
			e.back(now, firstPause/4, lastPause, retry)
			break
		}
		l.warnRejected(a, e)
		if a.verb == patch && apierrors.IsInvalid(a.err) {
			e.rejected = a.report
		}
		e.back(now, 2*firstPause, refusedPause, retry)
	}
	e.mark(now, false)
	if e.over() {
		delete(l.entries, e.key)
	}
}

// done applies the success of a request.
func (l *loop) done(a answer, e *entry, now time.Time) {
	if a.verb != get { // a read does not mean that a write would succeed
		e.pause, e.notBefore = 0, time.Time{}
	}
	switch a.verb {
	case get:
		l.found(a, e, now)
	case create:
		e.lastWarning, e.taken = "", false
		switch o := e.object; {
		case e.deletedMeanwhile == a.object.UID: // before its creation was answered
		case o != nil && o.UID != a.object.UID:
			e.doubtful = true // one of the two was deleted
		case o != nil && !apiclient.Older(o.ResourceVersion, a.object.ResourceVersion): // shown
		default:
			e.deleted, e.object, e.absent, e.doubtful, e.unseen = "", a.object, false, false, now
		}
	case patch:
		if a.report != nil { // or there is still no mirror
			e.lastWarning = ""
		}
		same := e.object != nil && e.object.UID == a.object.UID
		if same && !apiclient.Older(a.object.ResourceVersion, e.object.ResourceVersion) {
			e.object = a.object
		}
		e.sent, e.answered = sha256.Sum256(a.body), a.object.ResourceVersion
		if l.cfg.Synced != nil && a.report != nil {
			l.cfg.Synced(now.Sub(a.report.At))
		}
		if same && e.report != nil && e.report != a.report {
			e.schedule(now) // a report that came meanwhile waits as usual
			return
		}
	case remove:
		e.deleted = a.uid
		switch o := e.object; {
		case o == nil || o.UID != a.uid:
		case len(o.Finalizers) > 0:
			held := *o
			held.DeletionGracePeriodSeconds = new(int64(0))
			e.object = &held
		default:
			e.lose()
		}
	}
	e.mark(now, false)
	if e.over() {
		delete(l.entries, e.key)
	}
}

// found applies the result of a read.
func (l *loop) found(a answer, e *entry, now time.Time) {
	o := a.object
	switch {
	case o == nil && e.seen && e.object != nil: // the watch showed it meanwhile
	case o == nil:
		if e.lose(); e.taken {
			l.warn(e, nameTaken, nil, renameIt)
			e.back(now, refusedPause, refusedPause, 0)
		}
	case e.seen && e.object != nil && apiclient.Older(o.ResourceVersion, e.object.ResourceVersion):
	case e.deletedMeanwhile == o.UID:
		e.lose() // while the answer was on its way
	default:
		if isMirror(o) && (e.object == nil || e.object.UID != o.UID) {
			e.unseen = now
		}
		e.object, e.absent, e.doubtful, e.taken = o, false, false, false
	}
}

// The warning about a mirror whose name another pod has, and its hint.
const (
	nameTaken = "Static pod has no mirror pod: another pod has its name"
	renameIt  = "delete that pod, or rename the static one"
)

// leave pauses all requests, longer each time until the server answers.
func (l *loop) leave(a answer, e *entry, retry time.Duration, now time.Time) {
	if l.pause == 0 {
		l.log.Warn("Cannot send pods to the API server; retrying", "error", explain(a.err))
	}
	l.pause, l.asked = backoff.Next(l.pause, firstPause, awayPause), retry > 0
	l.closed = now.Add(max(backoff.Jitter(l.pause, 0.5, 1.5), retry))
	if a.verb != get && !e.seen {
		e.doubtful = true // it may have been done
	}
	e.mark(now, false)
}

// back notes that the server answers.
func (l *loop) back() {
	if l.pause > 0 {
		l.pause, l.closed = 0, time.Time{}
		l.log.Info("Sending pods to the API server again")
	}
}

// tooLarge shortens the status for the next attempt.
func (l *loop) tooLarge(a answer, e *entry, now time.Time) {
	if a.verb == patch && e.slim < maxSlim {
		e.slim, e.slimmed = e.slim+1, now
		l.warn(e, "Status is too large for the API server; sending a shorter one", nil, "")
		e.mark(now, false)
		return
	}
	l.warnRejected(a, e)
	if a.verb == patch {
		e.rejected = a.report
	}
	e.back(now, refusedPause, refusedPause, 0)
	e.mark(now, false)
}

// back pauses the requests for the pod, longer each time.
func (e *entry) back(now time.Time, first, last, retry time.Duration) {
	e.pause = backoff.Next(e.pause, first, last)
	e.notBefore = now.Add(max(backoff.Jitter(e.pause, 0.5, 1.5), retry))
}

func (l *loop) warnRejected(a answer, e *entry) {
	switch a.verb {
	case create:
		l.warn(e, "Static pod has no mirror pod: the API server rejects it", a.err, "the pod runs; its mirror pod is tried again")
	case remove:
		l.warn(e, "API server rejects the deletion of a pod", a.err, "")
	default:
		l.warn(e, "API server rejects a status; retrying", a.err, "")
	}
}

// warn warns about a pod once, until the problem changes or is over.
func (l *loop) warn(e *entry, message string, err error, hint string) {
	args := []any{"pod", e.key.String()}
	text := message
	if err != nil {
		err = explain(err)
		text += err.Error()
		args = append(args, "error", err)
	}
	if hint != "" {
		args = append(args, "hint", hint)
	}
	if e.lastWarning == text {
		return
	}
	e.lastWarning = text
	l.log.Warn(message, args...) //nolint:sloglint // one of the constants above
}
