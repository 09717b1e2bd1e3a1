package apiserver

import (
	"crypto/sha256"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodectl/nodectl/pkg/apiclient"
	"github.com/nodectl/nodectl/pkg/pod"
)

// The loop keeps an entry for every name that the node reports or the server shows.
// It belongs to the loop.
type entry struct {
	key    pod.Key
	report *pod.StatusReport // the newest; nil: the node said nothing
	former *pod.StatusReport // the last one of an API server's pod whose place another took
	object *v1.Pod           // what the server holds; nil: nothing, or nothing is known
	// absent says that the server holds no pod of this node under the name.
	absent bool
	// doubtful says that object may not be what the server holds: it is asked first.
	doubtful bool
	// seen says that the server's word came while a request was under way.
	seen bool
	// went is the pod that was heard to go meanwhile; "" for none.
	went types.UID

	// unseen is since when object is something that only this node knows of; zero
	// once the server showed it.
	unseen time.Time

	busy      bool          // a request is under way
	due       time.Time     // when it is looked at next; zero: when something happens
	urgent    bool          // before others
	notBefore time.Time     // after a failure
	pause     time.Duration // the last one after a failure
	settled   bool          // nothing was left to do, and nothing happened since
	idle      time.Time     // since when there is an end, and nothing at the server; zero: it is not so

	// sent and answered are the last patch that was taken, and the version of what the
	// server made of it: what it does not keep is not sent again.
	sent     [sha256.Size]byte
	answered string
	unsaid   *pod.StatusReport // the server will never take what it says

	deleted types.UID // what was deleted with grace 0
	taken   bool      // a mirror was not made because its name is there
	slim    int       // how much is left out of a status that was too large
	slimmed time.Time // since when
	said    string    // the trouble that was said last
	illegal types.UID // of the pod whose phase cannot be taken back, said
}

// mark has the entry looked at when at is there.
func (e *entry) mark(at time.Time, urgent bool) {
	if e.due.IsZero() || at.Before(e.due) {
		e.due = at
	}
	e.urgent = e.urgent || urgent
	e.settled = false
}

// ready returns when the entry may be looked at; ok is false for not at all.
func (e *entry) ready() (at time.Time, ok bool) {
	if e.busy || e.due.IsZero() {
		return time.Time{}, false
	}
	if e.notBefore.After(e.due) {
		return e.notBefore, true
	}
	return e.due, true
}

// over reports whether nothing is left to know about the name.
func (e *entry) over() bool {
	return !e.busy && !e.doubtful && e.object == nil && (e.report == nil || e.report.Gone)
}

// forget lets go of the report of a pod that has ended and that the server has no more.
// Of one that the node did not take in nobody says that it is gone.
func (e *entry) forget(now time.Time) {
	r := e.report
	switch {
	case r == nil || !r.Finished || static(*r) || e.object != nil || !e.absent || e.doubtful || e.busy:
		e.idle = time.Time{}
	case e.idle.IsZero():
		e.idle = now
	case now.Sub(e.idle) > idleFor:
		e.report = nil
	}
}

// idleFor is how long an end is remembered that the server knows nothing of: longer than
// any word of the pod can be on its way.
const idleFor = 10 * time.Minute

// inVain reports whether body was sent already, and the server still holds what it
// made of it: one that does not know a field leaves it out, and says no word of it.
func (e *entry) inVain(body []byte) bool {
	return e.answered != "" && e.answered == e.object.ResourceVersion && e.sent == sha256.Sum256(body)
}

// hear takes a report. It comes soon, or a little later where more of a start is
// to be expected: an ordinary one is three patches at most.
func (e *entry) hear(r pod.StatusReport, now time.Time) {
	if e.report != nil && static(r) && !samePicture(e.report.Pod, r.Pod) {
		e.notBefore, e.pause = time.Time{}, 0 // it may be mended
	}
	if e.slim > 0 && now.Sub(e.slimmed) > slimFor {
		e.slim = 0
	}
	if e.report != nil && !static(*e.report) && static(r) && e.report.Pod.UID != r.Pod.UID {
		e.former = e.report
	}
	e.report = &r
	e.schedule(now)
}

// schedule has the newest report looked at as soon as it has to be.
func (e *entry) schedule(now time.Time) {
	r := e.report
	before := &v1.PodStatus{}
	if e.object != nil {
		before = &e.object.Status
	}
	wait, urgent := pressing(before, &r.Pod.Status)
	if r.Finished || r.Gone || e.object != nil && isMirror(e.object) && !pictures(e.object, r.Pod) {
		wait, urgent = 0, true
	}
	if e.object == nil && !static(*r) {
		wait = max(wait, firstSight) // it is about to be seen
	}
	if e.busy {
		return // its answer says what is left to say
	}
	e.mark(now.Add(wait), urgent)
}

// firstSight is how long a pod that the server was not seen to hold waits before
// the server is asked for it.
const firstSight = 3 * time.Second

// slimFor is how long a status is told in short before it is tried in full again.
const slimFor = 10 * time.Minute

// see takes what the server shows. A change of what is ours waits for the next
// comparison (C-1.27.5); what is asked of the node does not.
func (e *entry) see(s sighting, now time.Time) {
	e.seen = true
	if s.gone {
		e.went = s.pod.UID
	}
	was := e.object
	fresh := was == nil || was.UID != s.pod.UID
	switch {
	case s.gone && fresh:
		if was == nil {
			e.absent, e.doubtful = true, false
		} else if s.brief {
			e.doubtful = true
			e.mark(now, false)
		}
	case s.gone:
		e.lose()
		e.mark(now, false)
	case s.pod.UID == e.deleted && fresh:
		// An old word of what is gone, unless the server was set back.
		e.doubtful = true
		e.mark(now.Add(firstSight), false)
	case !fresh && apiclient.Older(s.pod.ResourceVersion, was.ResourceVersion):
		e.doubtful, e.settled = true, false // it is late, or the server was set back
	default:
		e.object, e.absent, e.doubtful, e.taken, e.settled = s.pod, false, false, false, false
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

// reconcile has what is not settled looked at (C-1.27.5), and what was made here and
// is not shown asked for: who shows it may have missed that it went.
func (e *entry) reconcile(now time.Time) {
	e.forget(now)
	if !e.unseen.IsZero() && now.Sub(e.unseen) > unseenFor {
		e.doubtful, e.settled, e.unseen = true, false, now
	}
	if !e.settled && e.due.IsZero() {
		e.mark(now, false)
	}
}

// unseenFor is how long a mirror is believed in that the server was not seen to hold.
const unseenFor = 30 * time.Second

// lose notes that the server holds the pod no more.
func (e *entry) lose() {
	if e.object != nil {
		e.deleted = e.object.UID
	}
	e.object, e.absent, e.doubtful, e.settled, e.slim, e.former = nil, true, false, false, 0, nil
	e.unseen = time.Time{}
}

// isMirror reports whether p is a picture of a static pod.
func isMirror(p *v1.Pod) bool {
	_, is := p.Annotations[pod.AnnotationConfigMirror]
	return is
}

// samePicture reports whether two static pods have one mirror.
func samePicture(a, b *v1.Pod) bool {
	return a.Annotations[pod.AnnotationConfigHash] == b.Annotations[pod.AnnotationConfigHash]
}

// pictures reports whether mirror is the picture of static pod p.
func pictures(mirror, p *v1.Pod) bool {
	return mirror.Annotations[pod.AnnotationConfigMirror] == p.Annotations[pod.AnnotationConfigHash]
}
