package workload

import (
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/nodectl/nodectl/pkg/pod"
)

// The default trial and deadline of a version, and the annotation with the cause of a change.
const (
	defaultTrial    = time.Minute
	defaultDeadline = 10 * time.Minute

	changeCause = "kubernetes.io/change-cause"
)

// Trial is the progress of the newest revision of a workload that is rolled back on failure.
type Trial struct {
	Number int64 `json:"number"` // the number of the revision
	// Ready are the UIDs of the pods that have been ready.
	Ready []string `json:"ready,omitempty"`
	// Complete is the first time at which all pods were available.
	Complete *metav1.Time `json:"complete,omitempty"`
	// Passed means that the trial has ended, but a crash can still fail the revision: another
	// workload of its release is on trial.
	Passed bool `json:"passed,omitempty"`
	// Over means that the revision can no longer fail.
	Over bool `json:"over,omitempty"`
}

func annotationsOf(o *pod.Object) map[string]string {
	if meta, ok := o.Object.(metav1.ObjectMetaAccessor); ok {
		return meta.GetObjectMeta().GetAnnotations()
	}
	return nil
}

// period returns the duration in an annotation, or its default.
func period(annotations map[string]string, name string, otherwise time.Duration) time.Duration {
	if d, ok := pod.RollbackPeriod(annotations[name]); ok {
		return d
	}
	return otherwise
}

// mayRollBack reports whether the workload is rolled back if its newest version fails. A version that
// a rollback chose is not rolled back: an even older one is not more reliable.
func (in *Input) mayRollBack(d *Decision) bool {
	if !replacesPods(in.Object) || isPaused(in.Object) {
		return false
	}
	if ReleaseOf(in.Object).Name != "" {
		return d.State.isChanged()
	}
	o := in.State.Override
	return annotationsOf(in.Object)[pod.AnnotationRollback] == pod.RollbackOnFailure && (o == nil || o.Template == nil || !o.Template.Rollback)
}

// replacesPods reports whether a change of the template makes the workload replace all its pods.
func replacesPods(o *pod.Object) bool {
	switch w := o.Object.(type) {
	case *appsv1.Deployment:
		return true
	case *appsv1.StatefulSet:
		r := w.Spec.UpdateStrategy.RollingUpdate
		return w.Spec.UpdateStrategy.Type != appsv1.OnDeleteStatefulSetStrategyType && (r == nil || ptr.Deref(r.Partition, 0) == 0)
	case *appsv1.DaemonSet:
		return w.Spec.UpdateStrategy.Type != appsv1.OnDeleteDaemonSetStrategyType
	}
	return false
}

func isPaused(o *pod.Object) bool {
	d, is := o.Object.(*appsv1.Deployment)
	return is && d.Spec.Paused
}

// judgeTrial updates the trial of the newest version in a decision. If that version has failed,
// judgeTrial returns it, the version to return to, and the reason. A version that this decision adds
// cannot fail yet.
func (in *Input) judgeTrial(d *Decision) (failed, to *Revision, why string) {
	n := len(d.State.Revisions)
	if n == 0 {
		return nil, nil, ""
	}
	complete, judged := isComplete(d), in.mayRollBack(d)
	if !judged && (!complete || d.State.Revisions[n-1].Good || d.State.isChanged()) {
		return nil, nil, ""
	}
	d.State.Revisions = slices.Clone(d.State.Revisions)
	newest := &d.State.Revisions[n-1]
	if !judged {
		newest.Good = true
		return nil, nil, ""
	}
	t := Trial{Number: newest.Number}
	d.State.Trial = &t
	if before := in.State.Trial; before != nil && before.Number == newest.Number {
		t = *before
	}
	if t.Over {
		return nil, nil, ""
	}
	why = in.failure(d, &t, newest, in.podsOfRevision(newest.Hash), complete)
	if why != "" && indexOf(in.State.Revisions, newest.Hash) < 0 {
		return nil, nil, ""
	}
	if d.State.isChanged() {
		return in.judgeRelease(d, newest, why)
	}
	if why == "" {
		return nil, nil, ""
	}
	if to = target(in.State.Revisions, newest.Hash, in.allows); to == nil {
		t.Over = true
		d.Events = append(d.Events, Event{v1.EventTypeWarning, "RevisionFailed", fmt.Sprintf("Revision %d failed, and there is no other one to return to: %s", newest.Number, why)})
		return nil, nil, ""
	}
	return newest, to, why
}

// failure updates the trial of a version. It returns the reason if the version has failed, else "".
func (in *Input) failure(d *Decision, t *Trial, newest *Revision, pods []Pod, complete bool) string {
	for _, p := range pods {
		if crash := p.crash(newest.Since.Time, t.Complete != nil || slices.Contains(t.Ready, p.Spec.UID())); crash != "" {
			return crash
		}
	}
	ready := make([]string, 0, len(pods))
	for _, p := range pods {
		stays := slices.ContainsFunc(d.Pods, func(s *pod.Spec) bool { return s.Key == p.Spec.Key })
		if stays && (p.isReady() || slices.Contains(t.Ready, p.Spec.UID())) {
			ready = append(ready, p.Spec.UID())
		}
	}
	if t.Ready = ready; len(ready) == 0 {
		t.Ready = nil
	}
	if t.Passed {
		return ""
	}
	if t.Complete == nil && !complete {
		return in.late(d, newest)
	}
	now := seconds(in.Now)
	if t.Complete == nil || t.Complete.After(now.Time) { // the clock may have been set back
		t.Complete = &now
	}
	length := period(annotationsOf(in.Object), pod.AnnotationRollbackTrial, defaultTrial)
	end := t.Complete.Add(length)
	switch {
	case in.Now.Before(end):
		d.Wake = earlier(d.Wake, end)
	case d.Unreported > 0: // the next report of a pod makes the workload due
	case !complete:
		return fmt.Sprintf("not all of its pods are available at the end of its trial of %s", length)
	case d.State.isChanged():
		t.Passed = true
	default:
		newest.Good, t.Over, t.Ready = true, true, nil
	}
	return ""
}

// late returns the reason if a version that is not complete has run out of time, else "".
func (in *Input) late(d *Decision, newest *Revision) string {
	if s, is := d.Status.(*appsv1.DeploymentStatus); is {
		for _, c := range s.Conditions {
			if c.Type == appsv1.DeploymentProgressing && c.Reason == reasonTimedOut {
				return "its pods are not available within progressDeadlineSeconds"
			}
		}
		return ""
	}
	length := period(annotationsOf(in.Object), pod.AnnotationRollbackDeadline, defaultDeadline)
	end := newest.Since.Add(length)
	if in.Now.Before(end) {
		d.Wake = earlier(d.Wake, end)
		return ""
	}
	return fmt.Sprintf("its pods are not available within %s", length)
}

// isComplete reports whether all pods of a workload are of the newest revision and available.
func isComplete(d *Decision) bool {
	switch s := d.Status.(type) {
	case *appsv1.DeploymentStatus:
		n := int32(replicasOf(d.Object.Object.(*appsv1.Deployment).Spec.Replicas))
		return s.UpdatedReplicas == n && s.Replicas == n && s.AvailableReplicas == n && d.State.hasTemplate(d.Object)
	case *appsv1.StatefulSetStatus:
		n := int32(replicasOf(d.Object.Object.(*appsv1.StatefulSet).Spec.Replicas))
		return s.UpdatedReplicas == n && s.Replicas == n && s.AvailableReplicas == n
	case *appsv1.DaemonSetStatus:
		return s.UpdatedNumberScheduled == 1 && s.NumberAvailable == 1
	}
	return false
}

// hasTemplate reports whether the newest revision has the template of the workload. A paused
// Deployment, and a Deployment that waits for its old pods, may have no revision for it yet.
func (s *State) hasTemplate(o *pod.Object) bool {
	t, _ := o.Template()
	n := len(s.Revisions)
	return n > 0 && sameTemplate(&s.Revisions[n-1].Template, t)
}

func (in *Input) podsOfRevision(hash string) []Pod {
	var out []Pod
	for _, p := range in.Pods {
		if !p.Leaving && p.Spec.Pod.Labels[hashLabel(in.Object.Kind)] == hash {
			out = append(out, p)
		}
	}
	return out
}

// crash describes a container of the pod that has crashed since a time, or returns "". A container
// may fail once before the pod has been ready. With once, the pod has been ready, and one failure is
// a crash.
func (p Pod) crash(since time.Time, once bool) string {
	if p.Status == nil {
		return ""
	}
	failed := func(t *v1.ContainerStateTerminated) bool {
		return t != nil && t.ExitCode != 0 && !t.FinishedAt.Time.Before(since)
	}
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		ended := c.LastTerminationState.Terminated
		loops := c.State.Waiting != nil && c.State.Waiting.Reason == "CrashLoopBackOff" && (ended == nil || !ended.FinishedAt.Time.Before(since))
		now, before := failed(c.State.Terminated), failed(c.LastTerminationState.Terminated)
		if fails := loops || now && before || once && (now || before); !fails {
			continue
		}
		last := c.State.Terminated
		if last == nil {
			last = ended
		}
		text := fmt.Sprintf("container %s of pod %s crashes", c.Name, p.Spec.Name)
		if last != nil {
			text += fmt.Sprintf(": it exited with code %d (%s)", last.ExitCode, last.Reason)
		}
		return text
	}
	return ""
}

// target returns the revision that replaces the failed revision with this hash: the newest good one,
// or else the newest one that has not failed, or nil. allowed reports whether the source policy
// allows a revision; nil allows all.
func target(list []Revision, hash string, allowed func(*Revision) bool) *Revision {
	var best *Revision
	for i := range list {
		r := &list[i]
		better := r.Hash != hash && r.Failed == "" && r.isKnown() && (best == nil || r.Good || !best.Good)
		if better && (allowed == nil || allowed(r)) {
			best = r
		}
	}
	return best
}

// allows reports whether the workload may return to a revision.
func (in *Input) allows(r *Revision) bool {
	if in.Allowed == nil {
		return true
	}
	returned := Override{Template: &TemplateOverride{Template: r.Template, Source: *fieldsIn(in.Object.Object).template}}
	effective, _, _ := returned.Apply(in.Object)
	return in.Allowed(effective)
}

// rollBack decides again from the input, with the template of another version. The decision that
// found the failure has no effect.
func (in Input) rollBack(source *pod.Object, failed, to *Revision, why string) Decision {
	in.State.Revisions = slices.Clone(in.State.Revisions)
	for i := range in.State.Revisions {
		if r := &in.State.Revisions[i]; r.Hash == failed.Hash {
			r.Failed, r.Good = why, false
		}
	}
	in.State.Deployment = in.State.Deployment.withoutProgress()
	next := in.State.Override.copied()
	next.setTemplate(source, &to.Template, in.Now, fmt.Sprintf("rollback to revision %d: revision %d failed: %s", to.Number, failed.Number, why))
	if next.Template != nil {
		next.Template.Rollback = true
	}
	in.State.Override, in.State.Trial = next.orNil(), nil
	in.Object, _, _ = in.State.Override.Apply(source)
	d := decide(in)
	_, _, _ = in.judgeTrial(&d) // begins a trial if the target is the version of the source
	d.Failed = &FailedVersion{Number: failed.Number, Why: why}
	for _, p := range in.podsOfRevision(failed.Hash) {
		d.Failed.Pods = append(d.Failed.Pods, p.Spec)
	}
	kind := strings.ToLower(source.Kind)
	d.Events = append([]Event{
		{v1.EventTypeWarning, "RevisionFailed", fmt.Sprintf("Revision %d failed: %s", failed.Number, why)},
		{v1.EventTypeNormal, source.Kind + "Rollback", fmt.Sprintf("Rolled back %s %q to revision %d", kind, source.Name, to.Number)},
	}, d.Events...)
	return d
}

// withoutProgress returns the state without the condition Progressing, so that the progress deadline
// begins again.
func (s *DeploymentState) withoutProgress() *DeploymentState {
	if s == nil {
		return nil
	}
	next := *s
	next.Conditions = slices.DeleteFunc(slices.Clone(s.Conditions), func(c appsv1.DeploymentCondition) bool { return c.Type == appsv1.DeploymentProgressing })
	return &next
}

// noteCause sets the cause of a revision that has become the newest one.
func (in *Input) noteCause(d *Decision) {
	list := d.State.Revisions
	if len(list) == 0 {
		return
	}
	newest := &list[len(list)-1]
	if n := len(in.State.Revisions); n > 0 && in.State.Revisions[n-1].Number == newest.Number {
		return
	}
	cause := annotationsOf(in.Object)[changeCause]
	if newest.Cause != "" || cause == "" {
		return
	}
	d.State.Revisions = slices.Clone(list)
	d.State.Revisions[len(list)-1].Cause = cause
}
