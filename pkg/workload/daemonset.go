package workload

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// labelGeneration is the label by which older controllers recognised the pods of a template.
const labelGeneration = "pod-template-generation"

// daemonSet is one decision about a DaemonSet.
type daemonSet struct {
	*result
	spec   *appsv1.DaemonSetSpec
	list   []Revision
	newest *Revision
	pods   []Pod // of the set, the oldest first
	adds   bool  // the decision adds a pod of the newest revision
	reason string
}

// nextDaemonSet keeps one pod on this node. It decides as Kubernetes' DaemonSet controller does for
// a cluster of one node that fits the pod. It ignores nodeSelector, affinity and tolerations of the
// template, because a manifest without an API server is for the node that reads it. The pod gets no
// node affinity and none of the controller's tolerations, because no scheduler reads them. A Failed
// pod counts as not available: the engine starts it again.
//
// Without maxSurge, the decision adds the new pod when the old one is gone. With maxSurge, the old
// pod stays until the new one is available. With the strategy OnDelete, the new pod replaces the
// old one when the old one begins another instance, after a deletion by a user or an eviction.
func nextDaemonSet(in Input) Decision {
	d := newDaemonSet(&in)
	for changed := true; changed; {
		changed = d.step()
	}
	return d.decide()
}

func newDaemonSet(in *Input) *daemonSet {
	d := &daemonSet{result: newResult(in), spec: &in.Object.Object.(*appsv1.DaemonSet).Spec}
	t := &d.spec.Template
	d.list = adopt(in, in.State.Revisions, t, appsv1.ControllerRevisionHashLabelKey, labelGeneration)
	d.list = revise(d.list, t, in.Now, func(collisions int32) string { return templateHash(t, collisions) })
	d.newest = &d.list[len(d.list)-1]
	d.pods = slices.SortedFunc(d.present(), oldestFirst)
	return d
}

func oldestFirst(a, b Pod) int {
	return cmp.Or(newestFirst(b.startedAt(), a.startedAt()), strings.Compare(a.Spec.Name, b.Spec.Name))
}

// surges reports whether the new pod may run beside the old one (maxSurge).
func (d *daemonSet) surges() bool {
	r := d.spec.UpdateStrategy.RollingUpdate
	return d.rolls() && r != nil && portion(ptr.Deref(r.MaxSurge, intstr.FromInt32(0)), 1, true) > 0
}

func (d *daemonSet) rolls() bool {
	return d.spec.UpdateStrategy.Type != appsv1.OnDeleteDaemonSetStrategyType
}

func (d *daemonSet) isNew(p Pod) bool {
	return p.Spec.Pod.Labels[appsv1.ControllerRevisionHashLabelKey] == d.newest.Hash
}

func (d *daemonSet) isAvailable(p Pod) bool {
	available, _ := p.isAvailable(d.spec.MinReadySeconds, d.in.Now)
	return available
}

// step changes one pod of the set, and reports whether it did.
func (d *daemonSet) step() bool {
	if d.surges() {
		return d.stepSurging()
	}
	switch {
	case d.adds:
	case len(d.pods) == 0 && d.terminating() == 0:
		return d.create("the node has no pod")
	case len(d.pods) > 1:
		return d.drop(len(d.pods)-1, "the node has more than one pod")
	case len(d.pods) == 1 && !d.isNew(d.pods[0]) && (d.rolls() || d.pods[0].beganAfter(d.newest.Since.Time)):
		return d.drop(0, d.replaces(d.pods[0])+": the old pod stops first")
	}
	return false
}

func (d *daemonSet) stepSurging() bool {
	fresh := slices.IndexFunc(d.pods, d.isNew)
	old := slices.IndexFunc(d.pods, func(p Pod) bool { return !d.isNew(p) })
	for i, p := range d.pods {
		if i != fresh && i != old {
			return d.drop(i, fmt.Sprintf("the node has another pod of %s", d.revisionOf(p)))
		}
	}
	has := fresh >= 0 || d.adds
	switch {
	case old < 0 && !has:
		return d.create("the node has no pod")
	case old < 0:
	case !has:
		return d.create(d.replaces(d.pods[old]) + ": the new pod starts beside the old one (maxSurge)")
	case !d.pods[old].isReady():
		return d.drop(old, d.replaces(d.pods[old])+": the old pod is not ready")
	case fresh >= 0 && d.isAvailable(d.pods[fresh]):
		return d.drop(old, d.replaces(d.pods[old])+": the new pod is available")
	}
	return false
}

func (d *daemonSet) create(reason string) bool {
	d.adds, d.reason = true, reason
	return true
}

func (d *daemonSet) drop(i int, reason string) bool {
	p := d.pods[i]
	d.pods = slices.Delete(d.pods, i, i+1)
	d.remove(p, reason)
	d.event(v1.EventTypeNormal, "SuccessfulDelete", "Deleted pod: "+p.Spec.Name)
	return true
}

func (d *daemonSet) replaces(old Pod) string {
	return fmt.Sprintf("revision %d replaces %s", d.newest.Number, d.revisionOf(old))
}

func (d *daemonSet) revisionOf(p Pod) string {
	if i := indexOf(d.list, p.Spec.Pod.Labels[appsv1.ControllerRevisionHashLabelKey]); i >= 0 {
		return fmt.Sprintf("revision %d", d.list[i].Number)
	}
	return "an older revision"
}

func (d *daemonSet) decide() Decision {
	for _, p := range d.pods {
		d.keep(p)
	}
	shown := slices.Clone(d.pods) // the pods that the status counts
	for _, p := range d.in.Pods {
		if !p.isTerminated() && !slices.ContainsFunc(d.pods, func(q Pod) bool { return q.Spec == p.Spec }) {
			shown = append(shown, p)
		}
	}
	if d.adds {
		name, in := d.in.Object.Name, d.in
		s := in.newPod(&d.newest.Template, podParts{
			name: freeNames(name, d.newest.Hash, 1, d.taken)[0], generateName: generateName(name), owner: in.owner(),
			labels: map[string]string{
				appsv1.ControllerRevisionHashLabelKey: d.newest.Hash,
				labelGeneration:                       strconv.FormatInt(d.newest.Number, 10),
			},
			positions: in.Object.Positions,
		})
		d.add(s, d.reason)
		d.event(v1.EventTypeNormal, "SuccessfulCreate", "Created pod: "+s.Name)
		shown = append(shown, Pod{Spec: s})
	}
	d.out.Status = d.status(shown)
	d.out.State = State{Revisions: d.list}
	d.out.history = &history{d.spec.RevisionHistoryLimit, func(r *Revision) bool {
		return slices.ContainsFunc(d.in.Pods, func(p Pod) bool { return p.Spec.Pod.Labels[appsv1.ControllerRevisionHashLabelKey] == r.Hash })
	}}
	return d.finish()
}

// status returns the status. As in Kubernetes, it counts only the oldest pod of the node, even if
// that pod is terminating.
func (d *daemonSet) status(pods []Pod) *appsv1.DaemonSetStatus {
	s := &appsv1.DaemonSetStatus{DesiredNumberScheduled: 1}
	if len(pods) > 0 {
		oldest := slices.MinFunc(pods, oldestFirst)
		c := d.count([]Pod{oldest}, d.spec.MinReadySeconds)
		s.CurrentNumberScheduled, s.NumberReady, s.NumberAvailable = 1, c.ready, c.available
		if d.isNew(oldest) {
			s.UpdatedNumberScheduled = 1
		}
	}
	d.count(d.pods, d.spec.MinReadySeconds) // the new pod may become available first
	s.NumberUnavailable = s.DesiredNumberScheduled - s.NumberAvailable
	return s
}
