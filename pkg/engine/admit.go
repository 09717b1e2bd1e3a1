package engine

import (
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
)

// counted is the spec by which admission counts the pod: the one whose resources are allocated
// to it. While nothing is allocated, it is the last desired one.
func (e *entry) counted() *pod.Spec {
	if e.allocated != nil {
		return e.allocated
	}
	return e.lastWant
}

// allocation caches the result of withAllocated (spec) with its two inputs.
type allocation struct{ requested, allocated, spec *pod.Spec }

// withAllocated is the desired spec with the resources that are allocated to the pod. While a
// resize is pending, they differ from the requested ones. A container that starts meanwhile
// gets the allocated ones (C-1.34.1).
func (e *entry) withAllocated() *pod.Spec {
	if e.keepsUID() || e.keepsContainers() {
		return e.allocated
	}
	if e.resize == (refusal{}) || e.want == nil || e.allocated == nil {
		return e.want
	}
	if e.allocation.requested != e.want || e.allocation.allocated != e.allocated {
		e.allocation = allocation{e.want, e.allocated, e.want.WithResourcesOf(e.allocated)}
	}
	return e.allocation.spec
}

// requested is the desired spec with the resources that it requests: the pod's status shows
// it. If an edit of the UID or of the containers was refused, it is the spec of the running
// instance.
func (e *entry) requested() *pod.Spec {
	if e.keepsUID() || e.keepsContainers() {
		return e.allocated
	}
	return e.want
}

// keepsUID reports whether an edit of the pod's UID was refused: the instance of the old UID
// continues. A pod of an API server with another UID is another pod, and the old one stops.
func (e *entry) keepsUID() bool {
	return e.want != nil && e.admitted && e.refused != (refusal{}) && !e.want.Origin.FromAPI() &&
		e.allocated != nil && !e.allocated.Origin.FromAPI() && e.allocated.UID() != e.want.UID()
}

// keepsContainers reports whether an edit that needs no new instance was refused. Such an edit adds
// a container that cannot get the exclusive CPUs or NUMA memory that it requests.
func (e *entry) keepsContainers() bool {
	return e.want != nil && e.admitted && e.refused != (refusal{}) && e.allocated != nil && !plan.Replaces(e.allocated, e.want)
}

// admitEdits judges the edits of admitted pods: edits of resources (C-1.34.3), and edits that need
// a new instance. The order is that in which the loop first knew the pods. A refused edit leaves
// the pod as it is; the next call judges it again.
//
// counted holds the specs by which admission counts the pods on the node. The result holds the
// same specs with the accepted edits. waiting holds refused pods that an API server has assigned
// to this node: an edit does not get the room that they wait for. want holds the desired pods that
// are not admitted. An edit does not get the UID of such a pod, unless the author of the pod
// chose that UID and the author of the edit did not (pod.ClaimsUID). admitEdits adds the UIDs that
// the edits use to node.UIDs, so that no pod in want gets them.
func (l *loop) admitEdits(counted, waiting, want []*pod.Spec, node plan.Node) []*pod.Spec {
	// For an edit, pods that stop count like all others: it does not wait for their end. Pressure
	// of the node does not count, since an edit replaces a pod that runs.
	node.Terminating, node.Pressure = nil, nil
	owners := make(map[string]*pod.Spec, len(want))
	for _, spec := range want {
		if other := owners[spec.UID()]; other == nil || pod.HasChosenUID(other) {
			owners[spec.UID()] = spec
		}
	}
	var edits *plan.Edits
	for i, was := range counted {
		e := l.pods[was.Key]
		if e == nil || e.want == nil || !e.admitted || e.want == was {
			continue
		}
		if edits == nil {
			edits = plan.NewEdits(slices.Concat(counted, waiting), node)
		}
		var resize, refused refusal
		var detail string
		replaces := plan.Replaces(was, e.want)
		if replaces {
			uid := e.want.UID()
			owner := owners[uid]
			_, held := node.UIDs[uid]
			owned := !held && owner != nil && (pod.HasChosenUID(e.want) || !pod.HasChosenUID(owner))
			if owned {
				node.UIDs[uid] = owner.Key // only while this edit is judged
			}
			if r, is := edits.Check(e.want, was); is {
				refused, detail = refusal{reason: r.Reason, message: r.Message}, r.Detail
			}
			if owned {
				delete(node.UIDs, uid)
			}
		} else if changed, r := edits.Place(e.want, was); r != nil {
			refused = refusal{reason: r.Reason, message: r.Message}
		} else {
			resize.reason, resize.message = edits.FitResize(e.want, was)
			if changed {
				e.setPlacedByEdit(node.CPUs, e.want.UID())
			}
		}
		if resize == (refusal{}) && refused == (refusal{}) {
			if otherResources(was, e.want, node.Disabled) && !replaces {
				l.env.recorder.event(e.key, e.want.UID(), "", pod.EventNormal, eventResizeStarted, resizeText("started", e.want, ""))
			}
			if was.UID() != e.want.UID() { // the old instance has that UID until it is gone
				e.hold(was.UID())
				node.UIDs[was.UID()] = e.key
			}
			edits.Accept(e.want, was)
			if replaces {
				e.setPlacedByEdit(node.CPUs, e.want.UID())
			}
			counted[i], e.allocated = e.want, e.want
		}
		if e.resize != resize || e.refused != refused {
			if resize != (refusal{}) && e.resize != resize {
				l.env.recorder.event(e.key, e.want.UID(), "", pod.EventWarning, eventResize+resize.reason, resizeText(resize.reason, e.want, resize.message))
				l.log.Warn("Resize is pending", "pod", e.key.String(), "reason", resize.reason, "message", resize.message)
			}
			if refused != (refusal{}) && e.refused != refused {
				l.env.recorder.event(e.key, e.want.UID(), "", pod.EventWarning, refused.reason, refused.message)
				l.log.Warn("Edit not admitted; the pod keeps running unchanged", "pod", e.key.String(), "reason", refused.reason, "message", refused.message, "detail", detail)
			}
			e.resize, e.refused = resize, refused
			l.queueUpdate(e, true)
		}
		if _, held := node.UIDs[e.want.UID()]; refused != (refusal{}) && !held && !pod.HasChosenUID(e.want) {
			node.UIDs[e.want.UID()] = e.key // no pod in want gets the UID before this edit does
		}
	}
	return counted
}

// otherResources reports whether want has other resources than was.
func otherResources(was, want *pod.Spec, off pod.Disabled) bool {
	if a, b := was.Pod.Spec.Resources, want.Pod.Spec.Resources; a != nil && b != nil && len(pod.ResourcesChanged(pod.ResourcesText(*a), pod.ResourcesText(*b))) > 0 {
		return true
	}
	for n, list := range [][]v1.Container{want.Pod.Spec.InitContainers, want.Pod.Spec.Containers} {
		for i := range list {
			if n == 0 && off.Has(pod.FeatureInitResize) && !pod.Restartable(&list[i]) {
				continue
			}
			if name := list[i].Name; len(pod.ResourcesChanged(was.Resources(name), want.Resources(name))) > 0 {
				return true
			}
		}
	}
	return false
}

// hold notes UIDs under which an instance of the pod may exist. Directories, records and
// users are keyed by UID. So no other pod gets one of them before the pod's worker reports
// that the instance is gone.
func (e *entry) hold(uids ...string) {
	for _, uid := range uids {
		if uid != "" && !slices.Contains(e.holds, uid) {
			e.holds = append(e.holds, uid)
		}
	}
}

// noteHolds updates e.holds from a report. Only a report about the newest update removes UIDs:
// after an older one the worker may still have begun an instance. A report without a list of
// UIDs removes none: its worker is in quarantine, and containers may run. freed says that
// e.holds lost a UID, which another pod may use now.
func (e *entry) noteHolds(r *report) (freed bool) {
	before := e.holds
	if r.gen == e.gen && r.looked() {
		e.holds = nil
	}
	e.hold(r.holds...)
	return slices.ContainsFunc(before, func(uid string) bool { return !slices.Contains(e.holds, uid) })
}

// mayRunAgain reports whether want, an edit, may start the terminated pod again.
func (e *entry) mayRunAgain(want *pod.Spec) bool {
	if e.lastWant == nil || want.UID() != e.lastWant.UID() {
		return true
	}
	return !e.refused.final && plan.RestartsTerminated(e.lastWant, want)
}

// schedulerIgnores reports whether a scheduler of an API server does not count the pod any more.
// Then its source does not define it, or its phase is Succeeded or Failed. Admission counts it
// until it is gone.
func (e *entry) schedulerIgnores() bool {
	return e.want == nil || endedAtServer(e.want) || e.last != nil && e.last.ended
}

// admit judges every desired pod that is not admitted, and the edits of admitted pods (C-1.31).
// The loop calls it after each change of the desired set, of used room, ports and UIDs, and of the
// node's pressures, halt and devices. Each call judges the refused pods again, except those that
// were refused finally.
func (l *loop) admit(ctx context.Context) {
	node := l.node()
	if node.CPUs = l.cpuState(node.Devices); node.CPUs != nil {
		l.placeAgain(node.CPUs)
	}
	l.admitOn(ctx, node)
	l.noteCPUs(node.CPUs)
}

// admitOn is admit for a given state of the node. It adds the allocations of the pods that it admits
// to node.CPUs.
func (l *loop) admitOn(ctx context.Context, node plan.Node) {
	var want, counted, waiting []*pod.Spec
	node.UIDs, node.Terminating = make(map[string]pod.Key), make(map[pod.Key]bool)
	for _, e := range l.sorted() {
		for _, uid := range e.holds {
			node.UIDs[uid] = e.key
		}
		switch {
		case (deleting(e.want) || endedAtServer(e.want)) && !e.admitted:
			// It never runs here. Its worker only reports its end.
			l.forgetOrder(e)
			l.order.current = false
			e.admitted, e.ended, e.refused = true, true, refusal{}
			e.lastWant = nil // it takes no room, and uses no UID
			l.queueUpdate(e, true)
		case e.want != nil && !e.admitted && !e.refused.final:
			want = append(want, e.want)
			if e.refused != (refusal{}) && e.want.Origin.FromAPI() {
				waiting = append(waiting, e.want)
			}
		case !e.admitted && !e.ended: // neither desired nor admitted: it takes no room
		case e.lastWant != nil && !e.ended:
			counted = append(counted, e.counted()) // also while it stops
			if e.schedulerIgnores() {
				node.Terminating[e.key] = true
			}
		case e.lastWant != nil:
			node.UIDs[e.counted().UID()] = e.key
		}
	}
	for _, key := range sortedKeys(l.orphans) {
		o := l.orphans[key]
		for _, uid := range o.uids() {
			node.UIDs[uid] = key
		}
		if o.Spec != nil && !o.Terminated() {
			counted = append(counted, o.Spec)
			node.Terminating[key] = true // it stops, unless a source that has not answered defines it
		}
	}
	counted = l.admitEdits(counted, waiting, want, node)
	if len(want) == 0 {
		l.nodeState.pending = false
		return
	}
	ok, refused := plan.Admit(want, counted, node)
	for _, spec := range ok {
		e := l.pods[spec.Key]
		e.admitted, e.ended, e.refused, e.allocated, e.resize = true, false, refusal{}, spec, refusal{}
		e.setPlaced(node.CPUs, spec.UID())
		l.noteOrder(e)
		l.queueUpdate(e, true)
	}
	l.nodeState.pending = false
	for _, r := range refused {
		if l.isEarly(r) {
			l.nodeState.pending = true
			continue
		}
		e := l.pods[r.Spec.Key]
		if now := (refusal{r.Reason, r.Message, r.Final}); e.refused != now {
			e.refused = now
			e.ended = r.Final
			l.env.recorder.event(e.key, r.Spec.UID(), "", pod.EventWarning, r.Reason, r.Message)
			l.log.Warn("Pod not admitted", "pod", e.key.String(), "reason", r.Reason, "message", r.Message, "detail", r.Detail)
			l.queueUpdate(e, true)
		}
	}
}
