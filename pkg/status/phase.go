package status

import (
	"cmp"

	v1 "k8s.io/api/core/v1"
)

// phase decides the phase, and what goes with it: reason and message. A phase
// that is final stays (C-1.26.15).
func (b *build) phase(st *v1.PodStatus) {
	switch {
	case isFinal(b.notes.Terminal):
		st.Phase = b.notes.Terminal
	case b.same && isFinal(b.before.Phase):
		st.Phase = b.before.Phase
	default:
		st.Phase = b.naturalPhase(st)
	}
	if isFinal(st.Phase) {
		if b.before.Phase == st.Phase {
			st.Reason, st.Message = b.before.Reason, b.before.Message // C-1.26.16
		}
		b.closeBooks(st)
		return
	}
	if b.notes.RefusedMessage != "" && b.have.Sandbox == nil {
		st.Phase = v1.PodPending
		st.Reason, st.Message = b.notes.RefusedReason, b.notes.RefusedMessage
	}
}

func isFinal(p v1.PodPhase) bool { return p == v1.PodSucceeded || p == v1.PodFailed }

// tally counts containers by what they mean for the phase (C-1.26.12).
type tally struct {
	initPending, initFailed     int
	running, waiting            int
	stopped, succeeded, unknown int
}

func (b *build) tally(st *v1.PodStatus) tally {
	var t tally
	policy := cmp.Or(b.want.Pod.Spec.RestartPolicy, v1.RestartPolicyAlways)
	for _, c := range st.InitContainerStatuses {
		end := c.State.Terminated
		switch {
		case end != nil && end.ExitCode == 0:
		case end != nil && policy == v1.RestartPolicyNever:
			t.initFailed++
		default:
			t.initPending++
		}
	}
	for _, c := range st.ContainerStatuses {
		switch {
		case c.State.Running != nil:
			t.running++
		case c.State.Terminated != nil:
			t.stopped++
			if c.State.Terminated.ExitCode == 0 {
				t.succeeded++
			}
		case c.LastTerminationState.Terminated != nil:
			t.stopped++
		case c.State.Waiting != nil:
			t.waiting++
		default:
			t.unknown++
		}
	}
	return t
}

// naturalPhase is what the containers say (C-1.26.13, in its order).
func (b *build) naturalPhase(st *v1.PodStatus) v1.PodPhase {
	t := b.tally(st)
	switch {
	case t.initFailed > 0:
		return v1.PodFailed
	case t.initPending > 0, t.waiting > 0:
		return v1.PodPending
	case t.running > 0 && t.unknown == 0:
		return v1.PodRunning
	case t.running == 0 && t.stopped > 0 && t.unknown == 0:
		switch policy := b.want.Pod.Spec.RestartPolicy; {
		case policy == v1.RestartPolicyAlways || policy == "":
			return v1.PodRunning
		case t.stopped == t.succeeded:
			return v1.PodSucceeded
		case policy == v1.RestartPolicyNever:
			return v1.PodFailed
		}
		return v1.PodRunning
	}
	return v1.PodPending
}

// closeBooks gives every container of a pod that has ended an end, where it had
// its turn (C-1.27.10).
func (b *build) closeBooks(st *v1.PodStatus) {
	if !b.initialised || len(b.have.Containers) == 0 {
		return
	}
	for i := range st.ContainerStatuses {
		c := &st.ContainerStatuses[i]
		if c.State.Waiting == nil {
			continue
		}
		end := c.LastTerminationState.Terminated
		if end == nil {
			end = lost("The container could not be located when the pod was terminated")
		}
		c.State = v1.ContainerState{Terminated: end}
		c.LastTerminationState = v1.ContainerState{}
	}
}
