package plan

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// The crash back-off's constants (C-1.22.5).
const (
	firstDelay = 10 * time.Second
	maxDelay   = 5 * time.Minute
)

// policyOf is the policy by which container name restarts: its own where it has
// one, as a sidecar has, else the pod's (C-1.21.1, C-1.21.2).
func (s *scene) policyOf(name string) v1.RestartPolicy {
	if c, _ := s.Want.Container(name); c != nil && c.RestartPolicy != nil {
		return v1.RestartPolicy(*c.RestartPolicy)
	}
	return s.policy()
}

// restartable reports whether any regular container may restart on whatever end:
// of a pod without one nothing is made again in another sandbox (C-1.19.3).
func (s *scene) restartable() bool {
	return slices.ContainsFunc(s.Want.Pod.Spec.Containers, func(c v1.Container) bool {
		return s.policyOf(c.Name) != never || c.RestartPolicy != nil && len(c.RestartPolicyRules) > 0
	})
}

// comesBack is the restart decision for a container that ended (C-1.19.8). Rules
// come first, then the policy; after a probe's kill the policy alone, which then
// does not ask for the exit code (C-1.19.6).
func (s *scene) comesBack(c pod.Container) bool {
	policy := s.policyOf(c.Name)
	if s.killedByProbe(c) {
		return policy != never
	}
	if s.rule(c) != "" {
		return true
	}
	switch policy {
	case never:
		return false
	case onFailure:
		return c.ExitCode != 0
	}
	return true
}

// rule is what the first matching restart rule of an exited container does, ""
// when none matches (C-1.21.1).
func (s *scene) rule(c pod.Container) v1.ContainerRestartRuleAction {
	spec, _ := s.Want.Container(c.Name)
	if spec == nil || spec.RestartPolicy == nil { // C-1.21.2
		return ""
	}
	for _, r := range spec.RestartPolicyRules {
		if r.ExitCodes == nil {
			continue
		}
		in := slices.Contains(r.ExitCodes.Values, c.ExitCode)
		if in == (r.ExitCodes.Operator == v1.ContainerRestartRuleOnExitCodesOpIn) {
			return r.Action
		}
	}
	return ""
}

// restart starts an exited container anew when its back-off is over. The
// back-offs of containers do not hold each other.
func (s *scene) restart(c pod.Container) {
	streak, delay, due := s.crash(c)
	if due.After(s.Now) {
		s.backOff(c, delay, due)
		return
	}
	s.start(c.Name, streak, fmt.Sprintf("exited with %d", c.ExitCode))
}

func (s *scene) backOff(c pod.Container, delay time.Duration, due time.Time) {
	if s.p.Backoff == nil {
		s.p.Backoff = make(map[string]Backoff, 1)
	}
	s.p.Backoff[c.Name] = Backoff{Delay: delay, Until: due}
	s.wait(due, fmt.Sprintf("back-off %s restarting failed container=%s", delay, c.Name))
}

// kill stops a container because of why: a probe or hook that failed. After a
// probe's kill its next life begins at once, unless it is in back-off; after a
// hook's it is one that ended.
func (s *scene) kill(c pod.Container, why string) {
	text := why + " probe failed"
	if why == pod.HookFailed {
		text = "postStart hook failed"
	}
	step := s.stopStep(c, text, s.killGrace(c, why))
	step.Killed = why
	s.add(step)
	if why == pod.HookFailed || s.policyOf(c.Name) == never {
		return
	}
	if streak, _, due := s.probeCrash(c, s.Now); !due.After(s.Now) {
		s.start(c.Name, streak, text)
	}
}

// crash returns the crash streak of the next life of an exited container, the
// delay before it, and when that is over.
//
// The first crash restarts at once; crash n+1 in a row waits 10 s · 2^(n-1), at
// most 5 min or the node's own cap, from the end of the life before (C-1.22.5,
// Appendix B2). A life of twice the cap or more begins the count anew, and so do
// other resources. The streak is on the container, so that a new agent goes on
// to the second (unlike C-1.32.4). A clock that was set back by more than the
// delay ends it: an end that lies in the future says nothing about how long ago
// it was (F14).
func (s *scene) crash(c pod.Container) (streak int, delay time.Duration, due time.Time) {
	end := c.FinishedAt
	if end.IsZero() { // a runtime that does not say when
		end = c.CreatedAt
	}
	if s.killedByProbe(c) {
		return s.probeCrash(c, end)
	}
	n := s.streak(c, c.FinishedAt)
	if n == 0 {
		return 1, 0, time.Time{}
	}
	delay = s.delay(n)
	return n + 1, delay, s.dueAfter(end, delay)
}

// probeCrash is crash for a life that a probe ends, or has ended, at end. As for
// the kubelet, whose back-off looks at the newest record that has exited, and
// does so while this one stops, the delay counts from the end of the life before
// it: only a life that is shorter than its delay waits, and then for all of it,
// from its own end.
func (s *scene) probeCrash(c pod.Container, end time.Time) (streak int, delay time.Duration, due time.Time) {
	n := s.streak(c, end)
	i := slices.IndexFunc(s.Have.Dead, func(d pod.Container) bool {
		return d.Name == c.Name && d.State == pod.StateExited
	})
	switch {
	case i < 0:
		return n, 0, time.Time{}
	case n == 0:
		return 1, 0, time.Time{}
	}
	delay = s.delay(n)
	if end.Sub(s.Have.Dead[i].FinishedAt) >= delay {
		return n + 1, delay, time.Time{}
	}
	if c.State != pod.StateExited {
		return n + 1, delay, s.dueAfter(end, delay)
	}
	return n + 1, delay, s.dueAfter(end, delay)
}

// streak counts the crashes in a row before a life that ended at end.
func (s *scene) streak(c pod.Container, end time.Time) int {
	forgotten := !c.StartedAt.IsZero() && end.Sub(c.StartedAt) >= 2*s.maxDelay()
	resized := c.Resources != "" && c.Resources != s.Want.Resources(c.Name)
	if forgotten || resized {
		return 0
	}
	return max(c.CrashStreak, 0)
}

func (s *scene) delay(n int) time.Duration {
	return min(firstDelay<<min(n-1, 10), s.maxDelay())
}

func (s *scene) maxDelay() time.Duration { return cmp.Or(s.MaxBackoff, maxDelay) }

// dueAfter is when a delay after end is over; zero, for at once, where end lies
// further in the future than any delay can explain.
func (s *scene) dueAfter(end time.Time, delay time.Duration) time.Time {
	if end.Sub(s.Now) > delay {
		return time.Time{}
	}
	if end.After(s.Now) { // the clock was set back: never longer than the delay from now
		end = s.Now
	}
	return end.Add(delay)
}

// restartAll obeys a rule that restarts all containers (C-1.21.3): all but the
// ephemeral ones are killed and removed, and the pod, in its sandbox, begins at
// its first init container. What ended so goes last: until then it says what is
// to be done. Its back-off holds it there, and its streak outlives it in Streaks.
func (s *scene) restartAll() bool {
	var sources []pod.Container
	var others []pod.Container
	for _, list := range [][]v1.Container{s.Want.Pod.Spec.Containers, s.Want.Pod.Spec.InitContainers} {
		for i := range list {
			c, ok := s.Have.Containers[list[i].Name]
			switch {
			case !ok:
			case s.endsAll(c):
				sources = append(sources, c)
			default:
				others = append(others, c)
			}
		}
	}
	if len(sources) == 0 {
		return false
	}
	s.p.RestartingAll = true
	why := fmt.Sprintf("container %s exited with %d, which restarts all", sources[0].Name, sources[0].ExitCode)
	for _, c := range others {
		if c.State == pod.StateRunning || c.State == pod.StateUnknown {
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
	held := false
	streaks := make([]int, len(sources))
	for i, c := range sources {
		var delay time.Duration
		var due time.Time
		if streaks[i], delay, due = s.crash(c); due.After(s.Now) {
			s.backOff(c, delay, due)
			held = true
		}
	}
	for i, c := range sources {
		if !held {
			s.add(Step{Action: RemoveContainer, Container: c.Name, ID: c.ID, Streak: streaks[i], Why: why})
		}
	}
	return true
}

// endsAll reports whether a rule restarts all containers because of c's end.
func (s *scene) endsAll(c pod.Container) bool {
	return c.State == pod.StateExited && s.here(c) && !s.containerChanged(c) && !s.killedByProbe(c) &&
		s.rule(c) == v1.ContainerRestartRuleActionRestartAllContainers
}

func (s *scene) isEphemeral(name string) bool {
	return slices.ContainsFunc(s.Want.Pod.Spec.EphemeralContainers, func(e v1.EphemeralContainer) bool { return e.Name == name })
}
