package workload

import (
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
)

func webReplicaSet(replicas int32) *appsv1.ReplicaSet {
	return &appsv1.ReplicaSet{Spec: appsv1.ReplicaSetSpec{Replicas: &replicas, Selector: webSelector(), Template: webTemplate("web:1")}}
}

func TestReplicaSet_TemplateChanges_OnlyNewPodsHaveIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, workloadOf(KindReplicaSet, webReplicaSet(2)))
	w.next()
	w.settle()
	before := w.names()
	edit(w, func(rs *appsv1.ReplicaSet) {
		rs.Spec.Template.Spec.Containers[0].Image = "web:2"
		*rs.Spec.Replicas = 3
	})
	w.next()
	w.checkIdempotent()
	for _, p := range w.pods {
		want := "web:2"
		if slices.Contains(before, p.Spec.Name) {
			want = "web:1"
		}
		equal(t, p.Spec.Name, p.Spec.Pod.Spec.Containers[0].Image, want)
	}
	equal(t, "the number of pods", len(w.pods), 3)
}

func TestReplicaSet_ScaledDownAndUp_NamesAreUsedAgainWhenFree(t *testing.T) {
	t.Parallel()
	w := newWorld(t, workloadOf(KindReplicaSet, webReplicaSet(3)))
	w.next()
	w.settle()
	all := w.names()
	edit(w, func(rs *appsv1.ReplicaSet) { *rs.Spec.Replicas = 1 })
	w.next()
	edit(w, func(rs *appsv1.ReplicaSet) { *rs.Spec.Replicas = 2 })
	w.next()
	w.checkPods()
	if slices.ContainsFunc(w.stopping(), func(p Pod) bool { return slices.Contains(w.names(), p.Spec.Name) }) {
		t.Errorf("a new pod has the name of one that stops: %v", w.names())
	}
	w.gone()
	edit(w, func(rs *appsv1.ReplicaSet) { *rs.Spec.Replicas = 4 })
	w.next()
	for _, name := range all {
		if !slices.Contains(w.names(), name) {
			t.Errorf("the name %s is not used again: %v", name, w.names())
		}
	}
}

func TestReplicaSet_Status_CountsAsKubernetesDoes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, workloadOf(KindReplicaSet, webReplicaSet(3)))
	edit(w, func(rs *appsv1.ReplicaSet) { rs.Spec.MinReadySeconds = 5 })
	w.next()
	equal(t, "the events", w.last.Events[0], Event{v1.EventTypeNormal, "SuccessfulCreate", "Created pod: " + w.last.Steps[0].Key.Name})
	first := w.pods[0].Spec.Name
	w.set(v1.ConditionTrue, func(p Pod) bool { return p.Spec.Name == first })
	w.now = w.now.Add(5 * time.Second)
	second := w.pods[1].Spec.Name
	w.set(v1.ConditionTrue, func(p Pod) bool { return p.Spec.Name == second })
	edit(w, func(rs *appsv1.ReplicaSet) { *rs.Spec.Replicas = 2 })
	w.next()
	one := int32(1)
	equal(t, "the status", asJSON(t, w.last.Status), asJSON(t, appsv1.ReplicaSetStatus{
		Replicas: 2, FullyLabeledReplicas: 2, ReadyReplicas: 2, AvailableReplicas: 1, TerminatingReplicas: &one,
	}))
	equal(t, "the next decision", w.wake(), w.now.Add(5*time.Second).UTC())
}
