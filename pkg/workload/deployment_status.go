package workload

import (
	"fmt"
	"math"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// The reasons of the condition Progressing on which the next condition depends.
const (
	reasonComplete = "NewReplicaSetAvailable"
	reasonTimedOut = "ProgressDeadlineExceeded"
	reasonPaused   = "DeploymentPaused"
)

// deadline returns how long a rollout may make no progress, and whether that is limited.
func (d *deployment) deadline() (time.Duration, bool) {
	seconds := ptr.Deref(d.spec.ProgressDeadlineSeconds, 600)
	return time.Duration(seconds) * time.Second, seconds != math.MaxInt32
}

// notePause updates the condition Progressing when the Deployment is paused or resumed, so that the
// deadline does not count the time of a pause.
func (d *deployment) notePause() {
	c := d.condition(appsv1.DeploymentProgressing)
	if _, limited := d.deadline(); !limited || c != nil && c.Reason == reasonTimedOut {
		return
	}
	switch paused := c != nil && c.Reason == reasonPaused; {
	case d.spec.Paused && !paused:
		d.setCondition(appsv1.DeploymentProgressing, v1.ConditionUnknown, reasonPaused, "Deployment is paused")
	case !d.spec.Paused && paused:
		d.setCondition(appsv1.DeploymentProgressing, v1.ConditionUnknown, "DeploymentResumed", "Deployment is resumed")
	}
}

// status returns the status after the decision, without conditions.
func (d *deployment) status() *appsv1.DeploymentStatus {
	terminating := d.terminating()
	s := &appsv1.DeploymentStatus{Replicas: total(d.sets), TerminatingReplicas: &terminating}
	for _, set := range d.sets {
		c := d.count(set.kept(), d.spec.MinReadySeconds)
		s.ReadyReplicas += c.ready
		s.AvailableReplicas += c.available
	}
	if d.newest != nil {
		s.UpdatedReplicas = d.newest.Replicas
	}
	s.UnavailableReplicas = max(0, s.Replicas-s.AvailableReplicas)
	return s
}

// setConditions derives the conditions from the new status.
func (d *deployment) setConditions(s *appsv1.DeploymentStatus) {
	if s.AvailableReplicas >= d.replicas-d.unavailable {
		d.setCondition(appsv1.DeploymentAvailable, v1.ConditionTrue, "MinimumReplicasAvailable", "Deployment has minimum availability.")
	} else {
		d.setCondition(appsv1.DeploymentAvailable, v1.ConditionFalse, "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
	}
	limit, limited := d.deadline()
	if !limited {
		d.dropCondition(appsv1.DeploymentProgressing)
		return
	}
	c := d.condition(appsv1.DeploymentProgressing)
	if d.spec.Paused || c != nil && c.Reason == reasonComplete && s.Replicas == s.UpdatedReplicas {
		return
	}
	name := fmt.Sprintf("Deployment %q", d.in.Object.Name)
	if d.newest != nil {
		name = fmt.Sprintf("ReplicaSet %q", d.newest.name)
	}
	switch {
	case d.isComplete(s):
		d.setCondition(appsv1.DeploymentProgressing, v1.ConditionTrue, reasonComplete, name+" has successfully progressed.")
	case d.hasProgressed(s):
		d.noteProgress(name + " is progressing.")
	case c == nil || c.Reason == reasonComplete || c.Reason == reasonTimedOut:
	case !d.in.Now.Before(c.LastUpdateTime.Add(limit)):
		d.setCondition(appsv1.DeploymentProgressing, v1.ConditionFalse, reasonTimedOut, name+" has timed out progressing.")
	}
	if c := d.condition(appsv1.DeploymentProgressing); c != nil && c.Reason != reasonComplete && c.Reason != reasonTimedOut {
		d.out.Wake = earlier(d.out.Wake, c.LastUpdateTime.Add(limit))
	}
}

// isComplete reports whether all replicas are of the newest revision and available.
func (d *deployment) isComplete(s *appsv1.DeploymentStatus) bool {
	return d.newest != nil && s.UpdatedReplicas == d.replicas && s.Replicas == d.replicas && s.AvailableReplicas == d.replicas
}

// hasProgressed reports whether, since the last decision, there are more new pods, fewer old ones,
// or more ready or available ones.
func (d *deployment) hasProgressed(s *appsv1.DeploymentStatus) bool {
	var updated, old int32
	for _, set := range d.sets {
		if set == d.newest {
			updated = int32(len(set.pods))
		} else {
			old += int32(len(set.pods))
		}
	}
	if s.UpdatedReplicas > updated || s.Replicas-s.UpdatedReplicas < old {
		return true
	}
	return d.before == nil || s.ReadyReplicas > d.before.Ready || s.AvailableReplicas > d.before.Available
}

// noteProgress sets the condition Progressing. It updates the time of the condition even if the
// condition does not change.
func (d *deployment) noteProgress(message string) {
	now := seconds(d.in.Now)
	c := appsv1.DeploymentCondition{
		Type: appsv1.DeploymentProgressing, Status: v1.ConditionTrue, Reason: "ReplicaSetUpdated", Message: message,
		LastUpdateTime: now, LastTransitionTime: now,
	}
	if old := d.condition(c.Type); old != nil && old.Status == c.Status {
		c.LastTransitionTime = old.LastTransitionTime
	}
	d.dropCondition(c.Type)
	d.conditions = append(d.conditions, c)
}

func (d *deployment) condition(kind appsv1.DeploymentConditionType) *appsv1.DeploymentCondition {
	for i := range d.conditions {
		if d.conditions[i].Type == kind {
			c := d.conditions[i]
			return &c
		}
	}
	return nil
}

// setCondition sets a condition. A condition that already has this status and reason stays
// unchanged.
func (d *deployment) setCondition(kind appsv1.DeploymentConditionType, status v1.ConditionStatus, reason, message string) {
	now := seconds(d.in.Now)
	c := appsv1.DeploymentCondition{Type: kind, Status: status, Reason: reason, Message: message, LastUpdateTime: now, LastTransitionTime: now}
	if old := d.condition(kind); old != nil && old.Status == status {
		if old.Reason == reason {
			return
		}
		c.LastTransitionTime = old.LastTransitionTime
	}
	d.dropCondition(kind)
	d.conditions = append(d.conditions, c)
}

func (d *deployment) dropCondition(kind appsv1.DeploymentConditionType) {
	d.conditions = slices.DeleteFunc(d.conditions, func(c appsv1.DeploymentCondition) bool { return c.Type == kind })
}
