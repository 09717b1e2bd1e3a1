package workload

import (
	"fmt"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func number(n int32) *int32 { return &n }

// workJob returns a Job with completions and parallelism; -1 is not set.
func workJob(completions, parallelism int32, change ...func(*batchv1.JobSpec)) *batchv1.Job {
	j := &batchv1.Job{ObjectMeta: simMeta(), Spec: batchv1.JobSpec{Template: webTemplate("work:1")}}
	j.Spec.Template.Spec.RestartPolicy = v1.RestartPolicyNever
	if completions >= 0 {
		j.Spec.Completions = &completions
	}
	if parallelism >= 0 {
		j.Spec.Parallelism = &parallelism
	}
	for _, c := range change {
		c(&j.Spec)
	}
	return j
}

func indexedJob(s *batchv1.JobSpec) {
	mode := batchv1.IndexedCompletion
	s.CompletionMode = &mode
}

func editJob(m *sim, change func(*batchv1.JobSpec)) {
	simEdit(m, func(j *batchv1.Job) { change(&j.Spec) })
}

// running returns the pods that run, by name.
func (m *sim) running() []*simPod {
	var out []*simPod
	for _, p := range m.pods {
		if !p.stops && (p.status == nil || p.status.Phase == v1.PodRunning) {
			out = append(out, p)
		}
	}
	return out
}

// finish ends the first n running pods with an exit code.
func (m *sim) finish(n int, code int32) {
	m.t.Helper()
	list := m.running()
	if len(list) < n {
		m.t.Fatalf("%d pods run, want %d", len(list), n)
	}
	for _, p := range list[:n] {
		m.ends(p, code)
	}
}

// job asks for a decision and returns the status, as "active 2 succeeded 1 failed 0 Complete".
func (m *sim) job() string {
	m.t.Helper()
	s := m.next().Status.(*batchv1.JobStatus)
	out := fmt.Sprintf("active %d succeeded %d failed %d", s.Active, s.Succeeded, s.Failed)
	if *s.Terminating > 0 {
		out += fmt.Sprintf(" terminating %d", *s.Terminating)
	}
	if s.CompletedIndexes != "" {
		out += " completed " + s.CompletedIndexes
	}
	if s.FailedIndexes != nil && *s.FailedIndexes != "" {
		out += " lost " + *s.FailedIndexes
	}
	for _, c := range s.Conditions {
		if c.Status == v1.ConditionTrue {
			out += fmt.Sprintf(" %s:%s", c.Type, c.Reason)
		}
	}
	return out
}

func TestJob_Completions_EachPodCountsOnce(t *testing.T) {
	t.Parallel()
	m := newSim(t, KindJob, workJob(3, 2))
	equal(t, "the status", m.job(), "active 2 succeeded 0 failed 0")
	p := m.last.Pods[0].Pod
	equal(t, "the labels", p.Labels, map[string]string{
		"app": "web", "job-name": "web", "batch.kubernetes.io/job-name": "web",
		"controller-uid": string(p.OwnerReferences[0].UID), "batch.kubernetes.io/controller-uid": string(p.OwnerReferences[0].UID),
	})
	if name := p.Name; !strings.HasPrefix(name, "web-") || len(name) != len("web-xxxxx") {
		t.Errorf("the name is %s", name)
	}
	m.finish(1, 0)
	equal(t, "the status", m.job(), "active 2 succeeded 1 failed 0")
	m.restart()
	equal(t, "the status", m.job(), "active 2 succeeded 1 failed 0")
	m.finish(2, 0)
	equal(t, "the status", m.job(), "active 0 succeeded 3 failed 0 SuccessCriteriaMet:CompletionsReached Complete:CompletionsReached")
	equal(t, "the events", m.events(), []string{"Completed: Job completed"})
	equal(t, "Done", m.last.Done, true)
	equal(t, "the number of finished pods that stay", len(m.last.Pods), 3)
}

func TestJob_Finished_NeverRunsAgain(t *testing.T) {
	t.Parallel()
	m := newSim(t, KindJob, workJob(1, 1))
	m.next()
	m.finish(1, 0)
	m.next()
	name := m.last.Pods[0].Name
	m.restart()
	m.pods[0].unknown = true
	m.expect("")
	m.runs(m.pods[0], false) // a person restarts it
	m.expect("remove " + name)
	m.pods = nil
	m.restart()
	m.expect("")
	equal(t, "Done", m.last.Done, true)
}

func TestJob_WithoutCompletions_IsCompleteWhenOnePodSucceededAndAllEnded(t *testing.T) {
	t.Parallel()
	m := newSim(t, KindJob, workJob(-1, 3))
	equal(t, "the status", m.job(), "active 3 succeeded 0 failed 0")
	m.finish(1, 0)
	equal(t, "the status", m.job(), "active 2 succeeded 1 failed 0")
	m.finish(1, 1)
	equal(t, "the status", m.job(), "active 1 succeeded 1 failed 1")
	m.finish(1, 0)
	equal(t, "the status", m.job(), "active 0 succeeded 2 failed 1 SuccessCriteriaMet:CompletionsReached Complete:CompletionsReached")
}

func TestJob_PodsFail_NextOneWaitsTwiceAsLong(t *testing.T) {
	t.Parallel()
	m := newSim(t, KindJob, workJob(1, 1, func(s *batchv1.JobSpec) { s.BackoffLimit = number(20) }))
	m.next()
	for _, wait := range []time.Duration{10, 20, 40, 80, 160, 320, 600, 600} {
		m.finish(1, 1)
		m.expect("")
		equal(t, "the wait", m.wakesIn(), wait*time.Second)
		m.restart()
		m.pass(wait*time.Second - 1)
		m.expect("")
		m.pass(1)
		m.next()
		equal(t, "the number of new pods", len(m.last.Steps), 1)
	}
	m.finish(1, 1)
	m.pass(-time.Hour) // the clock is set back: the wait is no longer than without that
	m.expect("")
	equal(t, "the wait", m.wakesIn(), 600*time.Second)
}

func TestJob_BackoffLimit_JobFailsWhenItsPodsHaveStopped(t *testing.T) {
	t.Parallel()
	m := newSim(t, KindJob, workJob(4, 2, func(s *batchv1.JobSpec) { s.BackoffLimit = number(0) }))
	m.next()
	m.finish(1, 1)
	equal(t, "the status", m.job(), "active 0 succeeded 0 failed 2 terminating 1 FailureTarget:BackoffLimitExceeded")
	m.restart()
	equal(t, "the status", m.job(), "active 0 succeeded 0 failed 2 terminating 1 FailureTarget:BackoffLimitExceeded")
	m.gone()
	equal(t, "the status", m.job(), "active 0 succeeded 0 failed 2 FailureTarget:BackoffLimitExceeded Failed:BackoffLimitExceeded")
	equal(t, "the events", m.events(), []string{"BackoffLimitExceeded: Job has reached the specified backoff limit"})
}

func TestJob_OnFailure_RestartsOfContainersCount(t *testing.T) {
	t.Parallel()
	m := newSim(t, KindJob, workJob(1, 1, func(s *batchv1.JobSpec) {
		s.BackoffLimit = number(3)
		s.Template.Spec.RestartPolicy = v1.RestartPolicyOnFailure
	}))
	m.next()
	p := m.running()[0]
	m.runs(p, true)
	p.status.ContainerStatuses = []v1.ContainerStatus{{Name: "web", RestartCount: 2}}
	equal(t, "the status", m.job(), "active 1 succeeded 0 failed 0")
	p.status.ContainerStatuses[0].RestartCount = 3
	equal(t, "the status", m.job(), "active 0 succeeded 0 failed 1 terminating 1 FailureTarget:BackoffLimitExceeded")
}

func TestJob_PodFailurePolicy_FirstRuleThatMatchesDecides(t *testing.T) {
	t.Parallel()
	policy := func(s *batchv1.JobSpec) {
		s.BackoffLimit = number(1)
		s.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{
			{Action: batchv1.PodFailurePolicyActionIgnore, OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: v1.DisruptionTarget}}},
			{Action: batchv1.PodFailurePolicyActionIgnore, OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: []int32{7}}},
			{Action: batchv1.PodFailurePolicyActionFailJob, OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: batchv1.PodFailurePolicyOnExitCodesOpNotIn, Values: []int32{1, 2}}},
		}}
	}
	m := newSim(t, KindJob, workJob(1, 1, policy))
	m.next()
	m.finish(1, 7)
	equal(t, "the status", m.job(), "active 0 succeeded 0 failed 0")
	m.pass(time.Hour)
	m.next()
	p := m.running()[0]
	m.ends(p, 99)
	p.status.Conditions = append(p.status.Conditions, v1.PodCondition{Type: v1.DisruptionTarget, Status: v1.ConditionTrue})
	equal(t, "the status", m.job(), "active 0 succeeded 0 failed 0")
	m.pass(time.Hour)
	m.next()
	m.finish(1, 2)
	equal(t, "the status", m.job(), "active 0 succeeded 0 failed 1")
	m.pass(time.Hour)
	m.next()
	p = m.running()[0]
	m.ends(p, 42)
	equal(t, "the status", m.job(), "active 0 succeeded 0 failed 2 FailureTarget:PodFailurePolicy Failed:PodFailurePolicy")
	equal(t, "the events", m.events(), []string{
		"PodFailurePolicy: Container web for pod default/" + p.spec.Name + " failed with exit code 42 matching FailJob rule at index 2",
	})
}

func TestJob_Evicted_CountsAndLeavesTheSet(t *testing.T) {
	t.Parallel()
	m := newSim(t, KindJob, workJob(1, 1))
	m.next()
	p := m.running()[0]
	m.ends(p, 137)
	p.status.Reason = "Evicted"
	m.expect("remove " + p.spec.Name)
	m.pass(time.Minute)
	equal(t, "the status", m.job(), "active 1 succeeded 0 failed 1")
}

func TestJob_PodReplacementPolicyFailed_TerminatingPodHasItsPlace(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		policy batchv1.PodReplacementPolicy
		want   string
	}{
		{batchv1.Failed, "active 1 succeeded 0 failed 0 terminating 1"},
		{batchv1.TerminatingOrFailed, "active 2 succeeded 0 failed 0 terminating 1"},
	} {
		m := newSim(t, KindJob, workJob(5, 2, func(s *batchv1.JobSpec) { s.PodReplacementPolicy = &c.policy }))
		m.next()
		editJob(m, func(s *batchv1.JobSpec) { s.Parallelism = number(1) })
		equal(t, "the status", m.job(), "active 1 succeeded 0 failed 0 terminating 1")
		editJob(m, func(s *batchv1.JobSpec) { s.Parallelism = number(2) })
		equal(t, "the status", m.job(), c.want)
		m.gone()
		equal(t, "the status", m.job(), "active 2 succeeded 0 failed 0")
	}
}

// A pod that the Job removed does not count, also if the agent restarts while the pod stops.
func TestJob_RemovedPodSucceeds_DoesNotCount(t *testing.T) {
	t.Parallel()
	m := newSim(t, KindJob, workJob(5, 2))
	m.next()
	editJob(m, func(s *batchv1.JobSpec) { s.Parallelism = number(1) })
	m.next()
	m.restart()
	for _, p := range m.pods {
		if p.stops {
			m.ends(p, 0)
		}
	}
	equal(t, "the status", m.job(), "active 1 succeeded 0 failed 0")
}

func TestJob_Suspended_PodsStopAndTheDeadlineBeginsAgain(t *testing.T) {
	t.Parallel()
	deadline := int64(100)
	yes, no := true, false
	m := newSim(t, KindJob, workJob(2, 1, func(s *batchv1.JobSpec) { s.ActiveDeadlineSeconds = &deadline }))
	m.next()
	equal(t, "the wait", m.wakesIn(), 100*time.Second)
	m.pass(50 * time.Second)
	editJob(m, func(s *batchv1.JobSpec) { s.Suspend = &yes })
	equal(t, "the status", m.job(), "active 0 succeeded 0 failed 0 terminating 1 Suspended:JobSuspended")
	m.gone()
	m.pass(time.Hour)
	m.expect("")
	equal(t, "the wait", m.wakesIn(), 0)
	editJob(m, func(s *batchv1.JobSpec) { s.Suspend = &no })
	equal(t, "the status", m.job(), "active 1 succeeded 0 failed 0")
	equal(t, "the last event", m.events()[1], "Resumed: Job resumed")
	equal(t, "the wait", m.wakesIn(), 100*time.Second)
	m.pass(100 * time.Second)
	equal(t, "the status", m.job(), "active 0 succeeded 0 failed 1 terminating 1 FailureTarget:DeadlineExceeded")
}

func TestJob_TTL_FinishedPodsLeaveAndNothingStarts(t *testing.T) {
	t.Parallel()
	m := newSim(t, KindJob, workJob(1, 1, func(s *batchv1.JobSpec) { s.TTLSecondsAfterFinished = number(60) }))
	m.next()
	m.finish(1, 0)
	m.expect("")
	equal(t, "the wait", m.wakesIn(), time.Minute)
	m.pass(time.Minute)
	m.expect("remove " + m.last.Pods[0].Name)
	m.gone()
	m.restart()
	m.expect("")
	equal(t, "Done", m.last.Done, true)
}

func TestJob_TemplateIsEdited_RunningJobKeepsItsOwn(t *testing.T) {
	t.Parallel()
	m := newSim(t, KindJob, workJob(2, 1))
	m.next()
	editJob(m, func(s *batchv1.JobSpec) { s.Template.Spec.Containers[0].Image = "work:2" })
	m.expect("")
	equal(t, "the number of events", len(m.last.Events), 1)
	equal(t, "the reason", m.last.Events[0].Reason, "EditNotApplied")
	m.finish(1, 0)
	m.next()
	for _, s := range m.last.Pods {
		equal(t, "the image", s.Pod.Spec.Containers[0].Image, "work:1")
	}
	editJob(m, func(s *batchv1.JobSpec) { s.Template.Spec.Containers[0].Image = "work:1" })
	m.expect("")
	equal(t, "the number of events", len(m.last.Events), 0)
}

func TestJob_TemplateIsEditedBeforeItBegins_EditHolds(t *testing.T) {
	t.Parallel()
	yes, no := true, false
	m := newSim(t, KindJob, workJob(2, 1, func(s *batchv1.JobSpec) { s.Suspend = &yes }))
	m.expect("")
	editJob(m, func(s *batchv1.JobSpec) { s.Template.Spec.Containers[0].Image = "work:2" })
	m.expect("")
	equal(t, "the number of events", len(m.last.Events), 0)
	editJob(m, func(s *batchv1.JobSpec) { s.Suspend = &no })
	m.next()
	equal(t, "the image", m.last.Pods[0].Pod.Spec.Containers[0].Image, "work:2")
}

func TestJob_ManyFinishedPods_TheNewestStay(t *testing.T) {
	t.Parallel()
	m := newSim(t, KindJob, workJob(maxFinishedPods+5, maxFinishedPods))
	m.next()
	first := m.running()[0].spec.Name
	m.finish(1, 0)
	m.next()
	m.pass(time.Second)
	m.finish(maxFinishedPods-1, 0)
	m.next()
	equal(t, "the number of pods", len(m.last.Pods), maxFinishedPods+5)
	m.finish(1, 0)
	m.expect("remove " + first)
}

func TestJob_StateIsLost_PodsCountAgain(t *testing.T) {
	t.Parallel()
	m := newSim(t, KindJob, workJob(3, 2))
	m.next()
	m.finish(1, 0)
	m.next()
	m.in.State = State{}
	equal(t, "the status", m.job(), "active 2 succeeded 1 failed 0")
}

func TestJob_ManualSelector_PodsHaveTheirOwnLabels(t *testing.T) {
	t.Parallel()
	yes := true
	m := newSim(t, KindJob, workJob(1, 1, func(s *batchv1.JobSpec) { s.ManualSelector, s.Selector = &yes, webSelector() }))
	m.next()
	equal(t, "the labels", m.last.Pods[0].Pod.Labels, map[string]string{"app": "web"})
	equal(t, "the owner", metav1.GetControllerOf(m.last.Pods[0].Pod).Kind, "Job")
}
