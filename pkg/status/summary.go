package status

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
)

// Line is a pod's status in the few words of a table, as kubectl users know
// them.
type Line struct {
	Status      string    // "Running", "Init:0/1", "CrashLoopBackOff", "Completed", "Terminating", …
	Ready       int       // containers that are ready
	Containers  int       // containers that count: regular ones
	Restarts    int       // of all containers, while initialising of the init containers
	LastRestart time.Time // when the newest of these restarts' earlier lives ended; zero when unknown
}

// ReadyText returns "1/2".
func (l Line) ReadyText() string { return fmt.Sprintf("%d/%d", l.Ready, l.Containers) }

// Summary returns the line of one pod.
func Summary(p v1.Pod) Line {
	l := Line{Status: string(p.Status.Phase), Containers: len(p.Spec.Containers)}
	if p.Status.Reason != "" {
		l.Status = p.Status.Reason
	}
	for _, c := range p.Status.ContainerStatuses {
		if c.Ready && c.State.Running != nil {
			l.Ready++
		}
	}
	var initialising bool
	if l.Status, initialising = initWord(p, l.Status); initialising {
		l.count(p.Status.InitContainerStatuses)
	} else {
		l.count(p.Status.ContainerStatuses)
		l.Status = containerWord(p, l.Status)
	}
	if p.DeletionTimestamp != nil {
		l.Status = "Terminating"
		if p.Status.Reason == "NodeLost" {
			l.Status = "Unknown"
		}
	}
	return l
}

func (l *Line) count(list []v1.ContainerStatus) {
	for _, c := range list {
		l.Restarts += int(c.RestartCount)
		if end := c.LastTerminationState.Terminated; end != nil && end.FinishedAt.After(l.LastRestart) {
			l.LastRestart = end.FinishedAt.Time
		}
	}
}

// initWord says where the init containers stand, while they do.
func initWord(p v1.Pod, word string) (string, bool) {
	if conditionTrue(p, v1.PodInitialized) {
		return word, false
	}
	for i, c := range p.Status.InitContainerStatuses {
		end, wait := c.State.Terminated, c.State.Waiting
		switch {
		case end != nil && end.ExitCode == 0:
			continue
		case end != nil && end.Reason != "":
			return "Init:" + end.Reason, true
		case end != nil && end.Signal != 0:
			return fmt.Sprintf("Init:Signal:%d", end.Signal), true
		case end != nil:
			return fmt.Sprintf("Init:ExitCode:%d", end.ExitCode), true
		case wait != nil && wait.Reason != "" && wait.Reason != podInitializing:
			return "Init:" + wait.Reason, true
		}
		if p.Status.Reason != "" {
			return p.Status.Reason, true // refused: that says more
		}
		return fmt.Sprintf("Init:%d/%d", i, len(p.Spec.InitContainers)), true
	}
	return word, false
}

// containerWord says what the containers are at; the first one with a word of
// its own names it.
func containerWord(p v1.Pod, word string) string {
	running := false
	if p.Status.Reason != "" && p.Status.Phase == v1.PodPending {
		return word // refused
	}
	for i := len(p.Status.ContainerStatuses) - 1; i >= 0; i-- {
		c := p.Status.ContainerStatuses[i]
		end, wait := c.State.Terminated, c.State.Waiting
		switch {
		case wait != nil && wait.Reason != "":
			word = wait.Reason
		case end != nil && end.Reason != "":
			word = end.Reason
		case end != nil && end.Signal != 0:
			word = fmt.Sprintf("Signal:%d", end.Signal)
		case end != nil:
			word = fmt.Sprintf("ExitCode:%d", end.ExitCode)
		case c.Ready && c.State.Running != nil:
			running = true
		}
	}
	switch {
	case word != completed || !running:
		return word
	case conditionTrue(p, v1.PodReady):
		return "Running"
	}
	return "NotReady"
}

func conditionTrue(p v1.Pod, kind v1.PodConditionType) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == kind {
			return c.Status == v1.ConditionTrue
		}
	}
	return false
}
