package main

import (
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A script has no kubelet: these are the statuses that it gives to pods on both sides.

// statusAfter returns the status of a pod after a step; old is that before, nil for none.
func statusAfter(step Step, old *v1.PodStatus, container string, at time.Time) *v1.PodStatus {
	now := metav1.NewTime(at.Truncate(time.Second))
	s := &v1.PodStatus{Phase: v1.PodRunning, StartTime: &now}
	if old != nil && old.StartTime != nil {
		s.StartTime = old.StartTime.DeepCopy()
	}
	state := v1.ContainerStatus{Name: container, Image: "web:1", ImageID: "web:1", ContainerID: "script://1"}
	ready := v1.ConditionFalse
	switch step.Verb {
	case "ready":
		ready = v1.ConditionTrue
		state.Ready = true
		state.State.Running = &v1.ContainerStateRunning{StartedAt: *s.StartTime}
	case "unready":
		state.State.Running = &v1.ContainerStateRunning{StartedAt: *s.StartTime}
	case "restarts":
		state.RestartCount = step.number()
		state.State.Running = &v1.ContainerStateRunning{StartedAt: now}
	default:
		endPod(s, &state, step, now)
	}
	s.Conditions = append(s.Conditions, v1.PodCondition{Type: v1.PodReady, Status: ready, LastTransitionTime: changedAt(old, ready, now)})
	s.ContainerStatuses = []v1.ContainerStatus{state}
	return s
}

// endPod gives a pod its final phase.
func endPod(s *v1.PodStatus, state *v1.ContainerStatus, step Step, now metav1.Time) {
	end := &v1.ContainerStateTerminated{StartedAt: *s.StartTime, FinishedAt: now, ContainerID: state.ContainerID, Reason: "Error"}
	state.State.Terminated, s.Phase = end, v1.PodFailed
	switch step.Verb {
	case "succeed":
		s.Phase, end.Reason = v1.PodSucceeded, "Completed"
	case "fail":
		end.ExitCode = step.number()
	case "evict":
		end.ExitCode, s.Reason, s.Message = 137, "Evicted", "The node was low on resource: memory."
	case "disrupt":
		end.ExitCode = 143
		s.Conditions = append(s.Conditions, v1.PodCondition{
			Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: "TerminationByKubelet", LastTransitionTime: now,
		})
	}
}

// changedAt returns when the condition Ready got its value.
func changedAt(old *v1.PodStatus, is v1.ConditionStatus, now metav1.Time) metav1.Time {
	if old != nil {
		for _, c := range old.Conditions {
			if c.Type == v1.PodReady && c.Status == is {
				return c.LastTransitionTime
			}
		}
	}
	return now
}
