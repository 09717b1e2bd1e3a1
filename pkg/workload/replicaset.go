package workload

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/nodectl/nodectl/pkg/pod"
)

// nextReplicaSet keeps the number of pods. As in Kubernetes, a change of the template affects only
// pods that are made after it. A Failed pod counts as a pod that is not ready, because the engine
// starts it again.
func nextReplicaSet(in Input) Decision {
	spec := &in.Object.Object.(*appsv1.ReplicaSet).Spec
	want := replicasOf(spec.Replicas)
	r := newResult(&in)
	pods := slices.SortedFunc(r.present(), scaleDownOrder)
	cut := max(0, len(pods)-want)
	reason := fmt.Sprintf("replicas is %d, and %d pods exist", want, len(pods))
	for _, p := range pods[:cut] {
		r.remove(p, reason)
		r.event(v1.EventTypeNormal, "SuccessfulDelete", "Deleted pod: "+p.Spec.Name)
	}
	kept := pods[cut:]
	for _, p := range kept {
		r.keep(p)
	}
	for _, name := range freeNames(in.Object.Name, "", want-len(kept), r.taken) {
		r.add(in.newPod(&spec.Template, podParts{
			name: name, generateName: generateName(in.Object.Name), owner: in.owner(), positions: in.Object.Positions,
		}), reason)
		r.event(v1.EventTypeNormal, "SuccessfulCreate", "Created pod: "+name)
	}
	terminating := r.terminating()
	status := &appsv1.ReplicaSetStatus{Replicas: int32(want), TerminatingReplicas: &terminating}
	c := r.count(kept, spec.MinReadySeconds)
	status.ReadyReplicas, status.AvailableReplicas = c.ready, c.available
	for _, s := range r.out.Pods {
		if hasLabels(s.Pod.Labels, spec.Template.Labels) {
			status.FullyLabeledReplicas++
		}
	}
	r.out.Status = status
	return r.finish()
}

// replicasOf returns the number of replicas of a workload.
func replicasOf(field *int32) int { return int(min(ptr.Deref(field, 1), pod.MaxReplicas)) }

func hasLabels(labels, required map[string]string) bool {
	for k, v := range required {
		if have, ok := labels[k]; !ok || have != v {
			return false
		}
	}
	return true
}

// scaleDownOrder compares two pods of a ReplicaSet by the order in which Kubernetes removes them.
// It is removalOrder with one more criterion after the readiness: the pod with the lower deletion
// cost goes first.
func scaleDownOrder(a, b Pod) int {
	return cmp.Or(byReadiness(a, b), cmp.Compare(a.deletionCost(), b.deletionCost()), removalOrder(a, b))
}

// removalOrder compares two pods of a Job by the order in which Kubernetes removes them: pending
// before running, not ready before ready, ready for a shorter time before a longer one, more
// restarts before fewer, younger before older. Kubernetes compares the times of a ReplicaSet's pods
// on a logarithmic scale, and chooses by the UID within one step of it. nodectl always removes the
// younger pod.
func removalOrder(a, b Pod) int {
	if c := byReadiness(a, b); c != 0 {
		return c
	}
	if a.isReady() {
		if c := newestFirst(a.readyCondition().LastTransitionTime.Time, b.readyCondition().LastTransitionTime.Time); c != 0 {
			return c
		}
	}
	return cmp.Or(
		cmp.Compare(b.restarts(), a.restarts()),
		newestFirst(a.startedAt(), b.startedAt()),
		strings.Compare(b.Spec.Name, a.Spec.Name),
	)
}

// byReadiness compares two pods by their phases, and then by whether they are ready.
func byReadiness(a, b Pod) int {
	readyLast := func(p Pod) int {
		if p.isReady() {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(phaseOrder(a), phaseOrder(b)), cmp.Compare(readyLast(a), readyLast(b)))
}

// deletionCost returns the value of the annotation controller.kubernetes.io/pod-deletion-cost. As
// in Kubernetes, it is 0 if the pod lacks the annotation, or if the value is not an int32 in its
// shortest decimal form.
func (p Pod) deletionCost() int32 {
	text := p.Spec.Pod.Annotations[v1.PodDeletionCost]
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || strings.HasPrefix(text, "+") || len(text) > 1 && text[0] == '0' {
		return 0
	}
	return int32(n)
}

func phaseOrder(p Pod) int {
	switch p.phase() {
	case v1.PodRunning:
		return 3
	case v1.PodUnknown:
		return 2
	case v1.PodPending:
		return 1
	}
	return 0 // it has terminated
}

// newestFirst compares two times. A zero time is the newest.
func newestFirst(a, b time.Time) int {
	if a.IsZero() || b.IsZero() {
		return cmp.Compare(zeroOrder(a), zeroOrder(b))
	}
	return b.Compare(a)
}

func zeroOrder(t time.Time) int {
	if t.IsZero() {
		return 0
	}
	return 1
}
