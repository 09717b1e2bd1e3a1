package status

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Line is a pod's status in the columns of a table, as kubectl shows it.
type Line struct {
	Status      string    // "Running", "Init:0/1", "CrashLoopBackOff", "Completed", "Terminating", …
	Ready       int       // containers that are ready
	Containers  int       // containers that count: regular ones and sidecars
	Restarts    int       // of the containers that count; before the pod is initialized, of its init containers
	LastRestart time.Time // the exit before the newest restart; zero when unknown
	Gates       int       // readiness gates
	GatesTrue   int       // readiness gates whose condition is True
}

// ReadyText returns "1/2".
func (l Line) ReadyText() string { return fmt.Sprintf("%d/%d", l.Ready, l.Containers) }

// GatesText returns "1/2", "" for a pod without readiness gates.
func (l Line) GatesText() string {
	if l.Gates == 0 {
		return ""
	}
	return fmt.Sprintf("%d/%d", l.GatesTrue, l.Gates)
}

// Summary returns the line of one pod, as kubectl prints it, with one difference: the status of a
// Pending pod with a status reason is that reason. For example, the pod is not admitted.
func Summary(p v1.Pod) Line {
	l := Line{Status: cmp.Or(p.Status.Reason, string(p.Status.Phase)), Containers: len(p.Spec.Containers), Gates: len(p.Spec.ReadinessGates)}
	for _, gate := range p.Spec.ReadinessGates {
		if isTrue(p.Status.Conditions, gate.ConditionType) {
			l.GatesTrue++
		}
	}
	init := l.initContainers(p)
	hasReason := p.Status.Reason != "" && p.Status.Phase == v1.PodPending
	if init != "" && !hasReason {
		l.Status = init
	}
	if init == "" || isTrue(p.Status.Conditions, v1.PodInitialized) {
		l.regular(p, hasReason)
	}
	switch {
	case p.DeletionTimestamp == nil:
	case p.Status.Reason == "NodeLost":
		l.Status = "Unknown"
	case !pod.IsPhaseTerminal(p.Status.Phase):
		l.Status = "Terminating"
	}
	return l
}

// count adds the restarts of one container.
func (l *Line) count(c *v1.ContainerStatus) {
	l.Restarts += int(c.RestartCount)
	if end := c.LastTerminationState.Terminated; end != nil && end.FinishedAt.After(l.LastRestart) {
		l.LastRestart = end.FinishedAt.Time
	}
}

// initContainers counts the init containers and returns the Init: status, "" when they are
// done.
func (l *Line) initContainers(p v1.Pod) string {
	for i := range p.Spec.InitContainers {
		if pod.Restartable(&p.Spec.InitContainers[i]) {
			l.Containers++
		}
	}
	for i := range p.Status.InitContainerStatuses {
		c := &p.Status.InitContainerStatuses[i]
		l.count(c)
		end, wait := c.State.Terminated, c.State.Waiting
		switch {
		case end != nil && end.ExitCode == 0:
		case sidecar(p, c.Name) && c.Started != nil && *c.Started:
			if c.Ready {
				l.Ready++
			}
		case end != nil:
			return "Init:" + endText(end)
		case wait != nil && wait.Reason != "" && wait.Reason != podInitializing:
			return "Init:" + wait.Reason
		default:
			return fmt.Sprintf("Init:%d/%d", i, len(p.Spec.InitContainers))
		}
	}
	return ""
}

// regular counts the containers that run as long as the pod. Unless keep is set, it also sets the
// status: to the reason of the first container that has one.
func (l *Line) regular(p v1.Pod, keep bool) {
	l.Restarts, l.LastRestart = 0, time.Time{}
	for i := range p.Status.InitContainerStatuses {
		if c := &p.Status.InitContainerStatuses[i]; sidecar(p, c.Name) {
			l.count(c)
		}
	}
	running, failure, reason := false, "", l.Status
	for i := len(p.Status.ContainerStatuses) - 1; i >= 0; i-- {
		c := &p.Status.ContainerStatuses[i]
		l.count(c)
		end, wait := c.State.Terminated, c.State.Waiting
		switch {
		case wait != nil && wait.Reason != "":
			reason = wait.Reason
		case end != nil:
			reason = endText(end)
			if end.ExitCode != 0 {
				failure = reason
			}
		case c.Ready && c.State.Running != nil:
			running = true
			l.Ready++
		}
	}
	switch {
	case keep:
	case reason != completed:
		l.Status = reason
	case running && isTrue(p.Status.Conditions, v1.PodReady):
		l.Status = string(v1.PodRunning)
	case failure != "":
		l.Status = failure
	case running:
		l.Status = "NotReady"
	default:
		l.Status = completed
	}
}

// endText returns the reason, signal or exit code of a container that exited.
func endText(end *v1.ContainerStateTerminated) string {
	switch {
	case end.Reason != "":
		return end.Reason
	case end.Signal != 0:
		return fmt.Sprintf("Signal:%d", end.Signal)
	}
	return fmt.Sprintf("ExitCode:%d", end.ExitCode)
}

// sidecar reports whether the pod has a sidecar of this name.
func sidecar(p v1.Pod, name string) bool {
	return slices.ContainsFunc(p.Spec.InitContainers, func(c v1.Container) bool { return c.Name == name && pod.Restartable(&c) })
}
