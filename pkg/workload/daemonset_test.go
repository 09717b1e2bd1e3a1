package workload

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
)

func webDaemonSet(surge, unavailable string) *appsv1.DaemonSet {
	d := &appsv1.DaemonSet{Spec: appsv1.DaemonSetSpec{Selector: webSelector(), Template: webTemplate("web:1")}}
	d.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{MaxSurge: webAmount(surge), MaxUnavailable: webAmount(unavailable)}
	return d
}

func setDaemonImage(w *world, image string) {
	edit(w, func(d *appsv1.DaemonSet) { d.Spec.Template.Spec.Containers[0].Image = image })
}

func TestDaemonSet_TemplateChanges_OldPodStopsFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t, workloadOf(KindDaemonSet, webDaemonSet("", "")))
	w.expect("r1=0/1")
	labels := w.pods[0].Spec.Pod.Labels
	equal(t, "the label pod-template-generation", labels["pod-template-generation"], "1")
	equal(t, "the hash", labels["controller-revision-hash"], w.state.Revisions[0].Hash)
	w.settle()
	setDaemonImage(w, "web:2")
	w.expect("stopping=1")
	w.checkIdempotent()
	w.gone()
	w.expect("r2=0/1")
	equal(t, "the label pod-template-generation", w.pods[0].Spec.Pod.Labels["pod-template-generation"], "2")
	w.settle()
	w.expect("r2=1/1")
	equal(t, "the steps", w.steps(), "")
}

func TestDaemonSet_MaxSurge_OldPodStaysUntilTheNewOneIsAvailable(t *testing.T) {
	t.Parallel()
	w := newWorld(t, workloadOf(KindDaemonSet, webDaemonSet("1", "0")))
	edit(w, func(d *appsv1.DaemonSet) { d.Spec.MinReadySeconds = 10 })
	w.next()
	w.settle()
	w.now = w.now.Add(time.Minute)
	setDaemonImage(w, "web:2")
	w.expect("r1=1/1 r2=0/1")
	w.settle()
	w.expect("r1=1/1 r2=1/1")
	equal(t, "the next decision", w.wake(), w.now.Add(10*time.Second).UTC())
	w.now = w.last.Wake
	w.expect("r2=1/1 stopping=1")
	w.gone()

	setDaemonImage(w, "web:3")
	w.set(v1.ConditionFalse, allPods)
	w.expect("r3=0/1 stopping=1")
}

func TestDaemonSet_OnDelete_NewPodFollowsWhenTheOldOneBeginsAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, workloadOf(KindDaemonSet, webDaemonSet("", "")))
	edit(w, func(d *appsv1.DaemonSet) {
		d.Spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}
	})
	w.next()
	w.settle()
	w.now = w.now.Add(time.Minute)
	setDaemonImage(w, "web:2")
	w.expect("r1=1/1")
	w.now = w.now.Add(time.Minute)
	w.pods[0].Status = nil
	w.expect("r1=0/1")
	w.settle()
	w.expect("stopping=1")
	w.gone()
	w.expect("r2=0/1")
}

func TestDaemonSet_Status_CountsTheOldestPod(t *testing.T) {
	t.Parallel()
	w := newWorld(t, workloadOf(KindDaemonSet, webDaemonSet("1", "0")))
	w.next()
	equal(t, "the status of a new pod", asJSON(t, w.last.Status), asJSON(t, appsv1.DaemonSetStatus{
		DesiredNumberScheduled: 1, CurrentNumberScheduled: 1, UpdatedNumberScheduled: 1, NumberUnavailable: 1,
	}))
	w.settle()
	setDaemonImage(w, "web:2")
	w.next()
	equal(t, "the status during an update", asJSON(t, w.last.Status), asJSON(t, appsv1.DaemonSetStatus{
		DesiredNumberScheduled: 1, CurrentNumberScheduled: 1, NumberReady: 1, NumberAvailable: 1,
	}))
	w.settle()
	w.next()
	w.gone()
	w.next()
	equal(t, "the status after an update", asJSON(t, w.last.Status), asJSON(t, appsv1.DaemonSetStatus{
		DesiredNumberScheduled: 1, CurrentNumberScheduled: 1, NumberReady: 1, NumberAvailable: 1, UpdatedNumberScheduled: 1,
	}))
}

// The pod has the hash of an earlier version, with other defaults.
func TestDaemonSet_StateIsLost_NothingIsReplaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t, workloadOf(KindDaemonSet, webDaemonSet("", "")))
	w.state.Revisions = []Revision{{Number: 4, First: 4, Hash: "5d4f8c7b9", Template: webTemplate("web:1")}}
	w.next()
	w.settle()
	w.restart()
	w.state = State{}
	w.expect("r1=1/1")
	equal(t, "the steps", w.steps(), "")
	equal(t, "the hash", w.state.Revisions[0].Hash, "5d4f8c7b9")
}
