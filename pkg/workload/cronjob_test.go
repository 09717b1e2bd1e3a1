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

func webCron(schedule string, change ...func(*batchv1.CronJobSpec)) *batchv1.CronJob {
	c := &batchv1.CronJob{ObjectMeta: simMeta(), Spec: batchv1.CronJobSpec{
		Schedule: schedule, JobTemplate: batchv1.JobTemplateSpec{Spec: workJob(1, 1).Spec},
	}}
	for _, f := range change {
		f(&c.Spec)
	}
	return c
}

func editCron(m *sim, change func(*batchv1.CronJobSpec)) {
	simEdit(m, func(c *batchv1.CronJob) { change(&c.Spec) })
}

// cron asks for a decision, and returns the scheduled times of the Jobs in the state with their
// results, as "12:05 Complete, 12:10 active".
func (m *sim) cron() string {
	m.t.Helper()
	m.next()
	var out []string
	for _, run := range m.in.State.CronJob.Jobs {
		result := "active"
		if c := finished(&run.State.Status); c != nil {
			result = string(c.Type)
		}
		out = append(out, run.Scheduled.UTC().Format("15:04")+" "+result)
	}
	return strings.Join(out, ", ")
}

func TestCronJob_TimeHasCome_JobOfThatMinuteStarts(t *testing.T) {
	t.Parallel()
	m := newSim(t, KindCronJob, webCron("*/5 * * * *"))
	equal(t, "the jobs", m.cron(), "")
	equal(t, "the wait", m.wakesIn(), 5*time.Minute)
	m.pass(5*time.Minute + 3*time.Second)
	equal(t, "the jobs", m.cron(), "12:05 active")
	name := fmt.Sprintf("web-%d", worldBegin.Add(5*time.Minute).Unix()/60)
	equal(t, "the first event", m.events()[0], "SuccessfulCreate: Created job "+name)
	equal(t, "the wait", m.wakesIn(), 5*time.Minute-3*time.Second)
	p := m.last.Pods[0].Pod
	equal(t, "the owner of the pod", metav1.GetControllerOf(p).Name, name)
	if !Owns(m.in.Object, m.in.Node, m.last.Pods[0]) {
		t.Error("the CronJob does not own the pod of its Job")
	}
	status := m.last.Status.(*batchv1.CronJobStatus)
	equal(t, "the active jobs", len(status.Active), 1)
	equal(t, "the name of the active job", status.Active[0].Name, name)
	m.restart()
	m.finish(1, 0)
	equal(t, "the jobs", m.cron(), "12:05 Complete")
	equal(t, "the events", m.events(), []string{"SawCompletedJob: Saw completed job: " + name + ", condition: Complete", "Completed: Job " + name + ": Job completed"})
	status = m.last.Status.(*batchv1.CronJobStatus)
	equal(t, "the last success", status.LastSuccessfulTime.UTC(), m.in.Now)
	equal(t, "the number of pods", len(m.last.Pods), 1)
}

func TestCronJob_TimeZone_DecidesTheHour(t *testing.T) {
	t.Parallel()
	zone := "Asia/Tokyo" // 12:00 UTC is 21:00 there
	m := newSim(t, KindCronJob, webCron("30 21 * * *", func(s *batchv1.CronJobSpec) { s.TimeZone = &zone }))
	m.next()
	equal(t, "the wait", m.wakesIn(), 30*time.Minute)
	local := newSim(t, KindCronJob, webCron("30 21 * * *"))
	local.in.Now = local.in.Now.In(time.FixedZone("node", 8*3600)) // 20:00
	local.next()
	equal(t, "the wait in the zone of the node", local.wakesIn(), 90*time.Minute)
}

func TestCronJob_ConcurrencyPolicy_DecidesAboutAJobThatStillRuns(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		policy batchv1.ConcurrencyPolicy
		want   string
	}{
		{"", "12:01 active, 12:02 active"},
		{batchv1.ForbidConcurrent, "12:01 active"},
		{batchv1.ReplaceConcurrent, "12:02 active"},
	} {
		m := newSim(t, KindCronJob, webCron("* * * * *", func(s *batchv1.CronJobSpec) { s.ConcurrencyPolicy = c.policy }))
		m.next()
		m.pass(time.Minute)
		m.next()
		old := m.last.Pods[0].Name
		m.pass(time.Minute)
		equal(t, "the jobs", m.cron(), c.want)
		switch c.policy {
		case batchv1.ReplaceConcurrent:
			equal(t, "the pod that leaves", m.last.Steps[0].Key.Name, old)
			m.restart()
			equal(t, "the jobs", m.cron(), c.want)
		case batchv1.ForbidConcurrent:
			equal(t, "the events", m.events(), []string{"JobAlreadyActive: Not starting job because prior execution is running and concurrency policy is Forbid"})
			m.pass(10 * time.Second)
			m.finish(1, 0)
			equal(t, "the jobs", m.cron(), "12:01 Complete, 12:02 active") // late, but not lost
		}
	}
}

func TestCronJob_StartsWereMissed_OnlyTheNewestIsMadeUpFor(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, schedule string
		away           time.Duration
		deadline       int64
		want           string
		warns          bool
	}{
		{"a few", "*/10 * * * *", 35 * time.Minute, 0, "12:30 active", false},
		{"within the deadline", "*/10 * * * *", 35 * time.Minute, 301, "12:30 active", false},
		{"after the deadline", "*/10 * * * *", 35 * time.Minute, 200, "", false},
		{"many", "* * * * *", 3 * time.Hour, 0, "15:00 active", true},
		{"many before the deadline", "* * * * *", 3 * time.Hour, 600, "15:00 active", false},
	} {
		m := newSim(t, KindCronJob, webCron(c.schedule, func(s *batchv1.CronJobSpec) {
			if c.deadline > 0 {
				s.StartingDeadlineSeconds = &c.deadline
			}
		}))
		m.next()
		m.pass(c.away)
		equal(t, c.name, m.cron(), c.want)
		equal(t, c.name+": a warning", strings.Contains(strings.Join(m.events(), "\n"), "TooManyMissedTimes"), c.warns)
	}
}

func TestCronJob_HistoryLimits_OldestJobsLeave(t *testing.T) {
	t.Parallel()
	m := newSim(t, KindCronJob, webCron("* * * * *", func(s *batchv1.CronJobSpec) {
		s.SuccessfulJobsHistoryLimit = number(2)
		s.JobTemplate.Spec.BackoffLimit = number(0)
	}))
	m.next()
	for i := range 8 {
		m.pass(time.Minute)
		m.next()
		m.finish(1, int32(i%2))
		m.next()
		m.gone()
	}
	equal(t, "the jobs", m.cron(), "12:05 Complete, 12:07 Complete, 12:08 Failed")
	equal(t, "the number of pods", len(m.last.Pods), 3)
	editCron(m, func(s *batchv1.CronJobSpec) {
		s.SuccessfulJobsHistoryLimit, s.FailedJobsHistoryLimit = number(0), number(0)
	})
	equal(t, "the jobs", m.cron(), "")
	equal(t, "the reason", strings.Contains(m.last.Steps[0].Reason, "successfulJobsHistoryLimit is 0"), true)
}

func TestCronJob_TTL_JobLeaves(t *testing.T) {
	t.Parallel()
	m := newSim(t, KindCronJob, webCron("0 * * * *", func(s *batchv1.CronJobSpec) { s.JobTemplate.Spec.TTLSecondsAfterFinished = number(30) }))
	m.next()
	m.pass(time.Hour)
	m.next()
	m.finish(1, 0)
	equal(t, "the jobs", m.cron(), "13:00 Complete")
	equal(t, "the wait", m.wakesIn(), 30*time.Second)
	m.pass(30 * time.Second)
	equal(t, "the jobs", m.cron(), "")
}

func TestCronJob_TemplateIsEdited_NextJobHasIt(t *testing.T) {
	t.Parallel()
	m := newSim(t, KindCronJob, webCron("* * * * *"))
	m.next()
	m.pass(time.Minute)
	m.next()
	editCron(m, func(s *batchv1.CronJobSpec) { s.JobTemplate.Spec.Template.Spec.Containers[0].Image = "work:2" })
	m.pass(30 * time.Second)
	m.finish(1, 1)
	m.pass(20 * time.Second)
	m.next()
	m.pass(10 * time.Second)
	m.next()
	images := map[string]int{}
	for _, s := range m.last.Pods {
		images[s.Pod.Spec.Containers[0].Image]++
	}
	equal(t, "the images", images, map[string]int{"work:1": 2, "work:2": 1}) // one has failed
}

func TestCronJob_Suspended_StartsNothing(t *testing.T) {
	t.Parallel()
	yes := true
	m := newSim(t, KindCronJob, webCron("* * * * *", func(s *batchv1.CronJobSpec) { s.Suspend = &yes }))
	m.next()
	m.pass(time.Hour)
	equal(t, "the jobs", m.cron(), "")
	equal(t, "the wait", m.wakesIn(), 0)
}

func TestCronJob_ClockIsSetBack_NoMinuteStartsTwice(t *testing.T) {
	t.Parallel()
	m := newSim(t, KindCronJob, webCron("*/10 * * * *"))
	m.next()
	m.pass(10 * time.Minute)
	m.next()
	m.finish(1, 0)
	m.pass(-9 * time.Minute)
	equal(t, "the jobs", m.cron(), "12:10 Complete")
	equal(t, "the reason of the first event", strings.HasPrefix(m.events()[0], "SawCompletedJob") || strings.HasPrefix(m.events()[0], "ClockSetBack"), true)
	equal(t, "the wait", m.wakesIn(), 19*time.Minute)
	m.pass(10 * time.Minute)
	equal(t, "the jobs", m.cron(), "12:10 Complete")
	m.pass(9 * time.Minute)
	equal(t, "the jobs", m.cron(), "12:10 Complete, 12:20 active")
}

func TestCronJob_StateIsLost_JobsAreThoseOfThePods(t *testing.T) {
	t.Parallel()
	m := newSim(t, KindCronJob, webCron("*/10 * * * *"))
	m.next()
	m.pass(10 * time.Minute)
	m.next()
	m.in.State = State{}
	m.pass(time.Minute)
	m.expect("")
	m.finish(1, 0)
	equal(t, "the jobs", m.cron(), "12:10 Complete")
	equal(t, "the wait", m.wakesIn(), 9*time.Minute)
}

func TestCronJob_ScheduleNeverComes_OneEventSaysSo(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ schedule, reason string }{{"0 0 31 2 *", "InvalidSchedule"}, {"whenever", "UnparseableSchedule"}, {"TZ=0", "UnparseableSchedule"}} {
		m := newSim(t, KindCronJob, webCron(c.schedule))
		m.next()
		equal(t, "the number of events", len(m.last.Events), 1)
		equal(t, "the event", m.last.Events[0].Reason+m.last.Events[0].Type, c.reason+v1.EventTypeWarning)
		m.pass(time.Hour)
		m.next()
		equal(t, "the number of events later", len(m.last.Events), 0)
	}
}

// TestCronJob_ScheduleOfSeconds_IsDueOnceAMinute: the name of a Job contains its minute, so only
// one starts in a minute. A CronJob that must wait for its Job is due once a minute, too.
func TestCronJob_ScheduleOfSeconds_IsDueOnceAMinute(t *testing.T) {
	t.Parallel()
	for name, policy := range map[string]batchv1.ConcurrencyPolicy{"allow": batchv1.AllowConcurrent, "forbid": batchv1.ForbidConcurrent, "replace": batchv1.ReplaceConcurrent} {
		m := newSim(t, KindCronJob, webCron("@every 1s", func(s *batchv1.CronJobSpec) { s.ConcurrencyPolicy = policy }))
		m.cron()
		equal(t, name+": the first wait", m.wakesIn(), time.Second)
		m.pass(time.Second)
		equal(t, name+": the jobs", m.cron(), "12:00 active")
		equal(t, name+": the wait", m.wakesIn(), 59*time.Second)
		m.pass(10 * time.Second)
		m.cron()
		equal(t, name+": the wait in the minute", m.wakesIn(), 49*time.Second)
		m.pass(49 * time.Second)
		want := map[string]string{"allow": "12:00 active, 12:01 active", "forbid": "12:00 active", "replace": "12:01 active"}[name]
		equal(t, name+": the jobs of the next minute", m.cron(), want)
		equal(t, name+": the wait then", m.wakesIn(), time.Minute)
	}
}
