package status

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// restartingAll is the reason of a container that a restart of all containers ended
// (C-1.21.3).
const restartingAll = "RestartingAllContainers"

// removedToRestartAll is the message of a container that such a restart removed.
const removedToRestartAll = "The container is removed because RestartAllContainers in place"

// comesBack reports whether a container that exited restarts (C-1.19.8). It has to agree with plan,
// because a pod that continues must not be reported with a final phase.
func (b *build) comesBack(c *v1.Container, end *v1.ContainerStateTerminated) bool {
	r, ok := b.Container(c.Name)
	switch {
	case b.triggersRestartAll || end.Reason == restartingAll:
		return true
	case !ok && b.SandboxReady(): // like one that never ran
		return true
	case ok && r.State != pod.StateExited: // the next container is there, or its exit is not known yet
		return true
	case ok && b.MayHaveChanged(r):
		return true
	}
	again, _ := b.notes.ContainerNotes[r.ID].Restarts(b.want.Pod.Spec.RestartPolicy, c, end.ExitCode)
	return again
}

// hasRestartAllTrigger reports whether a container of the newest sandbox exited, and its rule for
// the exit code restarts all containers. The restart removes that container last. An edit of the
// container meanwhile does not end the restart.
func (b *build) hasRestartAllTrigger() bool {
	if b.notes.Terminating || b.over {
		return false
	}
	spec := &b.want.Pod.Spec
	triggers := func(c v1.Container) bool {
		r, ok := b.Container(c.Name)
		return ok && b.RestartsAll(r)
	}
	return slices.ContainsFunc(spec.InitContainers, triggers) || slices.ContainsFunc(spec.Containers, triggers)
}

// removedToRestart fills in a container that a restart of all containers has removed, and
// reports whether st is one. Its waiting reason is that restart, until the first container is
// created again.
func (b *build) removedToRestart(st *v1.ContainerStatus) bool {
	old := b.old[st.Name]
	last := old.LastTerminationState.Terminated
	switch {
	case b.restarting && (old.State.Running != nil || old.State.Terminated != nil):
		last = restartedEnd(old.State.Terminated)
		st.RestartCount++
	case last == nil || last.Reason != restartingAll || old.State.Waiting == nil:
		return false
	}
	st.State.Waiting = b.waiting()
	if b.triggersRestartAll || !b.anyCreatedAgain() {
		st.State.Waiting = &v1.ContainerStateWaiting{Reason: restartingAll, Message: removedToRestartAll}
	}
	st.LastTerminationState.Terminated = last
	return true
}

// anyCreatedAgain reports whether an init or regular container exists again.
func (b *build) anyCreatedAgain() bool {
	has := func(c v1.Container) bool { _, ok := b.Container(c.Name); return ok }
	spec := &b.want.Pod.Spec
	return slices.ContainsFunc(spec.InitContainers, has) || slices.ContainsFunc(spec.Containers, has)
}

// restartedEnd returns the terminated state of a container that a restart of all containers has
// removed. own is the container's own exit, whose times stay; nil if it was running.
func restartedEnd(own *v1.ContainerStateTerminated) *v1.ContainerStateTerminated {
	end := &v1.ContainerStateTerminated{ExitCode: exitLost, Reason: restartingAll, Message: removedToRestartAll}
	if own != nil {
		end.StartedAt, end.FinishedAt, end.ContainerID = own.StartedAt, own.FinishedAt, own.ContainerID
	}
	return end
}

// restartingCondition returns the AllContainersRestarting condition (C-1.21.3).
func (b *build) restartingCondition(st *v1.PodStatus) v1.PodCondition {
	c := v1.PodCondition{Type: v1.AllContainersRestarting, Status: truth(b.triggersRestartAll && !pod.IsPhaseTerminal(st.Phase))}
	switch {
	case c.Status == v1.ConditionTrue:
		c.Reason, c.Message = "RestartAllContainersStarted", "container exited with restart policy rule"
	case st.Phase == v1.PodSucceeded:
		c.Reason = podCompleted
	case st.Phase == v1.PodFailed:
		c.Reason = podFailed
	}
	return c
}
