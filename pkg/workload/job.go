package workload

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/nodectl/nodectl/pkg/pod"
)

// maxFinishedPods limits the finished pods that a Job keeps in the set, because each has a directory
// and logs on the node. The newest ones stay. Kubernetes keeps all of them.
const maxFinishedPods = 100

// evicted is the reason in the status of an evicted pod.
const evicted = "Evicted"

// nextJob decides for a Job as Kubernetes' Job controller does: one pod for each missing
// completion, at most parallelism at once, after a back-off if pods failed. Finished pods stay in
// the set, so that their logs can be read, until ttlSecondsAfterFinished or until the Job is
// removed. A Job that has finished never makes pods again. An evicted pod counts as failed, and
// leaves the set: otherwise the node would start it again.
//
// Some fields of a Job, such as the pod template, are immutable in Kubernetes. They keep the values
// that they had when the Job began. An event reports an edit of them.
func nextJob(in Input) Decision {
	job, ok := in.Object.Object.(*batchv1.Job)
	if !ok {
		return Decision{State: in.State}
	}
	var state JobState
	if in.State.Job != nil {
		state = *in.State.Job
	}
	spec, edited := effectiveSpec(&state, &job.Spec)
	j := jobRun{result: newResult(&in), name: in.Object.Name, owner: in.owner(), pods: in.Pods, spec: spec, state: state}
	if state.Edited == "" {
		j.positions = in.Object.Positions
	}
	if edited {
		j.event(v1.EventTypeWarning, "EditNotApplied", "The pod template and the completions of a Job that has begun do not change: "+
			"the edit takes effect only after the Job is deleted and created again (removed from its source and added again)")
	}
	j.next()
	j.out.State.Job, j.out.Status = &j.state, j.status()
	j.out.Done = finished(&j.state.Status) != nil
	return j.finish()
}

// jobRun decides for one Job: a Job of a source, or a Job of a CronJob.
type jobRun struct {
	*result
	name      string // of the Job
	owner     metav1.OwnerReference
	pods      []Pod           // of the Job
	spec      batchv1.JobSpec // with the defaults of its own fields
	positions map[string]pod.Position
	state     JobState

	active  []Pod   // pods that run, or will run
	ended   []Pod   // pods that have finished, and are not counted yet
	kept    []Pod   // pods that have finished, and are counted
	leaving []Pod   // pods that left the set, and still run
	made    int32   // the number of new pods
	done    indexes // the completion indexes that succeeded
	failed  indexes
	expired bool // ttlSecondsAfterFinished has passed
}

// next computes the decision and the new state.
func (j *jobRun) next() {
	j.copyState()
	j.observe()
	if finished(&j.state.Status) == nil {
		j.judge(j.count())
		if j.ending() == nil {
			j.manage()
			j.judgeCompletions()
		}
		if j.ending() == nil {
			j.reportSuspended()
		} else {
			j.end()
		}
	}
	if c := finished(&j.state.Status); c != nil {
		for _, p := range slices.Concat(j.active, j.ended) {
			j.drop(p, "the Job has finished")
		}
		j.active = nil
		j.expire(c)
	}
	j.close()
}

// copyState copies the state, and sets times that are after now to now. Such times exist after the
// clock was set back. Without the change, a wait would last longer.
func (j *jobRun) copyState() {
	s := &j.state
	now := seconds(j.in.Now)
	back := func(t *metav1.Time) {
		if t != nil && t.After(now.Time) {
			*t = now
		}
	}
	s.Status = *s.Status.DeepCopy()
	s.Counted, s.Removed = slices.Clone(s.Counted), slices.Clone(s.Removed)
	s.LastFailure = s.LastFailure.DeepCopy()
	s.Indexes = maps.Clone(s.Indexes)
	for i, x := range s.Indexes {
		x.LastFailure = x.LastFailure.DeepCopy()
		back(x.LastFailure)
		s.Indexes[i] = x
	}
	back(s.LastFailure)
	back(s.Status.StartTime)
	for i := range s.Status.Conditions {
		back(&s.Status.Conditions[i].LastTransitionTime)
	}
	if s.Status.StartTime == nil && !*j.spec.Suspend {
		s.Status.StartTime = &now
	}
	if j.indexed() {
		j.done = parseIndexes(s.Status.CompletedIndexes, *j.spec.Completions)
		j.failed = parseIndexes(ptr.Deref(s.Status.FailedIndexes, ""), *j.spec.Completions)
	}
}

// observe sorts the pods by their state.
func (j *jobRun) observe() {
	for _, p := range j.pods {
		uid := p.Spec.UID()
		counted := slices.Contains(j.state.Counted, uid)
		switch {
		case p.Leaving || slices.Contains(j.state.Removed, uid):
			if !p.isTerminated() {
				j.leaving = append(j.leaving, p)
			}
			if !p.Leaving {
				j.remove(p, "the pod left the Job before the agent restarted")
			}
		case counted && startsAgain(p):
			j.drop(p, "a pod of a Job that has finished does not run again")
		case counted:
			j.kept = append(j.kept, p)
		case p.isTerminated():
			j.ended = append(j.ended, p)
		default:
			j.active = append(j.active, p)
		}
	}
}

// startsAgain reports whether the node has started a finished pod again, or will start it: after a
// request of a user, or after an eviction.
func startsAgain(p Pod) bool {
	return p.Status != nil && (!p.isTerminated() || p.Status.Reason == evicted)
}

// count adds the pods that have finished since the last call to the status. If the podFailurePolicy
// fails the whole Job, failJob is the message for its condition.
func (j *jobRun) count() (failJob string) {
	now := j.in.Now
	slices.SortStableFunc(j.ended, func(a, b Pod) int {
		return cmp.Or(finishedAt(a, now).Compare(finishedAt(b, now)), cmp.Compare(a.phase(), b.phase())) // failed pods first
	})
	for _, p := range j.ended {
		j.state.Counted = append(j.state.Counted, p.Spec.UID())
		index, ok := j.indexOf(p)
		switch {
		case !ok:
		case p.phase() == v1.PodSucceeded:
			j.countSuccess(index)
		default:
			if why := j.countFailure(p, index); failJob == "" {
				failJob = why
			}
		}
		if startsAgain(p) {
			j.drop(p, "the pod was evicted, which counts as a failure: another one follows")
		} else {
			j.kept = append(j.kept, p)
		}
	}
	j.ended = nil
	return failJob
}

func (j *jobRun) countSuccess(index int32) {
	j.state.Failures, j.state.LastFailure = 0, nil
	if !j.indexed() {
		j.state.Status.Succeeded++
		return
	}
	j.done = j.done.with(index)
	delete(j.state.Indexes, index)
}

func (j *jobRun) countFailure(p Pod, index int32) (failJob string) {
	f := judgeFailure(j.spec.PodFailurePolicy, p)
	at := seconds(finishedAt(p, j.in.Now))
	j.state.Failures++
	j.state.LastFailure = &at
	if !f.ignored {
		j.state.Status.Failed++
	}
	if _, done := j.done.has(index); !j.perIndex() || done {
		return f.job
	}
	x := j.state.Indexes[index]
	if f.index || !f.ignored && x.Failures >= *j.spec.BackoffLimitPerIndex {
		j.failed = j.failed.with(index)
		delete(j.state.Indexes, index)
		return f.job
	}
	if f.ignored {
		x.Ignored++
	} else {
		x.Failures++
	}
	x.LastFailure = &at
	j.setIndexState(index, x)
	return f.job
}

func (j *jobRun) setIndexState(index int32, x Index) {
	if j.state.Indexes == nil {
		j.state.Indexes = map[int32]Index{}
	}
	j.state.Indexes[index] = x
}

// succeeded returns how many completions have succeeded.
func (j *jobRun) succeeded() int32 {
	if j.indexed() {
		return j.done.count()
	}
	return j.state.Status.Succeeded
}

// replacesFailedOnly reports whether the Job replaces a terminating pod only after the pod has
// terminated.
func (j *jobRun) replacesFailedOnly() bool { return *j.spec.PodReplacementPolicy == batchv1.Failed }

// manage removes surplus active pods, and makes missing ones.
func (j *jobRun) manage() {
	if *j.spec.Suspend {
		for _, p := range j.active {
			j.drop(p, "the Job is suspended")
		}
		j.active = nil
		return
	}
	j.dropDuplicates()
	want := min(*j.spec.Parallelism, pod.MaxReplicas)
	switch {
	case j.spec.Completions != nil:
		want = max(0, min(want, *j.spec.Completions-j.succeeded()))
	case j.succeeded() > 0:
		want = int32(len(j.active)) // a pod has succeeded: the other pods may finish, and no pod is added
	}
	if extra := len(j.active) - int(want); extra > 0 {
		slices.SortStableFunc(j.active, removalOrder)
		for _, p := range j.active[:extra] {
			j.drop(p, fmt.Sprintf("%d pods are enough (parallelism %d)", want, *j.spec.Parallelism))
		}
		j.active = j.active[extra:]
	}
	missing := want - int32(len(j.active))
	if j.replacesFailedOnly() {
		missing -= int32(len(j.leaving))
	}
	if missing > 0 {
		j.grow(missing)
	}
}

// grow makes at most n pods, of the indexes whose back-off is over.
func (j *jobRun) grow(n int32) {
	if !j.perIndex() && j.waits(backOff(j.state.Failures, j.state.LastFailure)) {
		return
	}
	if !j.indexed() {
		for range n {
			j.make(-1)
		}
		return
	}
	for _, i := range j.pending(n) {
		x := j.state.Indexes[i]
		if j.perIndex() && j.waits(backOff(x.Failures+x.Ignored, x.LastFailure)) {
			continue
		}
		j.make(i)
	}
}

// waits reports whether until is after now. If it is, the decision is due at that time.
func (j *jobRun) waits(until time.Time) bool {
	if !j.in.Now.Before(until) {
		return false
	}
	j.out.Wake = earlier(j.out.Wake, until)
	return true
}

// make makes the pod of a completion index, or with -1 a pod without an index.
func (j *jobRun) make(index int32) {
	parts := podParts{owner: j.owner, labels: map[string]string{}, annotations: map[string]string{}, positions: j.positions}
	controller := j.name
	if index >= 0 {
		tail := "-" + strconv.Itoa(int(index))
		controller = j.name[:min(len(j.name), maxGeneratedBase-len(tail)-1)] + tail
	}
	parts.generateName = generateName(controller)
	parts.name = j.newName(controller, index)
	if !ptr.Deref(j.spec.ManualSelector, false) {
		parts.labels[batchv1.JobNameLabel], parts.labels["job-name"] = j.name, j.name
		uid := string(j.owner.UID)
		parts.labels[batchv1.ControllerUidLabel], parts.labels["controller-uid"] = uid, uid
	}
	if index >= 0 {
		parts.labels[batchv1.JobCompletionIndexAnnotation] = strconv.Itoa(int(index))
		parts.annotations[batchv1.JobCompletionIndexAnnotation] = strconv.Itoa(int(index))
		parts.edit = func(p *v1.Pod) { setIndex(p, j.name, index) }
	}
	if j.perIndex() {
		x := j.state.Indexes[index]
		parts.annotations[batchv1.JobIndexFailureCountAnnotation] = strconv.Itoa(int(x.Failures))
		if x.Ignored > 0 {
			parts.annotations[batchv1.JobIndexIgnoredFailureCountAnnotation] = strconv.Itoa(int(x.Ignored))
		}
	}
	s := j.in.newPod(&j.spec.Template, parts)
	j.made++
	j.add(s, j.progress(index))
	j.event(v1.EventTypeNormal, "SuccessfulCreate", "Created pod: "+s.Name)
}

// newName returns the name of the next attempt, and counts the attempt.
func (j *jobRun) newName(controller string, index int32) string {
	for {
		slot := j.state.Attempts
		j.state.Attempts++
		if index >= 0 {
			x := j.state.Indexes[index]
			slot = x.Attempts
			x.Attempts++
			j.setIndexState(index, x)
		}
		if name := slotName(controller, KindJob, int(slot)); !j.taken[name] {
			j.taken[name] = true
			return name
		}
	}
}

// progress returns the progress of the Job, as the reason for a new pod.
func (j *jobRun) progress(index int32) string {
	var text string
	if index >= 0 {
		text = fmt.Sprintf("completion index %d, ", index)
	}
	if j.spec.Completions == nil {
		text += "until a pod succeeds"
	} else {
		text += fmt.Sprintf("%d of %d completions succeeded", j.succeeded(), *j.spec.Completions)
	}
	if n := j.state.Status.Failed; n > 0 {
		text += fmt.Sprintf(", %d pods failed", n)
	}
	return text + fmt.Sprintf(" (parallelism %d)", *j.spec.Parallelism)
}

// drop removes a pod from the set.
func (j *jobRun) drop(p Pod, reason string) {
	j.state.Removed = append(j.state.Removed, p.Spec.UID())
	j.remove(p, reason)
	if !p.isTerminated() {
		j.leaving = append(j.leaving, p)
		j.event(v1.EventTypeNormal, "SuccessfulDelete", "Deleted pod: "+p.Spec.Name)
	}
}
