package apiserver

import (
	"crypto/sha256"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodectl/nodectl/pkg/apiclient"
	"github.com/nodectl/nodectl/pkg/pod"
)

// entry is the state of one name that the node reports or the server shows. It belongs to the
// loop.
type entry struct {
	key    pod.Key
	report *pod.StatusReport // the newest; nil: there was none
	former *pod.StatusReport // the last one of an API pod that another pod replaced
	object *v1.Pod           // the server's version; nil: none, or unknown
	// absent says that the server has no pod of this node with the name.
	absent bool
	// mustRead says that object may be out of date, so that the loop reads it from the server first.
	mustRead bool
	// seen says that the watch has shown the pod since the request in flight was sent.
	seen bool
	// deletedMeanwhile is the UID of the pod whose deletion the watch has shown since then; "" for none.
	deletedMeanwhile types.UID

	// unseen is the time at which an answer showed object; zero once the watch has shown it.
	unseen time.Time

	busy      bool          // a request is in flight
	due       time.Time     // when the loop looks at it next; zero: at the next input
	urgent    bool          // before others
	notBefore time.Time     // after a failure
	pause     time.Duration // the last one after a failure
	settled   bool          // nothing is left to do, and there was no input since
	idle      time.Time     // since when it is terminated and not at the server

	// sent and answered are the last patch that the server accepted, and the resource
	// version that resulted. A patch that the server accepted without effect is not
	// sent again.
	sent     [sha256.Size]byte
	answered string
	rejected *pod.StatusReport // the report that the server will never accept

	deleted     types.UID // the pod that the sink deleted with grace period 0
	taken       bool      // a mirror was not created because its name exists
	shrinkStep  int       // the step of shrink for a status that was too large
	shrunkAt    time.Time // since when
	lastWarning string    // the last warning
	phaseWarned types.UID // the pod for which the warning about its final phase was logged
}

// mark makes the entry due at the time at, or earlier if it is due earlier.
func (e *entry) mark(at time.Time, urgent bool) {
	if e.due.IsZero() || at.Before(e.due) {
		e.due = at
	}
	e.urgent = e.urgent || urgent
	e.settled = false
}

// ready returns when the entry may be looked at; ok is false for never.
func (e *entry) ready() (at time.Time, ok bool) {
	if e.busy || e.due.IsZero() {
		return time.Time{}, false
	}
	if e.notBefore.After(e.due) {
		return e.notBefore, true
	}
	return e.due, true
}

// isDone reports whether the loop can drop the entry.
func (e *entry) isDone() bool {
	return !e.busy && !e.mustRead && e.object == nil && (e.report == nil || e.report.Gone)
}

// forget drops the report of a pod that has terminated and that the server no longer
// has. For a pod that the node did not admit, no report says that it is gone.
func (e *entry) forget(now time.Time) {
	r := e.report
	switch {
	case r == nil || !r.Finished || static(*r) || e.object != nil || !e.absent || e.mustRead || e.busy:
		e.idle = time.Time{}
	case e.idle.IsZero():
		e.idle = now
	case now.Sub(e.idle) > idleFor:
		e.report = nil
	}
}

// idleFor is how long the loop keeps the report of a terminated pod that the server does not
// have. It is longer than any delay of an update of the pod.
const idleFor = 10 * time.Minute

// isRepeat reports whether the server has accepted this patch before, and the object has not
// changed since. A server that does not know a field drops it without an error.
func (e *entry) isRepeat(body []byte) bool {
	return e.answered != "" && e.answered == e.object.ResourceVersion && e.sent == sha256.Sum256(body)
}

// setReport stores a report. The loop sends it soon, or a little later while more changes of a start
// are to be expected. So an ordinary start needs three patches at most.
func (e *entry) setReport(r pod.StatusReport, now time.Time) {
	if e.report != nil && static(r) && !sameMirror(e.report.Pod, r.Pod) {
		e.notBefore, e.pause = time.Time{}, 0 // the server may accept the new definition
	}
	if e.shrinkStep > 0 && now.Sub(e.shrunkAt) > shrinkFor {
		e.shrinkStep = 0
	}
	if e.report != nil && !static(*e.report) && static(r) && e.report.Pod.UID != r.Pod.UID {
		e.former = e.report
	}
	e.report = &r
	e.schedule(now)
}

// schedule makes the entry due when the newest report has to be sent.
func (e *entry) schedule(now time.Time) {
	r := e.report
	before := &v1.PodStatus{}
	if e.object != nil {
		before = &e.object.Status
	}
	wait, urgent := urgency(before, &r.Pod.Status)
	if r.Finished || r.Gone || e.object != nil && isMirror(e.object) && !mirrors(e.object, r.Pod) {
		wait, urgent = 0, true
	}
	if e.object == nil && !static(*r) {
		wait = max(wait, watchWait) // the watch is about to show it
	}
	if e.busy {
		return // its answer shows what remains to be sent
	}
	e.mark(now.Add(wait), urgent)
}

// watchWait is how long the loop waits for the watch to show a pod before it asks the
// server for it.
const watchWait = 3 * time.Second

// shrinkFor is how long the loop sends a shortened status before it tries the full one
// again.
const shrinkFor = 10 * time.Minute

// see stores the server's version. A change of the node's own fields waits for the next comparison
// (C-1.27.5). A request to the node, such as a deletion, does not wait.
func (e *entry) see(s sighting, now time.Time) {
	e.seen = true
	if s.gone {
		e.deletedMeanwhile = s.pod.UID
	}
	was := e.object
	fresh := was == nil || was.UID != s.pod.UID
	switch {
	case s.gone && fresh:
		if was == nil {
			e.absent, e.mustRead = true, false
		} else if s.shortLived {
			e.mustRead = true
			e.mark(now, false)
		}
	case s.gone:
		e.markAbsent()
		e.mark(now, false)
	case s.pod.UID == e.deleted && fresh:
		// A late event of a deleted pod, unless the server was restored from a backup.
		e.mustRead = true
		e.mark(now.Add(watchWait), false)
	case !fresh && apiclient.Older(s.pod.ResourceVersion, was.ResourceVersion):
		e.mustRead, e.settled = true, false // it is late, or the server was restored
	default:
		e.object, e.absent, e.mustRead, e.taken, e.settled = s.pod, false, false, false, false
		e.unseen = time.Time{}
		asks := fresh || was.DeletionTimestamp == nil && s.pod.DeletionTimestamp != nil ||
			was.Annotations[pod.AnnotationConfigMirror] != s.pod.Annotations[pod.AnnotationConfigMirror]
		if fresh {
			e.notBefore, e.pause = time.Time{}, 0
		}
		if asks {
			e.mark(now, false)
		}
	}
}

// reconcile makes an entry due that is not settled (C-1.27.5). If the watch does not show a mirror
// for unseenFor, the loop reads it from the server: the watch may have missed its deletion.
func (e *entry) reconcile(now time.Time) {
	e.forget(now)
	if !e.unseen.IsZero() && now.Sub(e.unseen) > unseenFor {
		e.mustRead, e.settled, e.unseen = true, false, now
	}
	if !e.settled && e.due.IsZero() {
		e.mark(now, false)
	}
}

// unseenFor is how long the loop assumes that a mirror exists although the watch has not shown it.
const unseenFor = 30 * time.Second

// markAbsent notes that the server no longer holds the pod.
func (e *entry) markAbsent() {
	if e.object != nil {
		e.deleted = e.object.UID
	}
	e.object, e.absent, e.mustRead, e.settled, e.shrinkStep, e.former = nil, true, false, false, 0, nil
	e.unseen = time.Time{}
}

// isMirror reports whether p is a mirror.
func isMirror(p *v1.Pod) bool {
	_, is := p.Annotations[pod.AnnotationConfigMirror]
	return is
}

// sameMirror reports whether two static pods have one mirror.
func sameMirror(a, b *v1.Pod) bool {
	return a.Annotations[pod.AnnotationConfigHash] == b.Annotations[pod.AnnotationConfigHash]
}

// mirrors reports whether mirror is the mirror of static pod p.
func mirrors(mirror, p *v1.Pod) bool {
	return mirror.Annotations[pod.AnnotationConfigMirror] == p.Annotations[pod.AnnotationConfigHash]
}
