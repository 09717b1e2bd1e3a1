package plan

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// The crash back-off's constants (C-1.22.5).
const (
	firstDelay = 10 * time.Second
	maxDelay   = 5 * time.Minute
	// forgetAfter is how long a container has to run for its crashes to be
	// forgotten.
	forgetAfter = 2 * maxDelay
)

// whyEdited is why a container has another life that its own end did not ask
// for.
const whyEdited = "definition changed"

// containers is rung 6: the sandbox is there.
func (s *scene) containers() bool {
	s.leftovers()
	if !s.VolumesReady {
		s.volumes()
	}
	if s.initContainers() {
		for i := range s.Want.Pod.Spec.Containers {
			s.regular(s.Want.Pod.Spec.Containers[i].Name)
		}
	}
	s.tidy()
	return true
}

// leftovers stops and removes containers that the spec does not have any more.
func (s *scene) leftovers() {
	const why = "container is not in the pod any more"
	for _, c := range sortedContainers(s.Have) {
		if s.knows(c.Name) {
			continue
		}
		if c.State == pod.StateRunning || c.State == pod.StateUnknown {
			s.stop(c, why)
		}
		s.remove(c, why)
	}
}

// knows reports whether the wanted pod has a container of this name.
func (s *scene) knows(name string) bool {
	spec := &s.Want.Pod.Spec
	for i := range spec.InitContainers {
		if spec.InitContainers[i].Name == name {
			return true
		}
	}
	for i := range spec.Containers {
		if spec.Containers[i].Name == name {
			return true
		}
	}
	for i := range spec.EphemeralContainers {
		if spec.EphemeralContainers[i].Name == name {
			return true
		}
	}
	return false
}

// volumes puts the instance's volumes in place again under a sandbox that is
// ready: what says that they are was lost.
func (s *scene) volumes() {
	if t := s.Trouble[""]; t.Until.After(s.Now) {
		s.wait(t.Until, troubleText("pod", t))
		return
	}
	s.add(Step{Action: PutVolumes, Instance: s.target, Why: "volumes are not in place"})
}

// initContainers does what the init containers need, and reports whether the
// pod is initialised. The newest one with a record decides, so that removed
// records of earlier ones do not run them again (C-1.20.3); records of an older
// sandbox do not count (C-1.20.2, C-1.20.9).
func (s *scene) initContainers() (initialised bool) {
	list := s.Want.Pod.Spec.InitContainers
	if s.initialised() {
		return true
	}
	for i := len(list) - 1; i >= 0; i-- {
		c, ok := s.record(list[i].Name)
		if !ok || !s.here(c) {
			continue
		}
		if c.State == pod.StateExited && c.ExitCode == 0 {
			if i+1 < len(list) {
				s.startInit(list[i+1], fmt.Sprintf("init container %s has completed", c.Name))
				return false
			}
			return true
		}
		s.initTurn(c)
		return false
	}
	if len(list) > 0 {
		s.startInit(list[0], "first init container")
		return false
	}
	return true
}

// initTurn decides about the init container whose turn it is and which has not
// completed. What runs keeps its definition (C-1.20.10).
func (s *scene) initTurn(c pod.Container) {
	switch {
	case c.State == pod.StateRunning:
		if s.p.WaitFor == "" {
			s.p.WaitFor = fmt.Sprintf("init container %s is running", c.Name)
		}
	case c.State == pod.StateCreated:
		s.startCreated(c)
	case c.State == pod.StateUnknown:
		s.lost(c)
	case s.containerChanged(c):
		s.start(c.Name, 0, whyEdited)
	default:
		s.restart(c)
	}
}

func (s *scene) startInit(c v1.Container, why string) { s.start(c.Name, 0, why) }

// initialised reports whether a regular container was made in this sandbox, or
// there is nothing to do first (C-1.20.2).
func (s *scene) initialised() bool {
	for i := range s.Want.Pod.Spec.Containers {
		if c, ok := s.record(s.Want.Pod.Spec.Containers[i].Name); ok && s.here(c) {
			return true
		}
	}
	return len(s.Want.Pod.Spec.InitContainers) == 0
}

// regular decides about one regular container (C-1.19.6). What lives outside
// the newest sandbox was stopped by rung 3.
func (s *scene) regular(name string) {
	c, ok := s.record(name)
	switch {
	case !ok:
		s.start(name, 0, "container has not run yet")
	case s.containerChanged(c):
		s.replace(c)
	case c.State == pod.StateRunning:
	case c.State == pod.StateCreated:
		s.startCreated(c)
	case c.State == pod.StateUnknown:
		s.lost(c)
	case restarts(s.policy(), c.ExitCode):
		s.restart(c)
	}
}

// replace starts a container anew whose definition changed: by whatever policy,
// and with its crashes forgotten.
func (s *scene) replace(c pod.Container) {
	switch c.State {
	case pod.StateExited:
	case pod.StateCreated:
		s.remove(c, whyEdited)
	default:
		s.stop(c, whyEdited)
	}
	s.start(c.Name, 0, whyEdited)
}

// startCreated starts what was made and not started: the agent or the runtime
// ended in between (P2, C-1.19.8).
func (s *scene) startCreated(c pod.Container) {
	if !s.here(c) || s.containerChanged(c) {
		s.remove(c, "created and not started")
		s.start(c.Name, c.CrashStreak, "container has not run yet")
		return
	}
	if s.mayStart(c.Name) {
		s.add(Step{Action: StartContainer, Container: c.Name, ID: c.ID, Why: "created and not started"})
	}
}

// lost stops a container whose state the runtime does not know, and starts
// another life of it where a failure would.
func (s *scene) lost(c pod.Container) {
	const why = "state is unknown"
	s.stop(c, why)
	if restarts(s.policy(), 137) {
		s.start(c.Name, c.CrashStreak+1, why)
	}
}

// restart starts an exited container anew when its back-off is over. The
// back-offs of containers do not hold each other.
func (s *scene) restart(c pod.Container) {
	streak, delay, due := crash(c, s.View)
	if due.After(s.Now) {
		if s.p.Backoff == nil {
			s.p.Backoff = make(map[string]Backoff, 1)
		}
		s.p.Backoff[c.Name] = Backoff{Delay: delay, Until: due}
		s.wait(due, fmt.Sprintf("back-off %s restarting failed container=%s", delay, c.Name))
		return
	}
	s.start(c.Name, streak, fmt.Sprintf("exited with %d", c.ExitCode))
}

// crash returns the crash streak of the next life, the delay before it, and
// when that is over.
//
// The first crash restarts at once; crash n+1 in a row waits 10 s · 2^(n-1), at
// most 5 min, from the end of the life before (C-1.22.5, Appendix B2). A life
// of 10 min or more begins the count anew. The streak is on the container, so
// that a new agent goes on to the second (unlike C-1.32.4). A clock that was
// set back by more than the delay ends it: an end that lies in the future says
// nothing about how long ago it was (F14).
func crash(c pod.Container, v View) (streak int, delay time.Duration, due time.Time) {
	n := max(c.CrashStreak, 0)
	if !c.StartedAt.IsZero() && c.FinishedAt.Sub(c.StartedAt) >= forgetAfter {
		n = 0
	}
	if n == 0 {
		return 1, 0, time.Time{}
	}
	delay = maxDelay
	if n <= 5 {
		delay = min(firstDelay<<(n-1), maxDelay)
	}
	end := c.FinishedAt
	if end.IsZero() { // a runtime that does not say when
		end = c.CreatedAt
	}
	if end.Sub(v.Now) > delay {
		return n + 1, delay, time.Time{}
	}
	return n + 1, delay, end.Add(delay)
}

// start makes a new life of container name.
func (s *scene) start(name string, streak int, why string) {
	if !s.mayStart(name) {
		return
	}
	s.add(Step{Action: PullImage, Container: name, Why: why})
	s.add(Step{Action: CreateContainer, Container: name, Attempt: s.nextAttempt(name), Streak: streak, Why: why})
	s.add(Step{Action: StartContainer, Container: name, Why: why})
}

// mayStart reports whether container name may be started now; what is in the
// way of one does not hold the others.
func (s *scene) mayStart(name string) bool {
	if t := s.Trouble[""]; !s.VolumesReady && t.Until.After(s.Now) {
		return false // volumes says what is waited for
	}
	if t := s.Trouble[name]; t.Until.After(s.Now) {
		s.wait(t.Until, troubleText("container "+name, t))
		return false
	}
	return true
}

// restarts is the restart decision for a container that ended (C-1.19.8,
// C-1.21.2).
func restarts(policy v1.RestartPolicy, exitCode int32) bool {
	switch policy {
	case never:
		return false
	case onFailure:
		return exitCode != 0
	}
	return true
}
