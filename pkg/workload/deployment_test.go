package workload

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
)

func setImage(w *world, image string) {
	editDeployment(w, func(s *appsv1.DeploymentSpec) { s.Template.Spec.Containers[0].Image = image })
}

func setReplicas(w *world, n int32) {
	editDeployment(w, func(s *appsv1.DeploymentSpec) { s.Replicas = &n })
}

func TestDeployment_TemplateChanges_PodsAreReplacedWithinSurgeAndUnavailable(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		replicas           int32
		surge, unavailable string // "" is 25%
		pods               []string
	}{
		{3, "", "", []string{"r1=3/3 r2=0/1", "r1=2/2 r2=1/2 stopping=1", "r1=1/1 r2=2/3 stopping=1", "r2=3/3 stopping=1", "r2=3/3"}},
		{1, "", "", []string{"r1=1/1 r2=0/1", "r2=1/1 stopping=1", "r2=1/1"}},
		{2, "0%", "1%", []string{"r1=1/1 r2=0/1 stopping=1", "r2=1/2 stopping=1", "r2=2/2"}},
		{1, "0%", "1%", []string{"r2=0/1 stopping=1", "r2=1/1"}},
		{2, "1%", "0%", []string{"r1=2/2 r2=0/1", "r1=1/1 r2=1/2 stopping=1", "r2=2/2 stopping=1", "r2=2/2"}},
		{4, "50%", "50%", []string{"r1=2/2 r2=0/4 stopping=2", "r2=4/4 stopping=2", "r2=4/4"}},
		{3, "100%", "0", []string{"r1=3/3 r2=0/3", "r2=3/3 stopping=3", "r2=3/3"}},
		{0, "", "", []string{"", ""}},
	} {
		t.Run(fmt.Sprintf("%d,%s,%s", c.replicas, c.surge, c.unavailable), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, workloadOf(KindDeployment, webDeployment(c.replicas, "web:1", c.surge, c.unavailable)))
			w.next()
			w.settle()
			w.next()
			setImage(w, "web:2")
			w.rollOut(c.pods...)
		})
	}
}

// The two cases are those of a comment in Kubernetes' Deployment controller.
func TestDeployment_NewPodsNeverBecomeReady_UndoAndNextTemplateStillRollOut(t *testing.T) {
	t.Parallel()
	stuck := func(t *testing.T) *world {
		w := newWorld(t, workloadOf(KindDeployment, webDeployment(10, "web:1", "3", "2")))
		w.next()
		w.settle()
		w.next()
		setImage(w, "web:2")
		w.expect("r1=8/8 r2=0/5 stopping=2")
		w.gone()
		return w
	}
	t.Run("undo", func(t *testing.T) {
		t.Parallel()
		w := stuck(t)
		w.set(v1.ConditionFalse, func(p Pod) bool { return p.Spec == w.pods[slices.IndexFunc(w.pods, w.ofRevision(1))].Spec })
		w.expect("r1=7/8 r2=0/5")
		setImage(w, "web:1")
		w.expect("r2=0/1 r3=7/10 stopping=4")
	})
	t.Run("another template", func(t *testing.T) {
		t.Parallel()
		w := stuck(t)
		setImage(w, "web:3")
		w.expect("r1=8/8 r3=0/5 stopping=5")
		w.rollOut("r1=8/8 r3=0/5 stopping=5", "r1=3/3 r3=5/10 stopping=5", "r3=10/10 stopping=3")
	})
}

func TestDeployment_OldTemplateReturns_RevisionKeepsHashAndPodNames(t *testing.T) {
	t.Parallel()
	w := newWorld(t, workloadOf(KindDeployment, webDeployment(3, "web:1", "", "")))
	w.next()
	first, hash := w.names(), w.state.Revisions[0].Hash
	w.settle()
	setImage(w, "web:2")
	for range 6 {
		w.next()
		w.settle()
	}
	equal(t, "the last complete revision", w.state.Deployment.Complete, 2)
	setImage(w, "web:1")
	for range 6 {
		w.next()
		w.settle()
	}
	w.expect("r3=3/3")
	equal(t, "the names", w.names(), first)
	newest := w.state.Revisions[len(w.state.Revisions)-1]
	equal(t, "the hash", newest.Hash, hash)
	equal(t, "the first number", newest.First, 1)
	equal(t, "the last complete revision", w.state.Deployment.Complete, 3)
}

func TestDeployment_TemplateSpellsOutADefault_NothingChanges(t *testing.T) {
	t.Parallel()
	w := newWorld(t, workloadOf(KindDeployment, webDeployment(2, "web:1", "", "")))
	w.next()
	w.settle()
	editDeployment(w, func(s *appsv1.DeploymentSpec) { s.Template.Spec.RestartPolicy = v1.RestartPolicyAlways })
	w.expect("r1=2/2")
	equal(t, "the number of revisions", len(w.state.Revisions), 1)
}

func TestDeployment_Recreate_NewPodsFollowWhenOldOnesAreGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, workloadOf(KindDeployment, webDeployment(3, "web:1", "", "")))
	editDeployment(w, func(s *appsv1.DeploymentSpec) {
		s.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
	})
	w.next()
	w.settle()
	setImage(w, "web:2")
	w.expect("stopping=3")
	w.pods = w.pods[1:]
	w.expect("stopping=2")
	equal(t, "the number of revisions while old pods stop", len(w.state.Revisions), 1)
	w.gone()
	w.expect("r2=0/3")
	w.settle()
	setImage(w, "web:1")
	w.expect("stopping=3")
	w.pods[0].Status = &v1.PodStatus{Phase: v1.PodSucceeded}
	w.expect("stopping=3")
	for i := range w.pods {
		w.pods[i].Status = &v1.PodStatus{Phase: v1.PodFailed}
	}
	w.expect("r3=0/3 stopping=3")
}

func TestDeployment_Paused_ScalesAndDoesNotRollOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t, workloadOf(KindDeployment, webDeployment(2, "web:1", "", "")))
	w.next()
	w.settle()
	w.next()
	editDeployment(w, func(s *appsv1.DeploymentSpec) { s.Paused, s.Template.Spec.Containers[0].Image = true, "web:2" })
	w.expect("r1=2/2")
	equal(t, "the condition", w.progressing(), "Unknown DeploymentPaused")
	setReplicas(w, 4)
	w.expect("r1=2/4")
	w.settle()
	w.now = w.now.Add(time.Hour)
	editDeployment(w, func(s *appsv1.DeploymentSpec) { s.Paused = false })
	w.expect("r1=3/3 r2=0/2 stopping=1")
	equal(t, "the condition", w.progressing(), "True ReplicaSetUpdated")
}

// The figures are those of an example in Kubernetes' documentation of Deployments.
func TestDeployment_ReplicasChangeDuringARollout_ReplicaSetsChangeInProportion(t *testing.T) {
	t.Parallel()
	w := newWorld(t, workloadOf(KindDeployment, webDeployment(10, "web:1", "3", "2")))
	w.next()
	w.settle()
	w.next()
	setImage(w, "web:2")
	w.expect("r1=8/8 r2=0/5 stopping=2")
	w.gone()
	setReplicas(w, 15)
	w.expect("r1=8/11 r2=0/7")
	setReplicas(w, 0)
	w.expect("stopping=18")
}

func TestDeployment_ScaledDown_PodsThatAreNotReadyLeaveFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t, workloadOf(KindDeployment, webDeployment(4, "web:1", "", "")))
	w.next()
	names := w.names()
	w.set(v1.ConditionTrue, func(p Pod) bool { return p.Spec.Name == names[1] })
	w.now = w.now.Add(time.Minute)
	w.set(v1.ConditionTrue, func(p Pod) bool { return p.Spec.Name == names[3] })
	setReplicas(w, 2)
	w.expect("r1=2/2 stopping=2")
	setReplicas(w, 1)
	w.expect("r1=1/1 stopping=3")
	equal(t, "the pod that stays", w.names(), []string{names[1]})
}

func TestDeployment_MinReadySeconds_RolloutWaitsForAvailablePods(t *testing.T) {
	t.Parallel()
	w := newWorld(t, workloadOf(KindDeployment, webDeployment(2, "web:1", "1", "0")))
	editDeployment(w, func(s *appsv1.DeploymentSpec) { s.MinReadySeconds = 10 })
	w.next()
	w.settle()
	w.now = w.now.Add(10 * time.Second)
	w.expect("r1=2/2")
	setImage(w, "web:2")
	w.expect("r1=2/2 r2=0/1")
	w.settle()
	w.expect("r1=2/2 r2=1/1")
	equal(t, "the next decision", w.wake(), w.now.Add(10*time.Second).UTC())
	w.now = w.last.Wake
	w.expect("r1=1/1 r2=1/2 stopping=1")
}

// progressing returns the status and reason of the condition Progressing.
func (w *world) progressing() string {
	for _, c := range w.last.Status.(*appsv1.DeploymentStatus).Conditions {
		if c.Type == appsv1.DeploymentProgressing {
			return fmt.Sprintf("%s %s", c.Status, c.Reason)
		}
	}
	return ""
}

func TestDeployment_ProgressDeadline_ConditionSaysHowTheRolloutGoes(t *testing.T) {
	t.Parallel()
	limit := int32(60)
	w := newWorld(t, workloadOf(KindDeployment, webDeployment(2, "web:1", "", "")))
	editDeployment(w, func(s *appsv1.DeploymentSpec) { s.ProgressDeadlineSeconds = &limit })
	w.next()
	equal(t, "the condition of new pods", w.progressing(), "True ReplicaSetUpdated")
	equal(t, "the next decision", w.wake(), w.now.Add(time.Minute).UTC())
	w.settle()
	w.next()
	equal(t, "the condition of a complete rollout", w.progressing(), "True NewReplicaSetAvailable")
	equal(t, "the next decision", w.wake(), time.Time{})

	w.now = w.now.Add(time.Hour)
	setImage(w, "web:2")
	w.next()
	w.now = w.now.Add(50 * time.Second)
	w.set(v1.ConditionFalse, w.ofRevision(2))
	w.next()
	equal(t, "the condition before the deadline", w.progressing(), "True ReplicaSetUpdated")
	w.now = w.last.Wake
	w.next()
	equal(t, "the condition at the deadline", w.progressing(), "False ProgressDeadlineExceeded")
	equal(t, "the next decision", w.wake(), time.Time{})
	w.settle()
	w.next()
	equal(t, "the condition of late progress", w.progressing(), "True ReplicaSetUpdated")

	never := int32(math.MaxInt32)
	editDeployment(w, func(s *appsv1.DeploymentSpec) { s.ProgressDeadlineSeconds = &never })
	w.next()
	equal(t, "the condition without a deadline", w.progressing(), "")
}

func TestDeployment_Status_CountsAsKubernetesDoes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, workloadOf(KindDeployment, webDeployment(3, "web:1", "1", "1")))
	w.next()
	w.settle()
	w.next()
	setImage(w, "web:2")
	w.expect("r1=2/2 r2=0/2 stopping=1")
	one := int32(1)
	got := *w.last.Status.(*appsv1.DeploymentStatus)
	conditions := got.Conditions
	got.Conditions = nil
	equal(t, "the status", asJSON(t, got), asJSON(t, appsv1.DeploymentStatus{
		Replicas: 4, UpdatedReplicas: 2, ReadyReplicas: 2, AvailableReplicas: 2, UnavailableReplicas: 2, TerminatingReplicas: &one,
	}))
	available := slices.IndexFunc(conditions, func(c appsv1.DeploymentCondition) bool { return c.Type == appsv1.DeploymentAvailable })
	equal(t, "the condition Available", conditions[available].Reason, "MinimumReplicasAvailable")
	var events []string
	for _, e := range w.last.Events {
		events = append(events, e.Type+" "+e.Reason+" "+e.Message)
	}
	old, newest := w.state.Revisions[0].Hash, w.state.Revisions[1].Hash
	equal(t, "the events", events, []string{
		"Normal ScalingReplicaSet Scaled up replica set web-" + newest + " from 0 to 2",
		"Normal ScalingReplicaSet Scaled down replica set web-" + old + " from 3 to 2",
	})
}

func TestDeployment_StatusesUnknown_NoAvailablePodIsLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t, workloadOf(KindDeployment, webDeployment(4, "web:1", "1", "1")))
	w.next()
	w.settle()
	w.next()
	for i := range w.pods[1:] {
		w.pods[i+1].Status = nil
	}
	ready := w.pods[0].Spec.Name
	setImage(w, "web:2")
	for range 5 {
		w.next()
		w.gone()
	}
	if !slices.Contains(w.names(), ready) {
		t.Errorf("the only ready pod was removed: %s", w.show())
	}
	if n := len(w.names()); n > 5 {
		t.Errorf("there are %d pods", n)
	}
}

func TestDeployment_PodVanishes_AnotherOneOfItsRevisionFollows(t *testing.T) {
	t.Parallel()
	w := newWorld(t, workloadOf(KindDeployment, webDeployment(3, "web:1", "1", "0")))
	w.next()
	w.settle()
	w.next()
	names := w.names()
	setImage(w, "web:2")
	w.expect("r1=3/3 r2=0/1")
	w.pods = slices.DeleteFunc(w.pods, func(p Pod) bool { return p.Spec.Name == names[0] })
	w.expect("r1=2/3 r2=0/1")
	if !slices.Contains(w.names(), names[0]) {
		t.Errorf("the pod has another name: %v, before %v", w.names(), names)
	}
	if !strings.Contains(w.steps(), "1 of them are missing") {
		t.Errorf("the steps do not give the reason:\n%s", w.steps())
	}
}

// The pods have the hash of an earlier version, with other defaults.
func TestDeployment_StateIsLost_NothingIsReplaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t, workloadOf(KindDeployment, webDeployment(3, "web:1", "", "")))
	w.state.Revisions = []Revision{{Number: 4, First: 4, Hash: "5d4f8c7b9", Template: webTemplate("web:1")}}
	w.next()
	w.settle()
	w.restart()
	w.state = State{}
	w.expect("r1=3/3")
	equal(t, "the steps", w.steps(), "")
	equal(t, "the hash", w.state.Revisions[0].Hash, "5d4f8c7b9")

	w.state = State{}
	setImage(w, "web:2")
	w.rollOut("r1=3/3 r2=0/1", "r1=2/2 r2=1/2 stopping=1", "r1=1/1 r2=2/3 stopping=1", "r2=3/3 stopping=1")
}

func TestDeployment_HistoryLimit_OldestRevisionsAreForgottenWhenComplete(t *testing.T) {
	t.Parallel()
	w := newWorld(t, workloadOf(KindDeployment, webDeployment(1, "web:0", "", "")))
	limit := int32(2)
	editDeployment(w, func(s *appsv1.DeploymentSpec) { s.RevisionHistoryLimit = &limit })
	for i := range 5 {
		setImage(w, fmt.Sprintf("web:%d", i))
		for range 3 {
			w.next()
			w.settle()
		}
	}
	var numbers []int64
	for _, r := range w.state.Revisions {
		numbers = append(numbers, r.Number)
	}
	equal(t, "the revisions", numbers, []int64{3, 4, 5})
}

func TestDeployment_TooManyReplicas_AreLimited(t *testing.T) {
	t.Parallel()
	w := newWorld(t, workloadOf(KindDeployment, webDeployment(math.MaxInt32, "web:1", "1000000%", "1000000%")))
	w.next()
	equal(t, "the number of pods", len(w.pods), 1000)
}

// TestDeployment_SurgePodNeedsHostPort_ReasonNamesTheRemedy: the old pod keeps the port until the new
// one is available, which it cannot become.
func TestDeployment_SurgePodNeedsHostPort_ReasonNamesTheRemedy(t *testing.T) {
	t.Parallel()
	open := func(w *world, port int32) {
		editDeployment(w, func(s *appsv1.DeploymentSpec) {
			s.Template.Spec.Containers[0].Ports = []v1.ContainerPort{{ContainerPort: 80, HostPort: port}}
		})
	}
	for name, c := range map[string]struct {
		surge, unavailable string
		replicas, newPort  int32
		want               string
	}{
		"surge":                   {"1", "0", 1, 8080, "; the pod waits for host port 8080 of pod OLD: maxSurge 0 or the strategy Recreate is needed"},
		"the old pod stops first": {"0", "1", 1, 8080, ""},
		"another port":            {"1", "0", 1, 8081, ""},
		"two replicas":            {"0", "2", 2, 8080, "; the pod waits for host port 8080 of pod NEW"},
	} {
		w := newWorld(t, workloadOf(KindDeployment, webDeployment(c.replicas, "web:1", c.surge, c.unavailable)))
		open(w, 8080)
		w.next()
		w.settle()
		w.next()
		old := w.pods[0].Spec.Name
		setImage(w, "web:2")
		open(w, c.newPort)
		d, first := w.next(), ""
		got := ""
		for _, step := range d.Steps {
			if step.Action == Add {
				_, waits, _ := strings.Cut(step.Reason, "; ")
				if waits != "" {
					got += "; " + waits
				}
				if first == "" {
					first = step.Key.Name
				}
			}
		}
		equal(t, name, strings.NewReplacer(old, "OLD", first, "NEW").Replace(got), c.want)
	}
}
