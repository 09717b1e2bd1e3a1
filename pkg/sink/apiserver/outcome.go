package apiserver

import (
	"crypto/sha256"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/nodectl/nodectl/pkg/apiclient"
	"github.com/nodectl/nodectl/pkg/backoff"
)

// handleAnswer applies an answer to its entry.
func (l *loop) handleAnswer(a answer, now time.Time) {
	e := l.entry(a.key)
	e.busy = false
	kind, retry := classify(a.request, a.err), a.retry
	if kind == unavailable {
		l.pauseAll(a, e, retry, now)
		return
	}
	l.noteAvailable()
	switch kind {
	case fine:
		l.done(a, e, now)
		return
	case gone:
		// The loop reads the pod to confirm this: NodeRestriction gives the same answer for a pod
		// that the server's cache does not hold yet.
		e.mustRead = e.mustRead || !e.seen
		e.backOff(now, firstPause/4, lastPause, 0)
	case stale:
		e.mustRead, e.taken = !e.seen || a.verb == create, a.verb == create
		e.backOff(now, firstPause/4, lastPause, 0)
	case tooLarge:
		l.tooLarge(a, e, now)
		return
	case failed:
		e.mustRead = e.mustRead || a.verb != get
		l.warn(e, "API server failed to handle a request about a pod; retrying", a.err, "")
		e.backOff(now, firstPause, lastPause, retry)
	case refused:
		if a.verb == create && e.pause < firstPause && isNodeUnknown(a.err) {
			e.backOff(now, firstPause/4, lastPause, retry)
			break
		}
		l.warnRejected(a, e)
		if a.verb == patch && apierrors.IsInvalid(a.err) {
			e.rejected = a.report
		}
		e.backOff(now, 2*firstPause, refusedPause, retry)
	}
	e.mark(now, false)
	if e.isDone() {
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
		case e.deletedMeanwhile == a.object.UID: // the watch showed its deletion before this answer
		case o != nil && o.UID != a.object.UID:
			e.mustRead = true // one of the two was deleted
		case o != nil && !apiclient.Older(o.ResourceVersion, a.object.ResourceVersion): // the watch showed it
		default:
			e.deleted, e.object, e.absent, e.mustRead, e.unseen = "", a.object, false, false, now
		}
	case patch:
		if a.report != nil { // a patch of failReplaced has none, and leaves the warning about the name
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
			e.schedule(now) // a newer report waits as usual
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
			e.markAbsent()
		}
	}
	e.mark(now, false)
	if e.isDone() {
		delete(l.entries, e.key)
	}
}

// found applies the result of a read.
func (l *loop) found(a answer, e *entry, now time.Time) {
	o := a.object
	switch {
	case o == nil && e.seen && e.object != nil: // the watch showed it meanwhile
	case o == nil:
		if e.markAbsent(); e.taken {
			l.warn(e, nameTaken, nil, renameIt)
			e.backOff(now, refusedPause, refusedPause, 0)
		}
	case e.seen && e.object != nil && apiclient.Older(o.ResourceVersion, e.object.ResourceVersion):
	case e.deletedMeanwhile == o.UID:
		e.markAbsent() // it was deleted after the server had read it
	default:
		if isMirror(o) && (e.object == nil || e.object.UID != o.UID) {
			e.unseen = now
		}
		e.object, e.absent, e.mustRead, e.taken = o, false, false, false
	}
}

// The warning about a static pod whose name another pod has at the server, and its hint.
const (
	nameTaken = "Static pod has no mirror pod: another pod has its name"
	renameIt  = "delete that pod, or rename the static one"
)

// pauseAll pauses all requests, longer each time until the server answers.
func (l *loop) pauseAll(a answer, e *entry, retry time.Duration, now time.Time) {
	if l.pause == 0 {
		l.log.Warn("Cannot send pods to the API server; retrying", "error", explain(a.err))
	}
	l.pause, l.pauseRequested = backoff.Next(l.pause, firstPause, longestOutagePause), retry > 0
	l.pausedUntil = now.Add(max(backoff.Jitter(l.pause, 0.5, 1.5), retry))
	if a.verb != get && !e.seen {
		e.mustRead = true // the server may have carried out the request
	}
	e.mark(now, false)
}

// noteAvailable ends the pause of all requests: the server answers.
func (l *loop) noteAvailable() {
	if l.pause > 0 {
		l.pause, l.pausedUntil = 0, time.Time{}
		l.log.Info("Sending pods to the API server again")
	}
}

// tooLarge shortens the status for the next attempt.
func (l *loop) tooLarge(a answer, e *entry, now time.Time) {
	if a.verb == patch && e.shrinkStep < maxShrink {
		e.shrinkStep, e.shrunkAt = e.shrinkStep+1, now
		l.warn(e, "Status is too large for the API server; sending a shorter one", nil, "")
		e.mark(now, false)
		return
	}
	l.warnRejected(a, e)
	if a.verb == patch {
		e.rejected = a.report
	}
	e.backOff(now, refusedPause, refusedPause, 0)
	e.mark(now, false)
}

// backOff pauses the requests for the pod, longer each time.
func (e *entry) backOff(now time.Time, first, last, retry time.Duration) {
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
