package plan

import (
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podview"
)

// restartAll carries out a restart rule with the action RestartAllContainers (C-1.21.3). It
// kills and removes all containers except ephemeral ones; then the pod begins at its first
// init container, in the same sandbox.
//
// A trigger is a container whose exit matched such a rule. restartAll removes it after all others:
// until then it shows that the restart is due, even after an edit. Its back-off delays its removal,
// unless it was edited. Record.Streaks keeps its crash streak.
func (s *planner) restartAll() bool {
	if s.Forbidden != "" {
		return false // the other containers continue
	}
	var triggers, others []pod.Container
	for _, list := range [][]v1.Container{s.Want.Pod.Spec.Containers, s.Want.Pod.Spec.InitContainers} {
		for i := range list {
			switch c, ok := s.Have.Containers[list[i].Name]; {
			case !ok:
			case s.RestartsAll(c):
				triggers = append(triggers, c)
			default:
				others = append(others, c)
			}
		}
	}
	why := "all containers are being restarted"
	switch {
	case len(triggers) > 0:
		why = fmt.Sprintf("container %s exited with %d, which restarts all", triggers[0].Name, triggers[0].ExitCode)
	case !s.Record.RestartingAll || len(others) == 0:
		return false
	}
	s.p.RestartingAll = true
	s.leftovers()
	for _, c := range others {
		if c.MayRun() {
			step := s.stopStep(c, why, 0)
			step.Together = true
			s.add(step)
		}
	}
	for _, c := range slices.Backward(s.Have.Dead) {
		if !s.isEphemeral(c.Name) {
			s.remove(c, why)
		}
	}
	for _, c := range others {
		s.remove(c, why)
	}
	s.removeTriggers(triggers, why)
	for i := range s.p.Steps {
		s.p.Steps[i].KeepLog = s.p.Steps[i].Action == RemoveContainer
	}
	return true
}

// removeTriggers removes the triggers, when none of them is in back-off any more.
func (s *planner) removeTriggers(triggers []pod.Container, why string) {
	var removals []Step
	blocked := false
	for _, c := range triggers {
		step := Step{Action: RemoveContainer, Container: c.Name, ID: c.ID, Why: why}
		if !s.Changed(c) { // an edit resets its crash streak
			var delay time.Duration
			var due time.Time
			if step.Streak, delay, due = s.crash(c); due.After(s.Now) {
				s.backOff(c, delay, due)
				blocked = true
			}
		}
		removals = append(removals, step)
	}
	if !blocked {
		s.p.Steps = append(s.p.Steps, removals...)
	}
}

// isRestartingAll reports whether a restart of all containers is due, or has begun and has not
// removed all of them yet. Exits that it causes do not terminate the pod (C-1.21.3).
func (s *planner) isRestartingAll() bool {
	if s.Forbidden != "" || !s.SandboxReady() {
		return false
	}
	for _, c := range s.Have.Containers {
		if s.inSpec(c.Name) && !s.isEphemeral(c.Name) && (s.Record.RestartingAll && s.InSandbox(c) || s.RestartsAll(c)) {
			return true
		}
	}
	return false
}

// runs decides about the containers of a pod that has its sandbox. A container that may not
// start does not delay the others.
func (s *planner) runs() bool {
	left := s.leftovers()
	s.volumes()
	s.ephemeral()
	if s.initContainers() {
		for i := range s.Want.Pod.Spec.Containers {
			s.container(s.Want.Pod.Spec.Containers[i].Name)
		}
	}
	for _, c := range left { // last: a removal that fails delays nothing else
		s.remove(c, whyLeftover)
	}
	s.tidy()
	return true
}

const whyLeftover = "container is no longer in the spec"

// leftovers stops the containers that the spec does not have any more, and returns them.
func (s *planner) leftovers() (left []pod.Container) {
	for _, c := range podview.NewestContainers(s.Have) {
		if s.inSpec(c.Name) {
			continue
		}
		left = append(left, c)
		if c.MayRun() {
			s.stop(c, whyLeftover)
		}
	}
	return left
}

// volumes sets up the volumes of an instance that has a ready sandbox, if they are stale or not
// known to be set up. Only in the second case do containers wait until that is done.
func (s *planner) volumes() {
	if s.VolumesReady && !s.VolumesStale {
		if s.VolumesUntil.After(s.Now) {
			s.wait(s.VolumesUntil, "volumes are due for an update")
		}
		return
	}
	if t := s.Failures[""]; t.Until.After(s.Now) {
		s.wait(t.Until, failureText("pod", t))
		return
	}
	s.add(Step{Action: SetUpVolumes, Instance: s.target, Why: "volumes are not up to date"})
}

// ephemeral starts ephemeral containers once; they never restart, and never affect the pod
// (C-1.19.4).
func (s *planner) ephemeral() {
	for i := range s.Want.Pod.Spec.EphemeralContainers {
		name := s.Want.Pod.Spec.EphemeralContainers[i].Name
		switch c, ok := s.Container(name); {
		case !ok:
			s.start(name, 0, "ephemeral container has not run yet")
		case c.State == pod.StateCreated:
			s.startCreated(c)
		}
	}
}

// tidy removes objects that neither a decision nor a status needs. These are the exited containers
// except the newest of each name (C-1.33.1, but at once). They are also the older sandboxes that
// are not ready and have none of the newest containers.
func (s *planner) tidy() {
	needed := map[string]bool{} // sandbox IDs
	for name, c := range s.Have.Containers {
		if s.inSpec(name) {
			needed[c.SandboxID] = true
		}
	}
	removable := map[string]bool{}
	for _, b := range s.Have.Older {
		removable[b.ID] = !b.Ready && !needed[b.ID]
	}
	kept := map[string]bool{}       // names that have a kept container
	for _, c := range s.Have.Dead { // the newest first
		newest, ok := s.Container(c.Name)
		// While the newest container has not exited, the one before it is the newest exited one.
		if ok && newest.State != pod.StateExited && !kept[c.Name] && !removable[c.SandboxID] && s.inSpec(c.Name) {
			kept[c.Name] = true
			continue
		}
		if c.State == pod.StateExited {
			s.remove(c, "exited and not the newest of its name")
		}
	}
	for _, b := range slices.Backward(s.Have.Older) {
		if removable[b.ID] {
			s.add(Step{Action: RemoveSandbox, ID: b.ID, Why: "a newer sandbox has replaced it"})
		}
	}
}
