package workload

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	_ "time/tzdata" // a CronJob may name a time zone, and a node may lack the database of them

	"github.com/robfig/cron/v3"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/nodectl/nodectl/pkg/pod"
)

// The default history limits.
const (
	defaultSuccessfulHistory = 3
	defaultFailedHistory     = 1
)

// manyMissed is the number of missed starts above which an event reports them.
const manyMissed = 100

// nextCronJob decides for a CronJob as Kubernetes' CronJob controller does: it makes a Job for each
// scheduled time, decides for its Jobs, and removes the oldest Jobs beyond the history limits. If
// several scheduled times have passed, only the newest one starts a Job. A later edit of the CronJob's
// template does not change a Job that has started.
//
// A CronJob without a time zone uses the time zone of Input.Now. No scheduled time starts twice: if
// the clock is set back, the CronJob waits for the first time after its newest start.
func nextCronJob(in Input) Decision {
	cj, ok := in.Object.Object.(*batchv1.CronJob)
	if !ok {
		return Decision{State: in.State}
	}
	c := &cronRun{result: newResult(&in), cj: cj}
	c.load()
	c.schedule()
	c.noteFinished()
	c.prune()
	return c.decide()
}

// cronRun decides for one CronJob.
type cronRun struct {
	*result
	cj    *batchv1.CronJob
	state CronJobState
	jobs  []*cronChild // the oldest first
}

// cronChild is one Job of a CronJob, and the decision about it.
type cronChild struct {
	CronJobRun
	*jobRun
	completed bool // in this call
}

// load reads the state, and decides for each Job. Without a state, it finds the Jobs by their pods.
func (c *cronRun) load() {
	now := seconds(c.in.Now)
	c.state = CronJobState{Since: now}
	if s := c.in.State.CronJob; s != nil {
		c.state = *s
		if c.state.Since.After(now.Time) {
			c.state.Since = now // the clock was set back before the first start
		}
	} else {
		c.adopt()
	}
	for _, run := range c.state.Jobs {
		c.jobs = append(c.jobs, c.child(run, nil))
	}
}

// child decides for one Job. positions are the positions of the template in the file, or nil if the
// template may have changed.
func (c *cronRun) child(run CronJobRun, positions map[string]pod.Position) *cronChild {
	j := &jobRun{
		result: newResult(c.in), name: run.Name, owner: c.in.child(KindJob, run.Name), pods: c.podsOf(run.Name),
		spec: defaultedSpec(run.Template), positions: positions, state: run.State,
	}
	before := finished(&run.State.Status) != nil
	j.next()
	return &cronChild{CronJobRun: run, jobRun: j, completed: !before && finished(&j.state.Status) != nil}
}

// podsOf returns the pods of a Job.
func (c *cronRun) podsOf(job string) []Pod {
	var out []Pod
	for _, p := range c.in.Pods {
		if ref := metav1.GetControllerOfNoCopy(p.Spec.Pod); ref != nil && ref.Name == job {
			out = append(out, p)
		}
	}
	return out
}

// adopt fills an empty state with the Jobs whose pods exist: an earlier state was lost. It also sets
// LastSchedule to the newest scheduled time of these Jobs, so that no scheduled time starts twice.
func (c *cronRun) adopt() {
	for _, p := range c.in.Pods {
		ref := metav1.GetControllerOfNoCopy(p.Spec.Pod)
		if p.Leaving || ref == nil || slices.ContainsFunc(c.state.Jobs, func(r CronJobRun) bool { return r.Name == ref.Name }) {
			continue
		}
		minutes, err := strconv.ParseInt(strings.TrimPrefix(ref.Name, c.in.Object.Name+"-"), 10, 64)
		if err != nil {
			continue
		}
		at := metav1.NewTime(time.Unix(minutes*60, 0))
		c.state.Jobs = append(c.state.Jobs, CronJobRun{Name: ref.Name, Scheduled: at, Template: *c.cj.Spec.JobTemplate.Spec.DeepCopy()})
		if c.state.LastSchedule == nil || c.state.LastSchedule.Before(&at) {
			c.state.LastSchedule = &at
		}
	}
	slices.SortFunc(c.state.Jobs, func(a, b CronJobRun) int { return a.Scheduled.Compare(b.Scheduled.Time) })
}

// noteFinished reports the Jobs that finished in this call.
func (c *cronRun) noteFinished() {
	for _, child := range c.jobs {
		if !child.completed {
			continue
		}
		end := finished(&child.jobRun.state.Status)
		c.event(v1.EventTypeNormal, "SawCompletedJob", fmt.Sprintf("Saw completed job: %s, condition: %v", child.Name, end.Type))
		at := child.jobRun.state.Status.CompletionTime
		if at != nil && (c.state.LastSuccess == nil || c.state.LastSuccess.Before(at)) {
			c.state.LastSuccess = at.DeepCopy()
		}
	}
}

// prune removes the Jobs whose ttlSecondsAfterFinished has passed, and the oldest Jobs beyond the
// history limits.
func (c *cronRun) prune() {
	spec := &c.cj.Spec
	c.pruneOldest(batchv1.JobComplete, ptr.Deref(spec.SuccessfulJobsHistoryLimit, defaultSuccessfulHistory), "successfulJobsHistoryLimit")
	c.pruneOldest(batchv1.JobFailed, ptr.Deref(spec.FailedJobsHistoryLimit, defaultFailedHistory), "failedJobsHistoryLimit")
	for _, child := range slices.Clone(c.jobs) {
		if child.expired {
			c.removeJob(child, "its ttlSecondsAfterFinished has passed")
		}
	}
}

// maxHistory limits how many completed and how many failed Jobs a CronJob keeps: the state holds a
// template of each.
const maxHistory = 100

func (c *cronRun) pruneOldest(end batchv1.JobConditionType, limit int32, field string) {
	var list []*cronChild
	for _, child := range c.jobs {
		if condition(&child.jobRun.state.Status, end) != nil {
			list = append(list, child)
		}
	}
	limit = min(limit, maxHistory)
	for _, child := range list[:max(0, len(list)-int(limit))] {
		c.removeJob(child, fmt.Sprintf("%s is %d", field, limit))
	}
}

// removeJob removes a Job and its pods.
func (c *cronRun) removeJob(child *cronChild, reason string) {
	c.jobs = slices.DeleteFunc(c.jobs, func(o *cronChild) bool { return o == child })
	for _, p := range child.pods {
		if !p.Leaving && !slices.Contains(child.State.Removed, p.Spec.UID()) {
			c.remove(p, "Job "+child.Name+" is removed: "+reason)
		}
	}
	c.event(v1.EventTypeNormal, "SuccessfulDelete", "Deleted job "+child.Name)
}

// active returns the Jobs that have not finished.
func (c *cronRun) active() []*cronChild {
	var out []*cronChild
	for _, child := range c.jobs {
		if finished(&child.jobRun.state.Status) == nil {
			out = append(out, child)
		}
	}
	return out
}

// schedule starts the Job that is due, if any, and sets the time of the next one.
func (c *cronRun) schedule() {
	if ptr.Deref(c.cj.Spec.Suspend, false) {
		return
	}
	schedule, err := parseSchedule(&c.cj.Spec)
	if err != nil {
		c.reportOnce(c.state.Since.Time, v1.EventTypeWarning, "UnparseableSchedule", fmt.Sprintf("unparseable schedule: %q : %s", c.cj.Spec.Schedule, err))
		return
	}
	after := c.newest()
	if limit := c.cj.Spec.StartingDeadlineSeconds; limit != nil {
		if d := c.in.Now.Add(-time.Duration(*limit) * time.Second); d.After(after) {
			after = d
		}
	}
	due, missed, err := lastDue(schedule, after, c.in.Now)
	if err != nil {
		c.reportOnce(c.state.Since.Time, v1.EventTypeWarning, "InvalidSchedule", fmt.Sprintf("invalid schedule: %s : %s", c.cj.Spec.Schedule, err))
		return
	}
	if !due.IsZero() {
		if missed > manyMissed {
			c.reportOnce(due, v1.EventTypeWarning, "TooManyMissedTimes", "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew")
		}
		c.start(due)
	}
	if next := c.nextDue(schedule); !next.IsZero() {
		c.out.Wake = earlier(c.out.Wake, next)
	}
}

// newest returns the scheduled time of the newest start, in the time zone of Input.Now. If no Job
// has started, it returns the time at which the CronJob was first seen. An event reports a time in
// the future.
func (c *cronRun) newest() time.Time {
	if c.state.LastSchedule == nil {
		return c.state.Since.In(c.in.Now.Location())
	}
	at := c.state.LastSchedule.In(c.in.Now.Location())
	if at.Sub(c.in.Now) > time.Minute {
		c.reportOnce(at, v1.EventTypeWarning, "ClockSetBack",
			fmt.Sprintf("the newest start was scheduled for %s, which is in the future: the clock was set back, and the next start is after that time", at.Format(time.RFC3339)))
	}
	return at
}

// start creates the Job of a scheduled time, if the concurrencyPolicy allows it.
func (c *cronRun) start(due time.Time) {
	name := fmt.Sprintf("%s-%d", c.in.Object.Name, due.Unix()/60)
	at := seconds(due)
	active := c.active()
	last := c.state.LastSchedule
	switch {
	case last != nil && last.Unix()/60 == due.Unix()/60, slices.ContainsFunc(c.jobs, func(o *cronChild) bool { return o.Name == name }):
		if last == nil || last.Unix()/60 != due.Unix()/60 {
			c.state.LastSchedule = &at
		}
		return // the Job of this minute exists: its name contains the minute
	case c.cj.Spec.ConcurrencyPolicy == batchv1.ForbidConcurrent && len(active) > 0:
		c.reportOnce(due, v1.EventTypeNormal, "JobAlreadyActive", "Not starting job because prior execution is running and concurrency policy is Forbid")
		return
	case c.cj.Spec.ConcurrencyPolicy == batchv1.ReplaceConcurrent:
		for _, child := range active {
			c.removeJob(child, "Job "+name+" replaces it (concurrencyPolicy Replace)")
		}
	}
	if n := len(c.in.Pods); n >= pod.MaxReplicas {
		c.reportOnce(due, v1.EventTypeWarning, "TooManyPods", fmt.Sprintf("Not starting job because the CronJob has %d pods, and a workload has %d at most", n, pod.MaxReplicas))
		return
	}
	child := c.child(CronJobRun{Name: name, Scheduled: at, Template: *c.cj.Spec.JobTemplate.Spec.DeepCopy()}, c.in.Object.Positions)
	c.jobs = append(c.jobs, child)
	c.state.LastSchedule = &at
	c.event(v1.EventTypeNormal, "SuccessfulCreate", "Created job "+name)
}

// nextDue returns the first scheduled time after now at which a Job may start, or zero. As in
// Kubernetes, the name of a Job contains its minute. So a schedule such as "@every 1s" starts one Job
// a minute and is due once a minute. A CronJob that waits for its Job to finish is also due once a
// minute.
func (c *cronRun) nextDue(schedule cron.Schedule) time.Time {
	base := c.newest()
	due, missed, err := lastDue(schedule, base, c.in.Now)
	switch {
	case err != nil, due.IsZero() && missed > 0:
		base = c.in.Now
	case !due.IsZero():
		base = due
	}
	next := schedule.Next(base)
	if !next.IsZero() && !next.After(c.in.Now) {
		next = schedule.Next(c.in.Now)
	}
	minute := func(t time.Time) int64 { return t.Unix() / 60 }
	last, waits := c.state.LastSchedule, c.cj.Spec.ConcurrencyPolicy == batchv1.ForbidConcurrent && len(c.active()) > 0
	for !next.IsZero() && (last != nil && minute(next) == minute(last.Time) || waits && minute(next) == minute(c.in.Now)) {
		next = schedule.Next(next)
	}
	return next
}

// reportOnce adds an event about a scheduled time, unless an earlier call has added it.
func (c *cronRun) reportOnce(at time.Time, kind, reason, message string) {
	if r := c.state.Reported; r != nil && r.Time.Equal(at) {
		return
	}
	reported := seconds(at)
	c.state.Reported = &reported
	c.event(kind, reason, message)
}

// decide collects the decisions about the Jobs.
func (c *cronRun) decide() Decision {
	status := &batchv1.CronJobStatus{LastScheduleTime: c.state.LastSchedule.DeepCopy(), LastSuccessfulTime: c.state.LastSuccess.DeepCopy()}
	c.state.Jobs = nil
	known := map[string]bool{}
	for _, child := range c.jobs {
		j := child.jobRun
		child.State = j.state
		c.state.Jobs = append(c.state.Jobs, child.CronJobRun)
		known[child.Name] = true
		c.out.Pods = append(c.out.Pods, j.out.Pods...)
		c.out.Steps = append(c.out.Steps, j.out.Steps...)
		c.out.Wake = earlier(c.out.Wake, j.out.Wake)
		for _, e := range j.out.Events {
			e.Message = "Job " + child.Name + ": " + e.Message
			c.out.Events = append(c.out.Events, e)
		}
	}
	for _, child := range c.active() {
		status.Active = append(status.Active, v1.ObjectReference{
			APIVersion: "batch/v1", Kind: KindJob, Namespace: c.in.Object.Namespace, Name: child.Name, UID: child.owner.UID,
		})
	}
	c.dropUnknown(known)
	c.out.State.CronJob, c.out.Status = &c.state, status
	return c.finish()
}

// dropUnknown removes the pods of Jobs that an earlier call removed. Such pods exist if the agent
// restarted while the node stopped them.
func (c *cronRun) dropUnknown(known map[string]bool) {
	shown := map[string]bool{}
	for _, step := range c.out.Steps {
		shown[step.Key.Name] = true
	}
	for p := range c.present() {
		if ref := metav1.GetControllerOfNoCopy(p.Spec.Pod); !shown[p.Spec.Name] && (ref == nil || !known[ref.Name]) {
			c.remove(p, "its Job does not exist any more")
		}
	}
}

// parseSchedule reads the schedule of a CronJob in its time zone.
func parseSchedule(spec *batchv1.CronJobSpec) (s cron.Schedule, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("invalid schedule format: %v", r) // the library panics on some texts
		}
	}()
	text := spec.Schedule
	if zone := ptr.Deref(spec.TimeZone, ""); zone != "" && !strings.Contains(text, "TZ=") {
		text = "TZ=" + zone + " " + text
	}
	return cron.ParseStandard(text)
}

// lastDue returns the newest scheduled time in the interval (after, now], or zero, and the number of
// scheduled times in the interval. Like Kubernetes, it computes both from the distance between the
// first two scheduled times. For an irregular schedule they are estimates.
func lastDue(s cron.Schedule, after, now time.Time) (due time.Time, missed int64, err error) {
	first := s.Next(after)
	second := s.Next(first)
	every := second.Sub(first).Round(time.Second)
	switch {
	case !first.IsZero() && now.Before(first):
		return time.Time{}, 0, nil
	case !first.IsZero() && now.Before(second):
		return first, 1, nil
	case first.IsZero() || every < time.Second:
		return time.Time{}, 0, errors.New("time difference between two schedules is less than 1 second")
	default:
		missed = int64(now.Sub(first)/every) + 1
		start := first.Add(time.Duration(missed-2) * every)
		for t := s.Next(start); !t.IsZero() && !t.After(now); t = s.Next(t) {
			due = t
		}
		return due, missed, nil
	}
}
