package client

import (
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// IsRestarted reports whether every named container is another one than before, and is
// ready; one that is not restarted after success may also have exited with 0. It returns
// an error if that can never become true.
func IsRestarted(before, now *v1.Pod, names []string) (bool, error) {
	name := before.Name
	switch {
	case now == nil:
		return false, errors.New("pod " + name + " is gone")
	case now.UID != before.UID:
		return false, errors.New("pod " + name + " is gone: another one has its name")
	}
	if len(names) == 0 {
		names = restarted(before)
	}
	done := true
	for _, container := range names {
		was, s, spec := statusOf(before, container), statusOf(now, container), specOf(now, container)
		if spec == nil {
			return false, errors.New("pod " + name + " has no container " + container + " any more")
		}
		if s == nil {
			done = false
			continue
		}
		// A container that was created and did not run is started without a new one.
		other := s.ContainerID != "" && (was == nil || s.ContainerID != was.ContainerID || isHere(was) && !mayRun(was))
		switch end := s.State.Terminated; {
		case other && end != nil:
			again, _ := pod.Restarts(now.Spec.RestartPolicy, spec, end.ExitCode)
			if !again && end.ExitCode != 0 {
				return false, fmt.Errorf("container %s of pod %s was restarted, and has ended with %d", container, name, end.ExitCode)
			}
			done = done && !again
		case !other, s.State.Running == nil, !s.Ready:
			done = false
		}
	}
	if !done && pod.IsPhaseTerminal(now.Status.Phase) {
		return false, errors.New("pod " + name + " has ended")
	}
	return done, nil
}

// restarted names the containers that the agent restarts if none is named: the regular
// ones and sidecars that run. If none runs yet, it is those that have not exited.
func restarted(before *v1.Pod) (names []string) {
	for _, which := range []func(*v1.ContainerStatus) bool{mayRun, func(s *v1.ContainerStatus) bool { return s.State.Terminated == nil }} {
		add := func(list []v1.Container, takes func(*v1.Container) bool) {
			for i := range list {
				if s := statusOf(before, list[i].Name); s != nil && takes(&list[i]) && which(s) {
					names = append(names, s.Name)
				}
			}
		}
		add(before.Spec.InitContainers, pod.Restartable)
		add(before.Spec.Containers, func(*v1.Container) bool { return true })
		if len(names) > 0 {
			break
		}
	}
	return names
}

// isHere reports whether the container in a status was created and has not exited: the
// status of a container that waits for its restart has the ID of the last one, with that
// one's termination.
func isHere(s *v1.ContainerStatus) bool {
	last := s.LastTerminationState.Terminated
	return s.ContainerID != "" && s.State.Terminated == nil && (last == nil || last.ContainerID != s.ContainerID)
}

// mayRun reports whether a process of the container may run: the status is Waiting until
// the postStart hook has succeeded.
func mayRun(s *v1.ContainerStatus) bool {
	if w := s.State.Waiting; w != nil {
		return isHere(s) && slices.Contains([]string{"ContainerCreating", "PodInitializing", "PostStartHookError"}, w.Reason)
	}
	return s.State.Running != nil
}

func statusOf(it *v1.Pod, name string) *v1.ContainerStatus {
	for _, list := range [][]v1.ContainerStatus{it.Status.InitContainerStatuses, it.Status.ContainerStatuses} {
		if i := slices.IndexFunc(list, func(s v1.ContainerStatus) bool { return s.Name == name }); i >= 0 {
			return &list[i]
		}
	}
	return nil
}

func specOf(it *v1.Pod, name string) *v1.Container {
	for _, list := range [][]v1.Container{it.Spec.InitContainers, it.Spec.Containers} {
		if i := slices.IndexFunc(list, func(c v1.Container) bool { return c.Name == name }); i >= 0 {
			return &list[i]
		}
	}
	return nil
}

// HasEnded reports whether the deleted instance has stopped. The status shows neither a
// container that was created since, nor one in its first postStart hook: while there is
// a sandbox, one may run. Another start time means another instance. If both started in
// the same second, only the containers of before count.
func HasEnded(before, now *v1.Pod, asked time.Time) bool {
	if now == nil || now.UID != before.UID || !now.Status.StartTime.Equal(before.Status.StartTime) {
		return true
	}
	old := map[string]bool{}
	for _, s := range allStatuses(before) {
		old[s.ContainerID] = true
	}
	if slices.ContainsFunc(allStatuses(now), func(s v1.ContainerStatus) bool { return old[s.ContainerID] && isHere(&s) }) {
		return false
	}
	start := before.Status.StartTime
	return start == nil || !asked.Truncate(time.Second).After(start.Time) || !hasSandbox(before) || !hasSandbox(now)
}

// hasSandbox reports whether the instance in a pod's status has a sandbox.
func hasSandbox(it *v1.Pod) bool {
	return slices.ContainsFunc(it.Status.Conditions, func(c v1.PodCondition) bool {
		return c.Type == v1.PodReadyToStartContainers && c.Status == v1.ConditionTrue
	})
}

func allStatuses(it *v1.Pod) []v1.ContainerStatus {
	return slices.Concat(it.Status.InitContainerStatuses, it.Status.ContainerStatuses, it.Status.EphemeralContainerStatuses)
}
