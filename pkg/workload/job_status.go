package workload

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/podspec"
)

// effectiveSpec returns the spec in effect for a Job, with the defaults of the Job's own fields. It
// records in the state the spec with which the Job began, and takes the immutable fields from
// there. edited reports an edit of these fields that no earlier call has reported.
func effectiveSpec(state *JobState, asked *batchv1.JobSpec) (spec batchv1.JobSpec, edited bool) {
	begun := state.Attempts > 0 || finished(&state.Status) != nil
	if state.Spec == nil || !begun {
		state.Spec, state.Edited = asked.DeepCopy(), ""
		return defaultedSpec(*asked), false
	}
	spec = defaultedSpec(*asked)
	first := defaultedSpec(*state.Spec)
	if isElastic(state, &first, &spec) {
		elastic := *state.Spec
		elastic.Completions, first.Completions = spec.Completions, spec.Completions
		state.Spec = &elastic
	}
	spec.Template, spec.Completions, spec.CompletionMode = first.Template, first.Completions, first.CompletionMode
	spec.PodFailurePolicy, spec.SuccessPolicy, spec.BackoffLimitPerIndex = first.PodFailurePolicy, first.SuccessPolicy, first.BackoffLimitPerIndex
	hash := ""
	if h := frozenHash(asked); h != frozenHash(state.Spec) {
		hash = h
	}
	edited = hash != "" && hash != state.Edited
	state.Edited = hash
	return spec, edited
}

// isElastic reports whether an edit may change the completions. In an indexed Job that has not
// finished, it may if the new completions equal the new parallelism.
func isElastic(state *JobState, first, asked *batchv1.JobSpec) bool {
	return *first.CompletionMode == batchv1.IndexedCompletion && finished(&state.Status) == nil &&
		asked.Completions != nil && *asked.Completions == *asked.Parallelism && *asked.Completions != *first.Completions
}

// frozenHash returns a hash of the immutable fields.
func frozenHash(s *batchv1.JobSpec) string {
	return podspec.HashObject(batchv1.JobSpec{
		Template: s.Template, Completions: s.Completions, CompletionMode: s.CompletionMode,
		PodFailurePolicy: s.PodFailurePolicy, SuccessPolicy: s.SuccessPolicy, BackoffLimitPerIndex: s.BackoffLimitPerIndex,
	})
}

// defaultedSpec returns a spec with the API's defaults, except those of its template.
func defaultedSpec(s batchv1.JobSpec) batchv1.JobSpec {
	one := int32(1)
	if s.Completions == nil && s.Parallelism == nil {
		s.Completions = &one
	}
	limit := int32(6)
	if s.BackoffLimitPerIndex != nil {
		limit = math.MaxInt32
	}
	replace := batchv1.TerminatingOrFailed
	if s.PodFailurePolicy != nil {
		replace = batchv1.Failed
	}
	mode, no := batchv1.NonIndexedCompletion, false
	s.Parallelism, s.BackoffLimit = cmp.Or(s.Parallelism, &one), cmp.Or(s.BackoffLimit, &limit)
	s.CompletionMode, s.Suspend = cmp.Or(s.CompletionMode, &mode), cmp.Or(s.Suspend, &no)
	s.PodReplacementPolicy = cmp.Or(s.PodReplacementPolicy, &replace)
	return s
}

// condition returns the condition of a type if it is True, else nil.
func condition(s *batchv1.JobStatus, t batchv1.JobConditionType) *batchv1.JobCondition {
	for i := range s.Conditions {
		if c := &s.Conditions[i]; c.Type == t && c.Status == v1.ConditionTrue {
			return c
		}
	}
	return nil
}

// finished returns the condition Complete or Failed of a Job that has finished, else nil.
func finished(s *batchv1.JobStatus) *batchv1.JobCondition {
	return cmp.Or(condition(s, batchv1.JobComplete), condition(s, batchv1.JobFailed))
}

// ending returns the condition FailureTarget or SuccessCriteriaMet, which decides the result of the
// Job, or nil. The Job finishes later, when none of its pods is terminating.
func (j *jobRun) ending() *batchv1.JobCondition {
	return cmp.Or(condition(&j.state.Status, batchv1.JobSuccessCriteriaMet), condition(&j.state.Status, batchv1.JobFailureTarget))
}

// setCondition sets a condition, and reports whether it changed. It does not add a missing
// condition as False.
func (j *jobRun) setCondition(t batchv1.JobConditionType, value v1.ConditionStatus, reason, message string) bool {
	now := seconds(j.in.Now)
	c := batchv1.JobCondition{Type: t, Status: value, LastProbeTime: now, LastTransitionTime: now, Reason: reason, Message: message}
	list := j.state.Status.Conditions
	at := slices.IndexFunc(list, func(c batchv1.JobCondition) bool { return c.Type == t })
	switch {
	case at < 0 && value == v1.ConditionFalse:
		return false
	case at < 0:
		j.state.Status.Conditions = append(j.state.Status.Conditions, c)
		return true
	case list[at].Status == value && list[at].Reason == reason && list[at].Message == message:
		return false
	}
	list[at] = c
	return true
}

// judge decides whether the Job fails, or has met its successPolicy. failJob is the message if the
// podFailurePolicy fails the Job, or "".
func (j *jobRun) judge(failJob string) {
	if j.ending() != nil {
		return
	}
	fail := func(reason, message string) {
		j.setCondition(batchv1.JobFailureTarget, v1.ConditionTrue, reason, message)
	}
	failed := j.failed.count()
	switch {
	case failJob != "":
		fail(batchv1.JobReasonPodFailurePolicy, failJob)
	case j.state.Status.Failed > *j.spec.BackoffLimit || j.restartsExceeded():
		fail(batchv1.JobReasonBackoffLimitExceeded, "Job has reached the specified backoff limit")
	case j.deadlinePassed():
		fail(batchv1.JobReasonDeadlineExceeded, "Job was active longer than specified deadline")
	case j.perIndex() && j.spec.MaxFailedIndexes != nil && failed > *j.spec.MaxFailedIndexes:
		fail(batchv1.JobReasonMaxFailedIndexesExceeded, "Job has exceeded the specified maximal number of failed indexes")
	case j.perIndex() && failed > 0 && failed+j.done.count() >= *j.spec.Completions:
		fail(batchv1.JobReasonFailedIndexes, "Job has failed indexes")
	case j.indexed():
		if message, met := matchSuccessPolicy(j.spec.SuccessPolicy, *j.spec.Completions, j.done); met {
			j.setCondition(batchv1.JobSuccessCriteriaMet, v1.ConditionTrue, batchv1.JobReasonSuccessPolicy, message)
		}
	}
}

// deadlinePassed reports whether the Job has been active for activeDeadlineSeconds.
func (j *jobRun) deadlinePassed() bool {
	start, limit := j.state.Status.StartTime, j.spec.ActiveDeadlineSeconds
	if start == nil || limit == nil || *j.spec.Suspend {
		return false
	}
	return !j.waits(start.Add(time.Duration(*limit) * time.Second))
}

// judgeCompletions decides whether enough pods of the Job have succeeded.
func (j *jobRun) judgeCompletions() {
	succeeded := j.succeeded()
	complete := succeeded > 0
	if j.spec.Completions != nil {
		complete = succeeded >= *j.spec.Completions
	}
	if complete && len(j.active)+int(j.made) == 0 {
		j.setCondition(batchv1.JobSuccessCriteriaMet, v1.ConditionTrue, batchv1.JobReasonCompletionsReached, "Reached expected number of succeeded pods")
	}
}

// reportSuspended updates the condition Suspended. After a resumption, activeDeadlineSeconds counts
// from that time.
func (j *jobRun) reportSuspended() {
	if *j.spec.Suspend {
		if j.setCondition(batchv1.JobSuspended, v1.ConditionTrue, "JobSuspended", "Job suspended") {
			j.event(v1.EventTypeNormal, "Suspended", "Job suspended")
			j.state.Status.StartTime = nil
		}
		return
	}
	if j.setCondition(batchv1.JobSuspended, v1.ConditionFalse, "JobResumed", "Job resumed") {
		j.event(v1.EventTypeNormal, "Resumed", "Job resumed")
		now := seconds(j.in.Now)
		j.state.Status.StartTime = &now
		j.deadlinePassed()
	}
}

// end removes the active pods of a Job whose result is decided. It finishes the Job when none of its
// pods is terminating. If the Job fails, its active pods count as failed.
func (j *jobRun) end() {
	c := *j.ending()
	reason := "the Job is complete: "
	fails := c.Type == batchv1.JobFailureTarget
	if fails {
		reason = "the Job has failed: "
	}
	for _, p := range j.active {
		if _, ok := j.indexOf(p); fails && ok && !judgeFailure(j.spec.PodFailurePolicy, p).ignored {
			j.state.Status.Failed++
			j.state.Counted = append(j.state.Counted, p.Spec.UID())
		}
		j.drop(p, reason+c.Reason)
	}
	j.active = nil
	switch {
	case len(j.leaving) > 0:
	case fails:
		j.setCondition(batchv1.JobFailed, v1.ConditionTrue, c.Reason, c.Message)
		j.event(v1.EventTypeWarning, c.Reason, c.Message)
	default:
		j.setCondition(batchv1.JobComplete, v1.ConditionTrue, c.Reason, c.Message)
		now := seconds(j.in.Now)
		j.state.Status.CompletionTime = &now
		j.event(v1.EventTypeNormal, "Completed", "Job completed")
	}
}

// expire removes the pods of a Job that finished ttlSecondsAfterFinished ago.
func (j *jobRun) expire(c *batchv1.JobCondition) {
	ttl := j.spec.TTLSecondsAfterFinished
	if ttl == nil || j.waits(c.LastTransitionTime.Add(time.Duration(*ttl)*time.Second)) {
		return
	}
	for _, p := range j.kept {
		j.drop(p, fmt.Sprintf("the Job finished %d s ago (ttlSecondsAfterFinished)", *ttl))
	}
	j.kept, j.expired = nil, true
}

// close completes the state and the decision.
func (j *jobRun) close() {
	order := map[string]int{}
	for i, uid := range j.state.Counted {
		order[uid] = i
	}
	slices.SortFunc(j.kept, func(a, b Pod) int { return cmp.Compare(order[a.Spec.UID()], order[b.Spec.UID()]) })
	if extra := len(j.kept) - maxFinishedPods; extra > 0 {
		for _, p := range j.kept[:extra] {
			j.drop(p, fmt.Sprintf("a Job keeps its newest %d finished pods", maxFinishedPods))
		}
		j.kept = j.kept[extra:]
	}
	has := map[string]bool{}
	for _, p := range j.pods {
		has[p.Spec.UID()] = true
	}
	gone := func(uid string) bool { return !has[uid] }
	j.state.Counted = slices.DeleteFunc(j.state.Counted, gone)
	j.state.Removed = slices.DeleteFunc(j.state.Removed, gone)
	if s := &j.state.Status; j.indexed() {
		s.Succeeded, s.CompletedIndexes = j.done.count(), j.done.String()
		if j.perIndex() {
			text := j.failed.String()
			s.FailedIndexes = &text
		}
	}
	for _, p := range slices.Concat(j.active, j.kept) {
		j.keep(p)
	}
}

// status returns the status with the counts of active pods. The state lacks these counts, because
// each change of the state causes a write to the disk.
func (j *jobRun) status() *batchv1.JobStatus {
	s := j.state.Status.DeepCopy()
	ready, terminating := int32(0), int32(len(j.leaving))
	for _, p := range j.active {
		if p.isReady() {
			ready++
		}
	}
	s.Active, s.Ready, s.Terminating = int32(len(j.active))+j.made, &ready, &terminating
	return s
}
