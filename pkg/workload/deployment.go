package workload

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/nodectl/nodectl/pkg/pod"
)

// deployment is one decision about a Deployment. It has a ReplicaSet for each revision, as in
// Kubernetes. These ReplicaSets exist only in the State. The names and owner references of pods come
// from them.
type deployment struct {
	*result
	spec                   *appsv1.DeploymentSpec
	replicas               int32
	surge, unavailable     int32  // numbers of pods; 0 with the strategy Recreate
	surgeText, missingText string // maxSurge and maxUnavailable as the manifest writes them
	rolling                bool
	before                 *DeploymentState // the state of the last decision; nil if unknown
	conditions             []appsv1.DeploymentCondition
	sets                   []*replicaSet // in the order of the revisions
	newest                 *replicaSet   // nil while the revision of the template does not exist
	scalings               int
}

// replicaSet is one ReplicaSet of a Deployment. Its field Replicas, from Revision, is the number of
// pods that the decision gives it.
type replicaSet struct {
	Revision
	name   string
	pods   []Pod // in the set before the decision, in the order of their removal
	was    int32 // Replicas before the decision
	reason string
	order  int // its place among the ReplicaSets that this decision scales, from 1; else 0
}

// kept returns the pods that stay.
func (s *replicaSet) kept() []Pod { return s.pods[max(0, len(s.pods)-int(s.Replicas)):] }

// nextDeployment decides as Kubernetes' Deployment controller and the ReplicaSets under it do
// until nothing more changes without a change of a pod.
//
// A pod without a status, and a Failed one, count as pods that are not ready: the engine starts
// them. Pods that the node still stops count as terminating: they are not replicas. With the
// strategy Recreate, no pod is added before they are gone.
func nextDeployment(in Input) Decision {
	d := newDeployment(&in)
	if d.isRescaled() || d.spec.Paused {
		d.rescale()
	}
	switch {
	case d.spec.Paused:
	case d.rolling:
		d.roll()
	default:
		d.recreate()
	}
	return d.decide()
}

func newDeployment(in *Input) *deployment {
	spec := &in.Object.Object.(*appsv1.Deployment).Spec
	d := &deployment{result: newResult(in), spec: spec, replicas: int32(replicasOf(spec.Replicas)), before: in.State.Deployment}
	if d.before != nil {
		d.conditions = slices.Clone(d.before.Conditions)
	}
	d.setStrategy()
	d.notePause()
	d.findSets()
	return d
}

// setStrategy resolves maxSurge, rounded up, and maxUnavailable, rounded down. If both are 0,
// one pod may be unavailable.
func (d *deployment) setStrategy() {
	d.rolling = d.spec.Strategy.Type != appsv1.RecreateDeploymentStrategyType
	if !d.rolling {
		return
	}
	surge, missing := intstr.FromString("25%"), intstr.FromString("25%")
	if r := d.spec.Strategy.RollingUpdate; r != nil {
		surge, missing = ptr.Deref(r.MaxSurge, surge), ptr.Deref(r.MaxUnavailable, missing)
	}
	d.surgeText, d.missingText = surge.String(), missing.String()
	d.surge, d.unavailable = portion(surge, d.replicas, true), portion(missing, d.replicas, false)
	if d.surge == 0 && d.unavailable == 0 {
		d.unavailable = 1
	}
	d.unavailable = min(d.unavailable, d.replicas)
}

// portion returns a number or percentage of total.
func portion(v intstr.IntOrString, total int32, up bool) int32 {
	n, err := intstr.GetScaledValueFromIntOrPercent(&v, int(total), up)
	if err != nil {
		return 0 // validation rejects it
	}
	return int32(min(max(n, 0), pod.MaxReplicas))
}

// findSets makes the ReplicaSets, and assigns the pods to them. As in Kubernetes, a paused
// Deployment gets no new revision. With the strategy Recreate, a Deployment gets one only when the
// old pods are gone.
func (d *deployment) findSets() {
	t, list := &d.spec.Template, adopt(d.in, d.in.State.Revisions, &d.spec.Template, appsv1.DefaultDeploymentUniqueLabelKey)
	known := indexOfTemplate(list, t) >= 0
	hasNewest := known || !d.spec.Paused && (d.rolling || !d.oldPodsRun(""))
	if hasNewest {
		list = revise(list, t, d.in.Now, func(collisions int32) string { return templateHash(t, collisions) })
	}
	for i := range list {
		s := &replicaSet{Revision: list[i], was: list[i].Replicas, name: replicaSetName(d.in.Object.Name, list[i].Hash)}
		for p := range d.present() {
			if p.Spec.Pod.Labels[appsv1.DefaultDeploymentUniqueLabelKey] == s.Hash {
				s.pods = append(s.pods, p)
			}
		}
		slices.SortFunc(s.pods, scaleDownOrder)
		if n := int32(len(s.pods)); indexOf(d.in.State.Revisions, s.Hash) < 0 || !s.isKnown() && s.Replicas > n {
			s.Replicas, s.was = n, n // a new ReplicaSet, or one of which only the pods are known
		}
		d.sets = append(d.sets, s)
	}
	if !hasNewest {
		return
	}
	d.newest = d.sets[len(d.sets)-1]
	switch _, limited := d.deadline(); {
	case !limited:
	case !known:
		d.setCondition(appsv1.DeploymentProgressing, v1.ConditionTrue, "NewReplicaSetCreated", fmt.Sprintf("Created new replica set %q", d.newest.name))
	case d.condition(appsv1.DeploymentProgressing) == nil:
		d.setCondition(appsv1.DeploymentProgressing, v1.ConditionTrue, "FoundNewReplicaSet", fmt.Sprintf("Found new replica set %q", d.newest.name))
	}
}

// replicaSetName returns the name of the ReplicaSet of a revision, cut to the same length as in
// Kubernetes.
func replicaSetName(deployment, hash string) string {
	const most = 253
	return deployment[:min(len(deployment), most-1-len(hash))] + "-" + hash
}

// oldPodsRun reports whether pods whose revision has another hash may run. As in Kubernetes, a
// terminated pod does not count.
func (d *deployment) oldPodsRun(hash string) bool {
	return slices.ContainsFunc(d.in.Pods, func(p Pod) bool {
		return p.Spec.Pod.Labels[appsv1.DefaultDeploymentUniqueLabelKey] != hash && !p.isTerminated()
	})
}

// scale sets the number of pods of a ReplicaSet, and reports whether the number changes.
func (d *deployment) scale(s *replicaSet, n int32, reason string) bool {
	if !s.isKnown() {
		n = min(n, int32(len(s.pods)))
	}
	if n == s.Replicas {
		return false
	}
	d.scalings++
	s.Replicas, s.reason, s.order = n, reason, cmp.Or(s.order, d.scalings)
	return true
}

// old returns the ReplicaSets of older revisions that have pods, the oldest first.
func (d *deployment) old() []*replicaSet {
	var out []*replicaSet
	for _, s := range d.sets {
		if s != d.newest && s.Replicas > 0 {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, byAge)
	return out
}

func byAge(a, b *replicaSet) int { return cmp.Compare(a.First, b.First) }

func total(sets []*replicaSet) int32 {
	var n int32
	for _, s := range sets {
		n += s.Replicas
	}
	return n
}

func (d *deployment) available(s *replicaSet) int32 {
	return d.count(s.kept(), d.spec.MinReadySeconds).available
}

// decide returns the decision that follows from the sizes of the ReplicaSets.
func (d *deployment) decide() Decision {
	d.out.Wake = time.Time{} // a count before the last call of scale may have set it
	for _, s := range slices.SortedStableFunc(slices.Values(d.sets), func(a, b *replicaSet) int { return cmp.Compare(a.order, b.order) }) {
		d.apply(s)
	}
	status := d.status()
	d.setConditions(status)
	status.Conditions = slices.Clone(d.conditions)
	d.out.Status = status

	list := make([]Revision, 0, len(d.sets))
	for _, s := range d.sets {
		list = append(list, s.Revision)
	}
	complete := d.isComplete(status)
	if complete || d.spec.Paused {
		d.out.history = &history{d.spec.RevisionHistoryLimit, func(r *Revision) bool { return r.Replicas > 0 }}
	}
	state := &DeploymentState{Desired: d.replicas, Most: d.replicas + d.surge, Conditions: d.conditions}
	if d.before != nil {
		state.Complete = d.before.Complete
	}
	if complete {
		state.Complete = d.newest.Number
	} else {
		state.Ready, state.Available = status.ReadyReplicas, status.AvailableReplicas
	}
	d.out.State = State{Revisions: list, Deployment: state}
	return d.finish()
}

// apply adds to the decision the pods of a ReplicaSet that stay. It adds new pods until the
// ReplicaSet has Replicas pods.
func (d *deployment) apply(s *replicaSet) {
	kept := s.kept()
	for _, p := range s.pods[:len(s.pods)-len(kept)] {
		d.remove(p, s.reason)
	}
	for _, p := range kept {
		d.keep(p)
	}
	parts := podParts{
		generateName: generateName(s.name), owner: d.in.child(KindReplicaSet, s.name),
		labels: map[string]string{appsv1.DefaultDeploymentUniqueLabelKey: s.Hash},
	}
	if s == d.newest {
		parts.positions = d.in.Object.Positions
	}
	lacking := int(s.Replicas) - len(kept)
	reason := cmp.Or(s.reason, fmt.Sprintf("revision %d should have %d pods, and %d of them are missing", s.Number, s.Replicas, lacking))
	for _, parts.name = range freeNames(s.name, "", lacking, d.taken) {
		d.add(d.in.newPod(&s.Template, parts), reason)
	}
	switch {
	case s.Replicas > s.was:
		d.event(v1.EventTypeNormal, "ScalingReplicaSet", fmt.Sprintf("Scaled up replica set %s from %d to %d", s.name, s.was, s.Replicas))
	case s.Replicas < s.was:
		d.event(v1.EventTypeNormal, "ScalingReplicaSet", fmt.Sprintf("Scaled down replica set %s from %d to %d", s.name, s.was, s.Replicas))
	}
}
