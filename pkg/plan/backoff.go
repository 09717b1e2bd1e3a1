package plan

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podview"
)

// The crash back-off's constants (C-1.22.5).
const (
	firstDelay = 10 * time.Second
	maxDelay   = 5 * time.Minute
)

// crash returns the crash streak after the exited container c, the delay before it restarts,
// and when that delay ends; zero is at once.
//
// After the first crash the container restarts at once. After the second one in a row the
// restart waits 10 s from the exit. Each further crash doubles the delay, up to 5 min or the
// node's own cap (C-1.22.5, B2). A run of at least twice the cap resets the streak, and so does
// a change of resources. An annotation of the container holds the streak, so that a new agent
// continues it (unlike C-1.32.4). If the clock was set back by more than the delay, the
// container restarts at once (F14).
func (s *planner) crash(c pod.Container) (streak int, delay time.Duration, due time.Time) {
	end := c.FinishedAt
	if end.IsZero() { // the runtime does not report the time of the exit
		end = c.CreatedAt
	}
	if s.Record.ContainerNotes[c.ID].Killed == pod.OnRequest { // a requested restart is no crash
		return 0, 0, time.Time{}
	}
	if s.Record.ContainerNotes[c.ID].ByProbe() {
		return s.probeCrash(c, end)
	}
	n := s.streak(c, c.FinishedAt)
	if n == 0 {
		return 1, 0, time.Time{}
	}
	delay = s.delay(n)
	return n + 1, delay, s.dueAfter(end, delay)
}

// probeCrash is crash for a container that the agent kills at end because a probe failed. As in
// the kubelet, the delay runs from the exit of the container before this one. If the delay is over
// at end, the restart happens at once. Else the restart waits for the whole delay again, from this
// container's own exit. That wait does not change when tidy removes the earlier container.
func (s *planner) probeCrash(c pod.Container, end time.Time) (streak int, delay time.Duration, due time.Time) {
	n := s.streak(c, end)
	i := slices.IndexFunc(s.Have.Dead, func(d pod.Container) bool {
		return d.Name == c.Name && d.State == pod.StateExited
	})
	switch {
	case i < 0 && (n == 0 || c.State != pod.StateExited): // there is no container before this one
		return n, 0, time.Time{}
	case n == 0:
		return 1, 0, time.Time{}
	}
	delay = s.delay(n)
	if i >= 0 && end.Sub(s.Have.Dead[i].FinishedAt) >= delay {
		return n + 1, delay, time.Time{}
	}
	return n + 1, delay, s.dueAfter(end, delay)
}

// streak returns the crashes in a row before a container that exited at end. It returns 0 if the
// run was long, or if the resources changed (see crash).
func (s *planner) streak(c pod.Container, end time.Time) int {
	ranLong := !c.StartedAt.IsZero() && end.Sub(c.StartedAt) >= 2*s.maxDelay()
	resized := c.Resources != "" && len(pod.ResourcesChanged(c.Resources, s.Want.Resources(c.Name))) > 0
	if ranLong || resized {
		return 0
	}
	return max(c.CrashStreak, 0)
}

func (s *planner) delay(n int) time.Duration {
	return min(firstDelay<<min(n-1, 10), s.maxDelay())
}

func (s *planner) maxDelay() time.Duration { return cmp.Or(s.MaxBackoff, maxDelay) }

// dueAfter returns when a delay that began at end is over. If end is more than the delay in the
// future, it returns zero, for at once.
func (s *planner) dueAfter(end time.Time, delay time.Duration) time.Time {
	if end.Sub(s.Now) > delay {
		return time.Time{}
	}
	if end.After(s.Now) { // the clock was set back: wait for at most the delay from now
		end = s.Now
	}
	return end.Add(delay)
}

// backOff notes in the plan that an exited container is in back-off until due.
func (s *planner) backOff(c pod.Container, delay time.Duration, due time.Time) {
	if s.p.Backoff == nil {
		s.p.Backoff = make(map[string]podview.Backoff, 1)
	}
	s.p.Backoff[c.Name] = podview.Backoff{Delay: delay, Until: due}
	s.wait(due, fmt.Sprintf("back-off %s restarting failed container=%s", delay, c.Name))
}
