package apiserver

import (
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodectl/nodectl/pkg/pod"
)

// verb is the kind of a request.
type verb int

const (
	nothing verb = iota
	await        // send nothing, and look at the entry again after awaitPause
	get
	patch  // of the status
	create // a mirror
	remove // with grace period 0
)

// request is one call of the API server for one pod.
type request struct {
	verb   verb
	key    pod.Key
	uid    types.UID         // the request is for this pod, and for no other of its name
	body   []byte            // of a patch
	report *pod.StatusReport // that the request was made from
	pod    *v1.Pod           // to create
}

// next returns the next request for the pod of e.
func (l *loop) next(e *entry, now time.Time) request {
	r, o := e.report, e.object
	wanted := r != nil && static(*r) && !r.Gone
	switch {
	case e.mustRead:
		return request{verb: get, key: e.key}
	case o == nil && wanted:
		return l.newMirror(e, now)
	case o == nil && r != nil && !r.Gone && !e.absent:
		return request{verb: get, key: e.key}
	case o == nil:
		return request{}
	case isMirror(o):
		return l.mirrorNext(e, wanted, now)
	case wanted:
		l.warn(e, nameTaken, nil, renameIt)
		room := l.removeReplaced(e, now)
		if q := l.failReplaced(e, now); q.verb != nothing && room.verb != remove {
			return q
		}
		return room
	case r == nil || r.Pod.UID != o.UID:
		return request{} // the object is another pod of this name (F73)
	}
	lost := ends(o, r) && e.rejected == r
	if q := l.statusNext(e); q.verb != nothing && !lost {
		return q
	}
	if ends(o, r) && (lost || pod.IsPhaseTerminal(o.Status.Phase)) && !e.removed() {
		return request{verb: remove, key: e.key, uid: o.UID} // C-1.27.9
	}
	return request{}
}

// ends reports whether the pod is being deleted and nothing of it is left on the node.
func ends(have *v1.Pod, r *pod.StatusReport) bool {
	return (r.Finished || r.Gone) && (have.DeletionTimestamp != nil || r.Pod.DeletionTimestamp != nil) && !isMirror(have)
}

// removed reports whether the server has accepted the deletion of the object, so that only
// finalizers keep it.
func (e *entry) removed() bool {
	g := e.object.DeletionGracePeriodSeconds
	return e.deleted == e.object.UID && g != nil && *g == 0
}

// statusNext returns the patch that brings the server's copy to the reported status.
func (l *loop) statusNext(e *entry) request {
	want, refused := merge(e.object, e.report)
	if refused && e.phaseWarned != e.object.UID {
		e.phaseWarned = e.object.UID
		l.log.Warn("Phase not sent: the pod is terminated at the API server", "pod", e.key.String(), "phase", string(e.object.Status.Phase), "here", string(e.report.Pod.Status.Phase))
	}
	return l.patchTo(e, want, e.report)
}

// patchTo returns the patch that brings the server's copy to want, made from r.
func (l *loop) patchTo(e *entry, want v1.PodStatus, r *pod.StatusReport) request {
	shrink(&want, e.shrinkStep)
	body, err := difference(e.object, &want)
	if err != nil {
		l.warn(e, "Failed to encode status", err, "")
		return request{}
	}
	if body == nil || e.isRepeat(body) {
		return request{}
	}
	return request{verb: patch, key: e.key, uid: e.object.UID, body: body, report: r}
}
