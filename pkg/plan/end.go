package plan

import (
	"cmp"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podview"
)

// The phases of a terminated instance.
const (
	succeeded = "Succeeded"
	failed    = "Failed"
)

// endOfInstance returns how the desired instance has terminated; zero if it has not, or is not
// desired. The first of these that applies decides:
//
//   - the API server shows an end
//   - a new instance is due: then the result is zero
//   - the record has an end, such as an eviction
//   - the containers show an end (C-1.26.13): the pod does not run again even without a record (I4)
//   - the active deadline is over (C-1.26.16)
func (s *planner) endOfInstance() InstanceEnd {
	switch {
	case s.Want == nil:
		return InstanceEnd{}
	case s.Want.EndedAtServer():
		st := s.Want.Pod.Status
		return InstanceEnd{Phase: string(st.Phase), Reason: st.Reason, Message: st.Message}
	case s.newInstance != "":
		return InstanceEnd{}
	case s.Record.Terminal != "" && s.target == s.Record.Instance:
		return InstanceEnd{Phase: string(s.Record.Terminal), Reason: s.Record.TerminalReason, Message: s.Record.TerminalMessage}
	}
	phase := s.phaseByContainers()
	if s.exceedsDeadline(phase) {
		return InstanceEnd{Phase: failed, Reason: "DeadlineExceeded", Message: "Pod was active on the node longer than the specified deadline"}
	}
	return InstanceEnd{Phase: phase}
}

// phaseByContainers returns the final phase that follows from the containers, "" for none. Sidecars
// and ephemeral containers do not count (C-1.20.11, C-1.19.7).
func (s *planner) phaseByContainers() string {
	switch {
	case s.isRestartingAll():
		return ""
	case s.initFailed():
		return failed
	case !s.SandboxReady() && s.HasRun() && !s.anyMayRestart():
		// Nothing is created in another sandbox, even if some containers never ran (C-1.19.3).
		return s.phaseWithoutSandbox()
	}
	phase := succeeded
	for i := range s.Want.Pod.Spec.Containers {
		c, ok := s.Container(s.Want.Pod.Spec.Containers[i].Name)
		if !ok || c.State != pod.StateExited || s.Changed(c) || s.willRestart(c) {
			return ""
		}
		if c.ExitCode != 0 {
			phase = failed
		}
	}
	return phase
}

// initFailed reports whether the current init container failed and may not be tried again
// (C-1.20.11).
func (s *planner) initFailed() bool {
	list, current := s.Want.Pod.Spec.InitContainers, s.CurrentInit()
	if current == len(list) || pod.Restartable(&list[current]) {
		return false
	}
	c, ok := s.Container(list[current].Name)
	if !ok || !s.InSandbox(c) { // in a new sandbox the init containers run again (C-1.20.9)
		return false
	}
	return c.State == pod.StateExited && c.ExitCode != 0 && !s.Changed(c) && !s.willRestart(c)
}

// phaseWithoutSandbox returns the final phase of an instance that gets no other sandbox: no
// container starts any more. It returns "" while a container may still run.
func (s *planner) phaseWithoutSandbox() string {
	if podview.MayRun(s.Have) {
		return ""
	}
	for i := range s.Want.Pod.Spec.Containers {
		c, ok := s.Container(s.Want.Pod.Spec.Containers[i].Name)
		if !ok || c.State != pod.StateExited || c.ExitCode != 0 {
			return failed
		}
	}
	return succeeded
}

// deadline returns the active deadline of the desired instance. ok is false if it has none or
// has not started: the time before the start does not count.
func (s *planner) deadline() (at time.Time, ok bool) {
	d := s.Want.Pod.Spec.ActiveDeadlineSeconds
	known := s.newInstance == "" && s.Record.Instance == s.target && !s.Record.StartTime.IsZero()
	if d == nil || !known {
		return time.Time{}, false
	}
	return s.Record.StartTime.Add(time.Duration(*d) * time.Second), true // C-1.26.17
}

// exceedsDeadline reports whether the deadline terminates the instance. phase is the final phase
// that follows from the containers, "" for none. If all of them exited before the deadline, that
// phase stays.
func (s *planner) exceedsDeadline(phase string) bool {
	at, ok := s.deadline()
	if !ok || s.Now.Before(at) {
		return false
	}
	if phase == "" {
		return true
	}
	for i := range s.Want.Pod.Spec.Containers {
		if c, ok := s.Container(s.Want.Pod.Spec.Containers[i].Name); ok && c.State == pod.StateExited && !c.FinishedAt.Before(at) {
			return true
		}
	}
	return false
}

// awaitDeadline sets Plan.Wait of a pod that continues, so that the worker plans it again at its
// active deadline.
func (s *planner) awaitDeadline() {
	if s.Want == nil || s.deleting() || s.Want.Pod.Spec.ActiveDeadlineSeconds == nil || s.p.End.Phase != "" {
		return
	}
	if at, ok := s.deadline(); ok {
		text := "active deadline"
		if s.p.Wait == 0 { // the event that the plan waits for tells a user more
			text = cmp.Or(s.p.WaitFor, text)
		}
		s.wait(at, text)
	}
}
