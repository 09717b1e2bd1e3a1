package plan

import (
	"github.com/nodectl/nodectl/pkg/pod"
)

// The phases an instance ends in.
const (
	succeeded = "Succeeded"
	failed    = "Failed"
)

// Outcome returns the phase, "Succeeded" or "Failed", that the wanted instance
// has ended in for good, and "" while it lives, is to be replaced or is not
// wanted. It is the recorded one where there is one; else it follows from the
// containers, so that a lost record runs nothing again (C-1.26.13, I4).
func Outcome(v View) string { return newScene(v).outcome() }

func (s *scene) outcome() string {
	switch {
	case s.Want == nil || s.over != "":
		return ""
	case s.Terminal != "" && s.target == s.Instance:
		return s.Terminal
	case s.initFailed():
		return failed
	case s.policy() == never && s.sandbox == nil && s.hasRun():
		// C-1.19.3: nothing of it is made again, whatever had its turn.
		return s.lastWords()
	}
	phase := succeeded
	for i := range s.Want.Pod.Spec.Containers {
		c, ok := s.record(s.Want.Pod.Spec.Containers[i].Name)
		if !ok || c.State != pod.StateExited || s.containerChanged(c) || restarts(s.policy(), c.ExitCode) {
			return ""
		}
		if c.ExitCode != 0 {
			phase = failed
		}
	}
	return phase
}

// initFailed reports whether an init container failed and may not be tried
// again (C-1.20.11).
func (s *scene) initFailed() bool {
	if s.policy() != never || s.initialised() {
		return false
	}
	list := s.Want.Pod.Spec.InitContainers
	for i := len(list) - 1; i >= 0; i-- {
		c, ok := s.record(list[i].Name)
		if !ok || s.sandbox != nil && !s.here(c) {
			continue
		}
		return c.State == pod.StateExited && c.ExitCode != 0 && !s.containerChanged(c)
	}
	return false
}

// lastWords is the outcome of an instance of which nothing is started any more:
// "" while something of it still lives.
func (s *scene) lastWords() string {
	if s.alive() {
		return ""
	}
	for i := range s.Want.Pod.Spec.Containers {
		c, ok := s.record(s.Want.Pod.Spec.Containers[i].Name)
		if !ok || c.State != pod.StateExited || c.ExitCode != 0 {
			return failed
		}
	}
	return succeeded
}
