package workload

import (
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// isReady reports whether the newest report has the condition Ready. A pod without a report is
// not ready.
func (p Pod) isReady() bool {
	c := p.readyCondition()
	return c != nil && c.Status == v1.ConditionTrue
}

func (p Pod) readyCondition() *v1.PodCondition {
	if p.Status == nil {
		return nil
	}
	for i := range p.Status.Conditions {
		if c := &p.Status.Conditions[i]; c.Type == v1.PodReady {
			return c
		}
	}
	return nil
}

// isAvailable reports whether the pod has been ready for minReady seconds. If it has been ready for
// a shorter time, due is when it will be available.
func (p Pod) isAvailable(minReady int32, now time.Time) (available bool, due time.Time) {
	if !p.isReady() {
		return false, time.Time{}
	}
	if minReady == 0 {
		return true, time.Time{}
	}
	since := p.readyCondition().LastTransitionTime
	if since.IsZero() {
		return false, time.Time{}
	}
	due = since.Add(time.Duration(minReady) * time.Second)
	return !now.Before(due), due
}

// phase returns the phase of the newest report; without a report the pod is Pending.
func (p Pod) phase() v1.PodPhase {
	if p.Status == nil || p.Status.Phase == "" {
		return v1.PodPending
	}
	return p.Status.Phase
}

// isTerminated reports whether the pod has Succeeded or Failed.
func (p Pod) isTerminated() bool { return pod.IsPhaseTerminal(p.phase()) }

// startedAt returns status.startTime, or zero for a pod without a report. It stands for the creation
// time, which pods that are not from an API server lack.
func (p Pod) startedAt() time.Time {
	if p.Status == nil || p.Status.StartTime == nil {
		return time.Time{}
	}
	return p.Status.StartTime.Time
}

// beganAfter reports whether the pod's instance began after t: a user deleted the pod, or the node
// evicted it, and the engine started it again. The comparison is in whole seconds.
func (p Pod) beganAfter(t time.Time) bool { return p.startedAt().Truncate(time.Second).After(t) }

// restarts returns the restart count of the container that restarted most.
func (p Pod) restarts() int32 {
	var most int32
	if p.Status != nil {
		for i := range p.Status.ContainerStatuses {
			most = max(most, p.Status.ContainerStatuses[i].RestartCount)
		}
	}
	return most
}

// earlier returns the earlier of two times. It ignores a zero time.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
