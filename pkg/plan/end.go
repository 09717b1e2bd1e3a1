package plan

import (
	"cmp"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podview"
)

// The phases an instance ends in.
const (
	succeeded = "Succeeded"
	failed    = "Failed"
)

// end is how the wanted instance has ended for good: as it is recorded, else as
// its containers (C-1.26.13, I4: a lost record runs nothing again) or its active
// deadline (C-1.26.16) say. It is zero while the instance goes on, is to be replaced,
// or is not wanted.
func (s *scene) end() Ended {
	switch {
	case s.Want == nil:
		return Ended{}
	case s.Want.EndedAtServer():
		st := s.Want.Pod.Status
		return Ended{Phase: string(st.Phase), Reason: st.Reason, Message: st.Message}
	case s.anew != "":
		return Ended{}
	case s.Record.Terminal != "" && s.target == s.Record.Instance:
		return Ended{Phase: string(s.Record.Terminal)}
	}
	phase := s.naturalEnd()
	if s.Evicted != "" && phase == "" {
		return Ended{Phase: failed, Reason: "Evicted", Message: s.Evicted}
	}
	if s.overtime(phase) {
		return Ended{Phase: failed, Reason: "DeadlineExceeded", Message: "Pod was active on the node longer than the specified deadline"}
	}
	return Ended{Phase: phase}
}

// naturalEnd is the phase that the containers speak of. Sidecars and ephemeral
// containers have no say (C-1.20.11, C-1.19.7).
func (s *scene) naturalEnd() string {
	switch {
	case s.restartingAll(): // what the restart has stopped has not ended
		return ""
	case s.initFailed():
		return failed
	case !s.SandboxReady() && s.HasRun() && !s.restartable():
		// C-1.19.3: nothing of it is made again, whatever had its turn.
		return s.lastWords()
	}
	phase := succeeded
	for i := range s.Want.Pod.Spec.Containers {
		c, ok := s.Container(s.Want.Pod.Spec.Containers[i].Name)
		if !ok || c.State != pod.StateExited || s.Changed(c) || s.comesBack(c) {
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
	list, turn := s.Want.Pod.Spec.InitContainers, s.CurrentInit()
	if turn == len(list) || pod.Restartable(&list[turn]) {
		return false
	}
	c, ok := s.Container(list[turn].Name)
	if !ok || !s.InSandbox(c) { // in another sandbox init begins anew (C-1.20.9)
		return false
	}
	return c.State == pod.StateExited && c.ExitCode != 0 && !s.Changed(c) && !s.comesBack(c)
}

// lastWords is the outcome of an instance of which nothing is started any more:
// "" while something of it still lives.
func (s *scene) lastWords() string {
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

// deadline returns when the wanted instance has been active for too long; ok is
// false when it may be for ever, or when nobody knows since when it is. A pod
// that has not begun, for it waits for the network or for another pod, is not
// active.
func (s *scene) deadline() (at time.Time, ok bool) {
	d := s.Want.Pod.Spec.ActiveDeadlineSeconds
	known := s.anew == "" && s.Record.Instance == s.target && !s.Record.StartTime.IsZero()
	if d == nil || !known {
		return time.Time{}, false
	}
	return s.Record.StartTime.Add(time.Duration(*d) * time.Second), true // C-1.26.17
}

// overtime reports whether the deadline ends the instance. One whose containers
// ended before it, in phase, was in time.
func (s *scene) overtime(phase string) bool {
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

// awaitDeadline lets a pod that lives on look again at its deadline.
func (s *scene) awaitDeadline() {
	if s.Want == nil || s.deleting() || s.Want.Pod.Spec.ActiveDeadlineSeconds == nil || s.p.Ended.Phase != "" {
		return
	}
	if at, ok := s.deadline(); ok {
		what := "active deadline"
		if s.p.Wait == 0 { // what news may end sooner is more to the point
			what = cmp.Or(s.p.WaitFor, what)
		}
		s.wait(at, what)
	}
}
