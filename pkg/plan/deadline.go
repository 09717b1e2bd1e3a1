package plan

import (
	"cmp"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
)

// deadline returns when the wanted instance has been active for too long; ok is
// false when it may be for ever, or when nobody knows since when it is. A pod
// that has not begun, for it waits for the network or for another pod, is not
// active.
func (s *scene) deadline() (at time.Time, ok bool) {
	d := s.Want.Pod.Spec.ActiveDeadlineSeconds
	known := s.over == "" && s.Instance == s.target && !s.StartTime.IsZero()
	if d == nil || !known {
		return time.Time{}, false
	}
	return s.StartTime.Add(time.Duration(*d) * time.Second), true // C-1.26.17
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
		if c, ok := s.record(s.Want.Pod.Spec.Containers[i].Name); ok && c.State == pod.StateExited && !c.FinishedAt.Before(at) {
			return true
		}
	}
	return false
}

// awaitDeadline lets a pod that lives on look again at its deadline.
func (s *scene) awaitDeadline() {
	if s.Want == nil || s.deleting() || s.Want.Pod.Spec.ActiveDeadlineSeconds == nil || s.end().Phase != "" {
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
