package workload

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
)

// indexPod returns the running pod of a completion index.
func (m *sim) indexPod(index int) *simPod {
	m.t.Helper()
	for _, p := range m.running() {
		if p.spec.Pod.Annotations[batchv1.JobCompletionIndexAnnotation] == fmt.Sprint(index) {
			return p
		}
	}
	m.t.Fatalf("no pod of index %d runs", index)
	return nil
}

func TestIndexes_AddAndRead_SameAsASet(t *testing.T) {
	t.Parallel()
	const limit = 40
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 0))
		var x, y indexes
		inX, inY := map[int32]bool{}, map[int32]bool{}
		for range rng.IntN(limit) {
			i, k := rng.Int32N(limit), rng.Int32N(limit)
			x, inX[i] = x.with(i), true
			y, inY[k] = y.with(k), true
		}
		var both int32
		for i := range int32(limit) {
			last, has := x.has(i)
			if has != inX[i] || has && (last < i || !inX[last] || inX[last+1]) {
				t.Fatalf("seed %d: %v has %d: %v until %d", seed, x, i, has, last)
			}
			if inX[i] && inY[i] {
				both++
			}
		}
		equal(t, "the count", x.count(), int32(len(inX)))
		equal(t, "the common ones", x.common(y), both)
		equal(t, "the text read again", parseIndexes(x.String(), limit).String(), x.String())
	}
	equal(t, "the text", parseIndexes("0,1,2,4,5,7", 100).String(), "0-2,4,5,7")
	equal(t, "the text below 5", parseIndexes("1-3,x,4-9,12", 5).String(), "1-4")
}

func TestJob_Indexed_PodHasItsIndex(t *testing.T) {
	t.Parallel()
	m := newSim(t, KindJob, workJob(3, 2, indexedJob))
	equal(t, "the status", m.job(), "active 2 succeeded 0 failed 0")
	p := m.indexPod(1).spec.Pod
	equal(t, "the host name", p.Spec.Hostname, "web-1")
	equal(t, "the label", p.Labels["batch.kubernetes.io/job-completion-index"], "1")
	env := p.Spec.Containers[0].Env[0]
	equal(t, "the variable", env.Name+" "+env.ValueFrom.FieldRef.FieldPath, "JOB_COMPLETION_INDEX metadata.labels['batch.kubernetes.io/job-completion-index']")
	if !strings.HasPrefix(p.Name, "web-1-") || p.GenerateName != "web-1-" {
		t.Errorf("the name is %s, generated from %s", p.Name, p.GenerateName)
	}
	m.ends(m.indexPod(1), 0)
	equal(t, "the status", m.job(), "active 2 succeeded 1 failed 0 completed 1")
	m.ends(m.indexPod(0), 1)
	equal(t, "the status", m.job(), "active 1 succeeded 1 failed 1 completed 1")
	m.pass(time.Minute)
	m.next()
	m.ends(m.indexPod(2), 0)
	m.ends(m.indexPod(0), 0)
	equal(t, "the status", m.job(), "active 0 succeeded 3 failed 1 completed 0-2 SuccessCriteriaMet:CompletionsReached Complete:CompletionsReached")
}

func TestJob_BackoffLimitPerIndex_EachIndexHasItsOwnFailures(t *testing.T) {
	t.Parallel()
	m := newSim(t, KindJob, workJob(3, 3, indexedJob, func(s *batchv1.JobSpec) { s.BackoffLimitPerIndex = number(1) }))
	m.next()
	m.ends(m.indexPod(0), 1)
	equal(t, "the status", m.job(), "active 2 succeeded 0 failed 1")
	equal(t, "the wait", m.wakesIn(), 10*time.Second)
	m.pass(10 * time.Second)
	m.next()
	equal(t, "the failures", m.indexPod(0).spec.Pod.Annotations[batchv1.JobIndexFailureCountAnnotation], "1")
	m.restart()
	m.ends(m.indexPod(0), 1)
	m.ends(m.indexPod(1), 0)
	equal(t, "the status", m.job(), "active 1 succeeded 1 failed 2 completed 1 lost 0")
	m.ends(m.indexPod(2), 0)
	equal(t, "the status", m.job(), "active 0 succeeded 2 failed 2 completed 1,2 lost 0 FailureTarget:FailedIndexes Failed:FailedIndexes")
}

func TestJob_MaxFailedIndexes_JobFails(t *testing.T) {
	t.Parallel()
	m := newSim(t, KindJob, workJob(4, 4, indexedJob, func(s *batchv1.JobSpec) {
		s.BackoffLimitPerIndex, s.MaxFailedIndexes = number(5), number(0)
		s.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
			Action:      batchv1.PodFailurePolicyActionFailIndex,
			OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: []int32{3}},
		}}}
	}))
	m.next()
	m.ends(m.indexPod(2), 3)
	equal(t, "the status", m.job(), "active 0 succeeded 0 failed 4 terminating 3 lost 2 FailureTarget:MaxFailedIndexesExceeded")
}

func TestJob_SuccessPolicy_OtherPodsStop(t *testing.T) {
	t.Parallel()
	leader := "0,2-3"
	m := newSim(t, KindJob, workJob(5, 5, indexedJob, func(s *batchv1.JobSpec) {
		s.SuccessPolicy = &batchv1.SuccessPolicy{Rules: []batchv1.SuccessPolicyRule{{SucceededIndexes: &leader, SucceededCount: number(2)}, {SucceededCount: number(4)}}}
	}))
	m.next()
	m.ends(m.indexPod(1), 0)
	m.ends(m.indexPod(2), 0)
	equal(t, "the status", m.job(), "active 3 succeeded 2 failed 0 completed 1,2")
	m.ends(m.indexPod(3), 0)
	equal(t, "the status", m.job(), "active 0 succeeded 3 failed 0 terminating 2 completed 1-3 SuccessCriteriaMet:SuccessPolicy")
	m.gone()
	equal(t, "the status", m.job(), "active 0 succeeded 3 failed 0 completed 1-3 SuccessCriteriaMet:SuccessPolicy Complete:SuccessPolicy")
	equal(t, "the message", m.in.State.Job.Status.Conditions[0].Message, "Matched rules at index 0")
}

func TestJob_ElasticIndexed_CompletionsChangeWithParallelism(t *testing.T) {
	t.Parallel()
	m := newSim(t, KindJob, workJob(3, 3, indexedJob))
	m.next()
	m.ends(m.indexPod(2), 0)
	m.next()
	editJob(m, func(s *batchv1.JobSpec) { s.Completions, s.Parallelism = number(2), number(2) })
	equal(t, "the status", m.job(), "active 2 succeeded 0 failed 0")
	editJob(m, func(s *batchv1.JobSpec) { s.Completions, s.Parallelism = number(4), number(4) })
	equal(t, "the status", m.job(), "active 4 succeeded 0 failed 0")
	equal(t, "the number of events about the edit", len(m.last.Events), 2)
	for _, s := range m.last.Pods {
		equal(t, "the restart policy", s.Pod.Spec.RestartPolicy, v1.RestartPolicyNever)
	}
}
