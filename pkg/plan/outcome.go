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
// containers, so that a lost record runs nothing again (C-1.26.13, I4), and from
// the active deadline (C-1.26.16).
func Outcome(v View) string { return newScene(v).end().Phase }

func (s *scene) end() Ended {
	switch {
	case s.Want == nil || s.over != "":
		return Ended{}
	case s.Terminal != "" && s.target == s.Instance:
		return Ended{Phase: s.Terminal}
	}
	phase := s.naturalEnd()
	if s.overtime(phase) {
		return Ended{Phase: failed, Reason: "DeadlineExceeded", Message: "Pod was active on the node longer than the specified deadline"}
	}
	return Ended{Phase: phase}
}

// naturalEnd is the phase that the containers speak of. Sidecars and ephemeral
// containers have no say (C-1.20.11, C-1.19.7).
func (s *scene) naturalEnd() string {
	switch {
	case s.initFailed():
		return failed
	case s.sandbox == nil && s.hasRun() && !s.restartable():
		// C-1.19.3: nothing of it is made again, whatever had its turn.
		return s.lastWords()
	}
	phase := succeeded
	for i := range s.Want.Pod.Spec.Containers {
		c, ok := s.record(s.Want.Pod.Spec.Containers[i].Name)
		if !ok || c.State != pod.StateExited || s.containerChanged(c) || s.comesBack(c) {
			return ""
		}
		if c.ExitCode != 0 {
			phase = failed
		}
	}
	return phase
}

// initFailed reports whether the init container whose turn it is failed and may
// not be tried again (C-1.20.11).
func (s *scene) initFailed() bool {
	if s.initialised() {
		return false
	}
	list := s.Want.Pod.Spec.InitContainers
	for i := len(list) - 1; i >= 0; i-- {
		c, ok := s.record(list[i].Name)
		if !ok || s.sandbox != nil && !s.here(c) {
			continue
		}
		return !pod.Restartable(&list[i]) && c.State == pod.StateExited && c.ExitCode != 0 && !s.containerChanged(c) && !s.comesBack(c)
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
