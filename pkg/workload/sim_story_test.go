package workload

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/test/tier"
)

// A story is a sequence of random events around one workload: pods become ready, succeed, fail,
// stop and vanish, statuses are unknown for a while, the clock jumps, the agent restarts, and a
// person edits the workload. After each event a decision is taken and checked.
var simStories = tier.Pick(30, 100)

const simEvents = 40

// tell tells all stories of one kind of workload.
func tell(t *testing.T, story func(t *testing.T, rng *rand.Rand)) {
	t.Parallel()
	for seed := range uint64(simStories) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { story(t, rand.New(rand.NewPCG(seed, 7))) })
	}
}

// stir lets something happen to each pod. A pod of a Job may end by itself.
func (m *sim) stir(rng *rand.Rand, ends bool) {
	var kept []*simPod
	for _, p := range m.pods {
		chance := rng.Float64()
		runs := p.status != nil && p.status.Phase == v1.PodRunning
		p.unknown = p.unknown && rng.IntN(2) == 0
		switch {
		case p.stops && chance < 0.4:
			continue // nothing is left of it
		case p.stops && chance < 0.6:
			m.ends(p, int32(rng.IntN(2)*143))
		case p.stops || m.blocked(p) || chance < 0.3:
		case p.status == nil:
			m.runs(p, rng.IntN(2) == 0)
		case runs && ends && chance < 0.7:
			m.ends(p, int32(rng.IntN(3)/2))
		case runs && chance > 0.97:
			m.ends(p, 137)
			p.status.Reason = "Evicted"
		case runs:
			m.runs(p, chance < 0.85)
		case !ends:
			p.status = nil // the node starts it again
		}
		kept = append(kept, p)
	}
	m.pods = kept
}

// disturb restarts the agent or moves the clock.
func (m *sim) disturb(rng *rand.Rand) {
	if rng.IntN(2) == 0 {
		m.pass([]time.Duration{time.Hour, -time.Hour, -3 * time.Second, 26 * time.Hour, -40 * time.Hour}[rng.IntN(5)])
		return
	}
	m.restart()
	var kept []*simPod
	for _, p := range m.pods {
		p.unknown = rng.IntN(3) == 0
		if rng.IntN(12) > 0 {
			kept = append(kept, p) // the others have lost their records
		}
	}
	m.pods = kept
}

func TestStatefulSet_AnyStory_KeepsItsPromises(t *testing.T) {
	tell(t, func(t *testing.T, rng *rand.Rand) {
		m := newSim(t, KindStatefulSet, webSet(rng.Int32N(5)))
		if rng.IntN(3) == 0 {
			editSet(m, parallelSet)
		}
		onDelete := rng.IntN(5) == 0
		if onDelete {
			editSet(m, func(s *appsv1.StatefulSetSpec) { s.UpdateStrategy.Type = appsv1.OnDeleteStatefulSetStrategyType })
		}
		for range simEvents {
			m.pass(time.Duration(rng.IntN(5000)) * time.Millisecond)
			switch n := rng.IntN(12); {
			case n == 0:
				editSet(m, replicasAre(rng.Int32N(5)))
			case n == 1:
				editSet(m, imageOf(fmt.Sprintf("web:%d", rng.IntN(3))))
			case n == 2 && !onDelete:
				editSet(m, rollingFrom(rng.Int32N(4), []string{"", "2"}[rng.IntN(2)]))
			case n == 3:
				m.disturb(rng)
			default:
				m.stir(rng, false)
			}
			m.next()
			checkSet(m, m.asked, m.last)
		}
		if !onDelete {
			editSet(m, rollingFrom(0, ""))
		}
		for range 40 {
			m.pass(time.Second)
			for _, p := range m.pods {
				p.unknown = false
				if p.status != nil && p.status.Phase != v1.PodRunning {
					p.status = nil
				}
			}
			m.ready()
			m.gone()
			m.next()
			checkSet(m, m.asked, m.last)
		}
		var want []string
		for i := range *m.in.Object.Object.(*appsv1.StatefulSet).Spec.Replicas {
			want = append(want, fmt.Sprintf("web-%d", i))
		}
		equal(t, "the pods in the end", strings.Join(m.names(), " "), strings.Join(want, " "))
		newest := m.in.State.Revisions[len(m.in.State.Revisions)-1].Hash
		for _, s := range m.last.Pods {
			if !onDelete && revisionOf(s) != newest {
				t.Errorf("%s has revision %s in the end, want %s", s.Key, revisionOf(s), newest)
			}
		}
	})
}

// jobStory is a Job and the facts that its story has shown.
type jobStory struct {
	*sim
	succeeded map[string]bool // UIDs of pods that were reported as Succeeded while they counted
	done      bool
	failed    int32
}

func (j *jobStory) spec() batchv1.JobSpec { return j.in.Object.Object.(*batchv1.Job).Spec }

// decide takes a decision and checks it.
func (j *jobStory) decide() {
	j.t.Helper()
	for _, p := range j.pods {
		if !j.done && !p.stops && !p.unknown && p.status != nil && p.status.Phase == v1.PodSucceeded {
			j.succeeded[p.spec.UID()] = true
		}
	}
	d := j.next()
	s, spec := d.Status.(*batchv1.JobStatus), j.spec()
	if j.done && !d.Done {
		j.t.Fatal("the Job is not done any more")
	}
	adds := 0
	for _, step := range d.Steps {
		if step.Action == Add {
			adds++
		}
	}
	if j.done && adds > 0 {
		j.t.Fatalf("a Job that is done makes pods: %v", d.Steps)
	}
	j.done = d.Done
	indexed := spec.CompletionMode != nil
	if seen := int32(len(j.succeeded)); !indexed && s.Succeeded != seen || s.Succeeded > seen {
		j.t.Fatalf("the status has %d successes, and %d pods succeeded", s.Succeeded, seen)
	}
	if spec.Completions != nil && s.Succeeded > *spec.Completions {
		j.t.Fatalf("%d of %d completions succeeded", s.Succeeded, *spec.Completions)
	}
	if s.Failed < j.failed || int(s.Failed+s.Succeeded) > len(j.made) {
		j.t.Fatalf("%d pods failed after %d, %d succeeded, and %d were made", s.Failed, j.failed, s.Succeeded, len(j.made))
	}
	j.failed = s.Failed
	j.checkActive(s, adds)
}

// checkActive fails if more pods are active than may be.
func (j *jobStory) checkActive(s *batchv1.JobStatus, adds int) {
	j.t.Helper()
	spec, indexes := j.spec(), map[string]bool{}
	var active int32
	for _, p := range j.pods {
		if p.stops || (Pod{Status: p.status}).isTerminated() {
			continue
		}
		active++
		if index := p.spec.Pod.Annotations[batchv1.JobCompletionIndexAnnotation]; index != "" {
			if indexes[index] {
				j.t.Fatalf("two pods of index %s are active", index)
			}
			indexes[index] = true
		}
	}
	most := *spec.Parallelism
	if spec.Completions != nil {
		most = min(most, *spec.Completions-s.Succeeded)
	}
	switch {
	case spec.Suspend != nil && *spec.Suspend && active > 0:
		j.t.Fatalf("%d pods of a suspended Job are active", active)
	case spec.Completions == nil && s.Succeeded > 0:
		if adds > 0 {
			j.t.Fatal("a pod is made after a success")
		}
	case active > most:
		j.t.Fatalf("%d pods are active, at most %d may be", active, most)
	}
	if *defaultedSpec(spec).PodReplacementPolicy == batchv1.Failed && adds > 0 && active+*s.Terminating > *spec.Parallelism {
		j.t.Fatalf("a pod is made while %d are active and %d terminate", active, *s.Terminating)
	}
}

// randomJob returns a Job with random fields.
func randomJob(rng *rand.Rand) *batchv1.Job {
	job := workJob(rng.Int32N(7)-1, rng.Int32N(4))
	s := &job.Spec
	s.BackoffLimit = number(rng.Int32N(12))
	if s.Completions != nil && rng.IntN(2) == 0 {
		indexedJob(s)
		if rng.IntN(2) == 0 {
			s.BackoffLimitPerIndex = number(rng.Int32N(3))
		}
	}
	if rng.IntN(3) == 0 {
		policy := batchv1.Failed
		s.PodReplacementPolicy = &policy
	}
	if rng.IntN(4) == 0 {
		s.TTLSecondsAfterFinished = number(100)
	}
	return job
}

func TestJob_AnyStory_KeepsItsPromises(t *testing.T) {
	tell(t, func(t *testing.T, rng *rand.Rand) {
		j := &jobStory{sim: newSim(t, KindJob, randomJob(rng)), succeeded: map[string]bool{}}
		for range simEvents {
			j.pass(time.Duration(rng.IntN(20000)) * time.Millisecond)
			switch rng.IntN(12) {
			case 0:
				editJob(j.sim, func(s *batchv1.JobSpec) { s.Parallelism = number(rng.Int32N(4)) })
			case 1:
				suspend := rng.IntN(2) == 0
				editJob(j.sim, func(s *batchv1.JobSpec) { s.Suspend = &suspend })
			case 2:
				editJob(j.sim, func(s *batchv1.JobSpec) { s.Template.Spec.Containers[0].Image = fmt.Sprintf("work:%d", rng.IntN(2)) })
			case 3:
				j.disturb(rng)
			default:
				j.stir(rng, true)
			}
			j.decide()
		}
		editJob(j.sim, func(s *batchv1.JobSpec) { s.Suspend, s.Parallelism = nil, number(2) })
		for range 30 {
			j.pass(time.Hour)
			j.gone()
			for _, p := range j.pods {
				if p.unknown = false; !(Pod{Status: p.status}).isTerminated() {
					j.ends(p, 0)
				}
			}
			j.decide()
		}
		if !j.done {
			t.Fatalf("the Job is not done in the end: %s", asJSON(t, j.last.Status))
		}
	})
}

func TestCronJob_AnyStory_KeepsItsPromises(t *testing.T) {
	tell(t, func(t *testing.T, rng *rand.Rand) {
		policy := []batchv1.ConcurrencyPolicy{batchv1.AllowConcurrent, batchv1.ForbidConcurrent, batchv1.ReplaceConcurrent}[rng.IntN(3)]
		schedule := []string{"* * * * *", "*/7 * * * *", "@every 40s", "3-20/5 * * * *", "0 13 * * *"}[rng.IntN(5)]
		m := newSim(t, KindCronJob, webCron(schedule, func(s *batchv1.CronJobSpec) {
			s.ConcurrencyPolicy = policy
			s.SuccessfulJobsHistoryLimit, s.FailedJobsHistoryLimit = number(rng.Int32N(3)), number(rng.Int32N(2))
			s.JobTemplate.Spec = randomJob(rng).Spec
			if rng.IntN(3) == 0 {
				deadline := rng.Int64N(300)
				s.StartingDeadlineSeconds = &deadline
			}
		}))
		started := map[string]bool{}
		for range simEvents {
			m.pass(time.Duration(rng.IntN(60000)) * time.Millisecond)
			switch rng.IntN(12) {
			case 0:
				suspend := rng.IntN(3) == 0
				editCron(m, func(s *batchv1.CronJobSpec) { s.Suspend = &suspend })
			case 1:
				m.disturb(rng)
			default:
				m.stir(rng, true)
			}
			m.next()
			checkCron(m, started)
		}
	})
}

// checkCron fails if a decision breaks a promise of a CronJob. started are the names of the Jobs
// that earlier decisions started.
func checkCron(m *sim, started map[string]bool) {
	m.t.Helper()
	for _, e := range m.last.Events {
		name, is := strings.CutPrefix(e.Message, "Created job ")
		if is && started[name] {
			m.t.Fatalf("%s starts twice", name)
		}
		if is {
			started[name] = true
		}
	}
	spec := &m.in.Object.Object.(*batchv1.CronJob).Spec
	count := map[string]int{}
	for _, run := range m.in.State.CronJob.Jobs {
		result := "active"
		if c := finished(&run.State.Status); c != nil {
			result = string(c.Type)
		}
		count[result]++
	}
	if active := count["active"]; active > 1 && spec.ConcurrencyPolicy != batchv1.AllowConcurrent {
		m.t.Fatalf("%d Jobs are active with the policy %s", active, spec.ConcurrencyPolicy)
	}
	if n := count["Complete"]; n > int(*spec.SuccessfulJobsHistoryLimit) {
		m.t.Fatalf("%d Jobs that succeeded stay", n)
	}
	if n := count["Failed"]; n > int(*spec.FailedJobsHistoryLimit) {
		m.t.Fatalf("%d Jobs that failed stay", n)
	}
	if last := m.in.State.CronJob.LastSchedule; last != nil && len(m.last.Events) > 0 && strings.HasPrefix(m.last.Events[0].Message, "Created job ") && last.After(m.in.Now) {
		m.t.Fatalf("a Job of %v starts at %v", last, m.in.Now)
	}
}
