package workload

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// guarded sets an annotation of the workload to a value.
func guarded(w *world, name, value string) {
	switch w.object.Kind {
	case KindDeployment:
		edit(w, func(d *appsv1.Deployment) { d.Annotations = merged(d.Annotations, map[string]string{name: value}) })
	case KindStatefulSet:
		edit(w, func(d *appsv1.StatefulSet) { d.Annotations = merged(d.Annotations, map[string]string{name: value}) })
	case KindDaemonSet:
		edit(w, func(d *appsv1.DaemonSet) { d.Annotations = merged(d.Annotations, map[string]string{name: value}) })
	}
}

// crash lets the container of pods exit. again says that it has exited before, and waits now.
func crash(w *world, code int32, again bool, which func(Pod) bool) {
	ended := &v1.ContainerStateTerminated{ExitCode: code, Reason: "Error", FinishedAt: seconds(w.now)}
	c := v1.ContainerStatus{Name: "web", State: v1.ContainerState{Terminated: ended}}
	if again {
		c.State = v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
		c.LastTerminationState.Terminated, c.RestartCount = ended, 1
	}
	chosen := map[string]bool{}
	for _, p := range w.pods {
		chosen[p.Spec.UID()] = which(p) && !p.Leaving
	}
	w.set(v1.ConditionFalse, func(p Pod) bool { return chosen[p.Spec.UID()] })
	for i := range w.pods {
		if chosen[w.pods[i].Spec.UID()] {
			w.pods[i].Status.ContainerStatuses = []v1.ContainerStatus{c}
		}
	}
}

// onTrial returns a Deployment with two versions: revision 1 is complete, and the trial of
// revision 2 has begun.
func onTrial(t *testing.T) *world {
	t.Helper()
	w := newWorld(t, workloadOf(KindDeployment, webDeployment(2, "web:1", "1", "0")))
	guarded(w, pod.AnnotationRollback, pod.RollbackOnFailure)
	w.next()
	w.settle()
	w.next()
	w.now = w.now.Add(defaultTrial)
	w.next()
	w.checkIdempotent()
	setImage(w, "web:2")
	w.now = w.now.Add(time.Second)
	w.expect("r1=2/2 r2=0/1")
	return w
}

func (w *world) events() string {
	var out []string
	for _, e := range w.last.Events {
		if e.Reason != "ScalingReplicaSet" {
			out = append(out, e.Reason+": "+e.Message)
		}
	}
	return strings.Join(out, "\n")
}

// failedText returns the text for the failure of the revision with a number.
func (w *world) failedText(image string) string {
	for _, r := range w.state.Revisions {
		if r.Template.Spec.Containers[0].Image == image {
			return r.Failed
		}
	}
	return "no such revision"
}

func TestRollback_NewPodCrashesTwice_PreviousVersionStays(t *testing.T) {
	t.Parallel()
	w := onTrial(t)
	crash(w, 1, false, w.ofRevision(2))
	w.expect("r1=2/2 r2=0/1") // it may fail once while it starts
	w.now = w.now.Add(time.Second)
	crash(w, 1, true, w.ofRevision(2))
	failed := w.pods[len(w.pods)-1].Spec
	for _, p := range w.pods {
		if w.ofRevision(2)(p) {
			failed = p.Spec
		}
	}
	w.expect("r3=2/2 stopping=1")
	w.checkIdempotent()
	equal(t, "why", w.failedText("web:2"), "container web of pod "+failed.Name+" crashes: it exited with code 1 (Error)")
	equal(t, "the events", w.events(), "RevisionFailed: Revision 2 failed: "+w.failedText("web:2")+"\nDeploymentRollback: Rolled back deployment \"web\" to revision 1")
	override := w.state.Override.Fields()
	if len(override) != 1 || !override[0].Rollback || override[0].Field != "spec.template" || !strings.Contains(override[0].Why, "rollback to revision 1: revision 2 failed: container web") {
		t.Errorf("the override is %+v", override)
	}
	w.restart()
	for range 3 { // not tried again, however the agent restarts and the time passes
		w.settle()
		w.now = w.now.Add(time.Hour)
		w.expect("r3=2/2")
	}
	setImage(w, "web:3")
	w.expect("r3=2/2 r4=0/1")
	equal(t, "the override after another template", len(w.state.Override.Fields()), 0)
	equal(t, "the event", w.events(), "OverrideEnded: The override of spec.template has ended: its source has another value now")
}

func TestRollback_DecisionNamesThePodsOfTheFailedVersion(t *testing.T) {
	t.Parallel()
	w := onTrial(t)
	crash(w, 137, true, w.ofRevision(2))
	d := w.next()
	if d.Failed == nil || d.Failed.Number != 2 || len(d.Failed.Pods) != 1 || d.Failed.Pods[0].Pod.Spec.Containers[0].Image != "web:2" {
		t.Fatalf("%+v", d.Failed)
	}
	if d := w.next(); d.Failed != nil {
		t.Errorf("it fails twice: %+v", d.Failed)
	}
}

func TestRollback_ReadyPodCrashesOnce_PreviousVersionReturns(t *testing.T) {
	t.Parallel()
	w := onTrial(t)
	w.settle()
	w.expect("r1=1/1 r2=1/2 stopping=1")
	w.now = w.now.Add(3 * time.Second)
	ready := func(p Pod) bool { return w.ofRevision(2)(p) && p.isReady() }
	crash(w, 1, false, ready)
	w.gone()
	w.expect("r2=0/1 r3=1/2 stopping=1")
	w.settle()
	w.expect("r3=2/2 stopping=1")
}

func TestRollback_NeverReady_PreviousVersionReturnsAtTheDeadline(t *testing.T) {
	t.Parallel()
	w := onTrial(t)
	limit := int32(30)
	editDeployment(w, func(s *appsv1.DeploymentSpec) { s.ProgressDeadlineSeconds = &limit })
	w.expect("r1=2/2 r2=0/1")
	w.now = w.last.Wake
	w.expect("r3=2/2 stopping=1")
	equal(t, "why", w.failedText("web:2"), "its pods are not available within progressDeadlineSeconds")
	equal(t, "the condition", w.progressing(), "True NewReplicaSetAvailable")
}

func TestRollback_TrialPasses_VersionIsGood(t *testing.T) {
	t.Parallel()
	w := onTrial(t)
	guarded(w, pod.AnnotationRollbackTrial, "2m")
	for range 5 {
		w.next()
		w.settle()
	}
	w.expect("r2=2/2")
	equal(t, "the end of the trial", w.wake(), w.now.Add(2*time.Minute))
	w.now = w.last.Wake
	w.expect("r2=2/2")
	equal(t, "the trial is over", w.state.Trial.Over, true)
	crash(w, 1, true, allPods)
	w.expect("r2=0/2")
	equal(t, "the override", w.state.Override == nil, true)
}

func TestRollback_NotAvailableAtTheEndOfTheTrial_PreviousVersionReturns(t *testing.T) {
	t.Parallel()
	w := onTrial(t)
	for range 5 {
		w.next()
		w.settle()
	}
	w.next()
	w.set(v1.ConditionFalse, allPods)
	w.next()
	equal(t, "the end of the trial", w.wake(), w.now.Add(defaultTrial))
	w.now = w.last.Wake
	w.next()
	equal(t, "why", w.failedText("web:2"), "not all of its pods are available at the end of its trial of 1m0s")
}

func TestRollback_NoOtherVersion_SaysSoOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, workloadOf(KindDeployment, webDeployment(1, "web:1", "", "")))
	guarded(w, pod.AnnotationRollback, pod.RollbackOnFailure)
	w.next()
	crash(w, 1, true, allPods)
	w.expect("r1=0/1")
	if !strings.Contains(w.events(), "there is no other one to return to: container web") {
		t.Errorf("the events are %s", w.events())
	}
	w.checkIdempotent()
}

// A rollback skips versions that the source policy forbids. If no other version is left, the failed
// version stays, and one event reports that.
func TestRollback_VersionIsForbidden_IsPassedOver(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		allowed string // images
		event   string
	}{
		"no rule":            {"web:1 web:2 web:3", `Rolled back deployment "web" to revision 2`},
		"the newest one":     {"web:1 web:3", `Rolled back deployment "web" to revision 1`},
		"every older one":    {"web:3", "Revision 3 failed, and there is no other one to return to: container web"},
		"the failed one too": {"", "Revision 3 failed, and there is no other one to return to: container web"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := onTrial(t)
			for range 5 {
				w.next()
				w.settle()
			}
			w.next()
			w.now = w.now.Add(defaultTrial)
			w.next()
			setImage(w, "web:3")
			w.now = w.now.Add(time.Second)
			w.expect("r2=2/2 r3=0/1")
			w.allowed = func(o *pod.Object) bool {
				template, _ := o.Template()
				return slices.Contains(strings.Fields(c.allowed), template.Spec.Containers[0].Image)
			}
			crash(w, 1, true, w.ofRevision(3))
			w.next()
			if !strings.Contains(w.events(), c.event) {
				t.Errorf("the events are %s", w.events())
			}
			w.checkIdempotent()
			for _, r := range w.state.Revisions {
				for _, s := range w.last.Pods {
					if image := r.Template.Spec.Containers[0].Image; s.Pod.Labels[hashLabel(KindDeployment)] == r.Hash && r.Number > 3 && !strings.Contains(c.allowed, image) {
						t.Errorf("a pod of %s is made", image)
					}
				}
			}
			if rolled := w.state.Override != nil; rolled != strings.Contains(c.event, "Rolled back") {
				t.Errorf("an override is %v", rolled)
			}
			w.now = w.now.Add(time.Hour)
			if w.next(); strings.Contains(w.events(), "RevisionFailed") {
				t.Errorf("it fails again: %s", w.events())
			}
		})
	}
}

func TestRollback_PreviousVersionFailedToo_GoodOneReturns(t *testing.T) {
	t.Parallel()
	w := onTrial(t)
	crash(w, 1, true, w.ofRevision(2))
	w.next()
	w.settle()
	w.next()
	setImage(w, "web:3")
	w.next()
	crash(w, 1, true, w.ofRevision(4))
	w.expect("r5=2/2 stopping=1")
	w.gone()
	equal(t, "the image", w.pods[0].Spec.Pod.Spec.Containers[0].Image, "web:1")
	setImage(w, "web:2") // a person's edit: it is tried again
	w.expect("r5=2/2 r6=0/1")
	equal(t, "why revision 6 failed", w.failedText("web:2"), "")
}

func TestRollback_TargetFails_IsNotRolledBackFurther(t *testing.T) {
	t.Parallel()
	w := onTrial(t)
	crash(w, 1, true, w.ofRevision(2))
	w.next()
	w.now = w.now.Add(time.Minute)
	crash(w, 1, true, allPods)
	w.next()
	equal(t, "the failed versions", w.failedText("web:1"), "")
}

func TestRollback_PersonAsksForTheFailedVersion_IsTriedAgain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]Command{
		"by its number":  {Verb: Undo, Revision: 2},
		"by ending it":   {Verb: Clear, Field: "spec.template"},
		"by ending both": {Verb: Clear},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := onTrial(t)
			crash(w, 1, true, w.ofRevision(2))
			w.next()
			w.settle()
			if _, err := w.do(Command{Verb: Undo}); err == nil || !strings.Contains(err.Error(), "--to-revision=2 tries it again") {
				t.Errorf("undo without a number: %v", err)
			}
			if _, err := w.do(c); err != nil {
				t.Fatal(err)
			}
			w.now = w.now.Add(time.Second)
			w.expect("r3=2/2 r4=0/1")
			equal(t, "why it failed", w.failedText("web:2"), "")
			equal(t, "the override", w.state.Override == nil, true)
			w.now = w.now.Add(time.Second)
			crash(w, 1, true, w.ofRevision(4))
			w.expect("r5=2/2 stopping=1")
		})
	}
}

func TestRollback_WithoutTheAnnotation_NothingIsRolledBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, workloadOf(KindDeployment, webDeployment(1, "web:1", "", "")))
	w.rollOut("r1=0/1", "r1=1/1")
	setImage(w, "web:2")
	w.next()
	crash(w, 1, true, w.ofRevision(2))
	w.expect("r1=1/1 r2=0/1")
	equal(t, "the trial", w.state.Trial == nil, true)
}

func TestRollback_StatefulSet_StuckPodIsReplaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t, workloadOf(KindStatefulSet, webSet(3)))
	guarded(w, pod.AnnotationRollback, pod.RollbackOnFailure)
	for range 5 {
		w.next()
		w.settle()
	}
	w.now = w.now.Add(defaultTrial)
	w.next()
	edit(w, func(s *appsv1.StatefulSet) { s.Spec.Template.Spec.Containers[0].Image = "web:2" })
	w.now = w.now.Add(time.Second)
	w.next()
	w.gone()
	crash(w, 1, true, w.ofRevision(2))
	w.next()
	equal(t, "the steps", w.steps(), "replace web-2: the pod starts again, with revision 3\n")
	w.gone()
	w.settle()
	w.expect("r3=3/3")
	if why := w.failedText("web:2"); !strings.HasPrefix(why, "container web of pod web-2 crashes") {
		t.Error(why)
	}
}

func TestRollback_DaemonSet_DeadlineOfTheAnnotation(t *testing.T) {
	t.Parallel()
	w := newWorld(t, workloadOf(KindDaemonSet, webDaemonSet("", "")))
	guarded(w, pod.AnnotationRollback, pod.RollbackOnFailure)
	guarded(w, pod.AnnotationRollbackDeadline, "20s")
	for range 3 {
		w.next()
		w.settle()
	}
	edit(w, func(s *appsv1.DaemonSet) { s.Spec.Template.Spec.Containers[0].Image = "web:2" })
	w.next()
	w.gone()
	w.next()
	w.set(v1.ConditionFalse, allPods)
	w.next()
	w.now = w.last.Wake
	w.next()
	w.gone()
	w.next()
	equal(t, "the image", w.last.Pods[0].Pod.Spec.Containers[0].Image, "web:1")
	equal(t, "why", w.failedText("web:2"), "its pods are not available within 20s")
}

// With revisionHistoryLimit 0, the version before stays until the new one has passed its trial. Then
// no version is left to which a person could return, as in Kubernetes.
func TestRollback_HistoryLimitOfZero_VersionBeforeStaysDuringTheTrial(t *testing.T) {
	t.Parallel()
	none := int32(0)
	for kind, object := range map[string]any{
		KindDeployment:  webDeployment(2, "web:1", "1", "0"),
		KindStatefulSet: webSet(2, func(s *appsv1.StatefulSetSpec) { s.RevisionHistoryLimit = &none }),
		KindDaemonSet:   webDaemonSet("", ""),
	} {
		begin := func(t *testing.T) (w *world, image func(string)) {
			w = newWorld(t, workloadOf(kind, object))
			image = func(name string) { setImage(w, name) }
			switch kind {
			case KindDeployment:
				editDeployment(w, func(s *appsv1.DeploymentSpec) { s.RevisionHistoryLimit = &none })
			case KindStatefulSet:
				image = func(name string) {
					edit(w, func(s *appsv1.StatefulSet) { s.Spec.Template.Spec.Containers[0].Image = name })
				}
			case KindDaemonSet:
				edit(w, func(s *appsv1.DaemonSet) { s.Spec.RevisionHistoryLimit = &none })
				image = func(name string) {
					edit(w, func(s *appsv1.DaemonSet) { s.Spec.Template.Spec.Containers[0].Image = name })
				}
			}
			guarded(w, pod.AnnotationRollback, pod.RollbackOnFailure)
			image("web:1")
			for range 8 {
				w.next()
				w.settle()
			}
			w.now = w.now.Add(defaultTrial)
			w.next()
			w.checkIdempotent()
			image("web:2")
			for range 8 {
				w.next()
				w.settle()
				w.now = w.now.Add(time.Second)
			}
			w.next()
			for _, p := range w.last.Pods {
				equal(t, "the image on trial", p.Pod.Spec.Containers[0].Image, "web:2")
			}
			return w, image
		}
		t.Run(kind+" fails", func(t *testing.T) {
			t.Parallel()
			w, _ := begin(t)
			crash(w, 1, true, allPods)
			for range 8 {
				w.next()
				w.settle()
			}
			for _, p := range w.last.Pods {
				equal(t, "the image after the failure", p.Pod.Spec.Containers[0].Image, "web:1")
			}
			w.checkIdempotent()
		})
		t.Run(kind+" passes", func(t *testing.T) {
			t.Parallel()
			w, _ := begin(t)
			w.now = w.now.Add(defaultTrial)
			w.next()
			w.checkIdempotent()
			equal(t, "the number of revisions", len(w.state.Revisions), 1)
			_, err := w.do(Command{Verb: Undo})
			want := fmt.Sprintf("no rollout history found for %s \"web\": spec.revisionHistoryLimit is 0, so no earlier revision is kept", strings.ToLower(kind))
			if err == nil || err.Error() != want {
				t.Errorf("undo: %v", err)
			}
		})
	}
}

// A trial does not end with the reports of the previous agent: after a reboot, the pods have to
// become available again first.
func TestRollback_TrialEndsAfterAReboot_WaitsForReports(t *testing.T) {
	t.Parallel()
	w := onTrial(t)
	for range 5 {
		w.next()
		w.settle()
	}
	w.next()
	w.now = w.last.Wake
	earlier := func(is bool) {
		for i := range w.pods {
			w.pods[i].Earlier = is
		}
	}
	earlier(true)
	d := Next(w.input())
	equal(t, "the trial is over before the reports", d.State.Trial.Over, false)
	equal(t, "the pods without a report", d.Unreported, 2)
	earlier(false)
	w.next()
	equal(t, "the trial is over with the reports", w.state.Trial.Over, true)
	equal(t, "the pods without a report", w.last.Unreported, 0)
}

// Versions crash, become ready or never do, and people undo, restart, scale and pause, at random.
// After each event a second decision changes nothing, a version that failed does not come back by
// itself, and in the end the pods follow from the source and the overrides.
func TestStories_Overrides_KeepTheirPromises(t *testing.T) {
	t.Parallel()
	for seed := range uint64(stories) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			s := newStory(newWorld(t, workloadOf(KindDeployment, webDeployment(3, "web:0", "", ""))), seed)
			defer s.tell()
			guarded(s.world, pod.AnnotationRollback, pod.RollbackOnFailure)
			for range 2 * events {
				asked := s.overrideEvent()
				before := s.state
				s.checkDeployment()
				s.checkFailed(before, asked)
			}
			editDeployment(s.world, func(d *appsv1.DeploymentSpec) { d.Paused = false })
			if s.state.Override != nil {
				s.state.Override.Paused = nil
			}
			s.converge()
			effective, _, _ := s.state.Override.Apply(s.object)
			spec := effective.Object.(*appsv1.Deployment).Spec
			if n := int(*spec.Replicas); len(s.pods) != n {
				t.Fatalf("in the end there are %d pods, want %d", len(s.pods), n)
			}
			for _, p := range s.pods {
				equal(t, "the image", p.Spec.Pod.Spec.Containers[0].Image, spec.Template.Spec.Containers[0].Image)
			}
		})
	}
}

// overrideEvent lets something happen, and reports whether a person asked for another template.
func (s *story) overrideEvent() (asked bool) {
	switch s.rand.IntN(9) {
	case 0:
		setImage(s.world, s.image())
		return true
	case 1, 2:
		code := s.rand.Int32N(2)
		s.say("the newest version exits with %d", code)
		if n := len(s.state.Revisions); n > 0 {
			crash(s.world, code, s.rand.IntN(2) == 0, s.ofRevision(s.state.Revisions[n-1].Number))
		}
	case 3:
		s.say("an hour passes")
		s.now = s.now.Add(time.Hour)
	case 4:
		commands := []Command{
			{Verb: Undo}, {Verb: Undo, Revision: s.rand.Int64N(6)}, {Verb: Restart}, {Verb: Pause}, {Verb: Resume}, {Verb: Clear},
			{Verb: Scale, Replicas: s.rand.Int32N(5)}, {Verb: Clear, Field: "spec.replicas"},
		}
		c := commands[s.rand.IntN(len(commands))]
		result, err := s.do(c)
		s.say("%s %d %d: %s %v", c.Verb, c.Revision, c.Replicas, result, err)
		return err == nil
	case 5:
		n := s.rand.Int32N(5)
		s.say("replicas is %d in the source", n)
		setReplicas(s.world, n)
	default:
		s.podEvent()
	}
	return false
}

// checkFailed fails if a version that had failed is the newest one again, and no person asked.
func (s *story) checkFailed(before State, asked bool) {
	s.t.Helper()
	n, m := len(before.Revisions), len(s.state.Revisions)
	if asked || n == 0 || m == 0 {
		return
	}
	newest := s.state.Revisions[m-1]
	if i := indexOf(before.Revisions, newest.Hash); i >= 0 && i != n-1 && before.Revisions[i].Failed != "" {
		s.t.Fatalf("revision %d failed, and is tried again", before.Revisions[i].Number)
	}
}
