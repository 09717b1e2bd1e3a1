package plan

import (
	"github.com/nodectl/nodectl/pkg/pod"
)

// Why a container has another life that its own end did not ask for.
const (
	whyEdited  = "definition changed"
	whyResized = "resources changed"
)

// containers is rung 6: the sandbox is there.
func (s *scene) containers() bool {
	s.leftovers()
	if !s.VolumesReady {
		s.volumes()
	}
	if s.restartAll() {
		return true
	}
	s.ephemeral()
	if s.initContainers() {
		for i := range s.Want.Pod.Spec.Containers {
			s.container(s.Want.Pod.Spec.Containers[i].Name)
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
	c, _ := s.Want.Container(name)
	return c != nil
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

// ephemeral starts ephemeral containers once; none has another life, and none
// has a say in anything (C-1.19.4).
func (s *scene) ephemeral() {
	for i := range s.Want.Pod.Spec.EphemeralContainers {
		name := s.Want.Pod.Spec.EphemeralContainers[i].Name
		switch c, ok := s.record(name); {
		case !ok:
			s.start(name, 0, "ephemeral container has not run yet")
		case c.State == pod.StateCreated:
			s.startCreated(c)
		}
	}
}

// container decides about one regular container (C-1.19.6) or one sidecar
// (C-1.20.5); they differ in their policy alone. What lives outside the newest
// sandbox was stopped by rung 3.
func (s *scene) container(name string) {
	c, ok := s.record(name)
	switch {
	case !ok:
		s.start(name, s.Streaks[name], "container has not run yet")
	case s.containerChanged(c):
		s.replace(c, whyEdited)
	case c.State == pod.StateRunning:
		s.running(c)
	case c.State == pod.StateCreated:
		s.startCreated(c)
	case c.State == pod.StateUnknown:
		s.lost(c)
	case s.comesBack(c):
		s.restart(c)
	}
}

// running decides about a container that runs and has the wanted definition.
func (s *scene) running(c pod.Container) {
	if kill := s.doomed(c); kill != "" {
		s.kill(c, kill)
		return
	}
	if s.hookDue(c) {
		s.add(Step{Action: RunHook, Container: c.Name, ID: c.ID, Hook: s.postStart(c.Name), Why: "postStart hook has not ended"})
	}
	s.resize(c)
}

// replace starts a container anew for another reason than its end: by whatever
// policy, and with its crashes forgotten.
func (s *scene) replace(c pod.Container, why string) {
	switch c.State {
	case pod.StateExited:
	case pod.StateCreated:
		s.remove(c, why)
	default:
		s.stop(c, why)
	}
	s.start(c.Name, 0, why)
}

// startCreated starts what was made and not started: the agent or the runtime
// ended in between (P2, C-1.19.8).
func (s *scene) startCreated(c pod.Container) {
	const why = "created and not started"
	if !s.here(c) || s.containerChanged(c) {
		s.remove(c, why)
		s.start(c.Name, c.CrashStreak, "container has not run yet")
		return
	}
	if s.mayStart(c.Name) {
		s.begin(c.Name, c.ID, why)
	}
}

// lost stops a container whose state the runtime does not know, and starts
// another life of it where its policy, which knows no exit code, allows one.
func (s *scene) lost(c pod.Container) {
	const why = "state is unknown"
	s.stop(c, why)
	if s.policyOf(c.Name) != never {
		s.start(c.Name, c.CrashStreak+1, why)
	}
}

// start makes a new life of container name.
func (s *scene) start(name string, streak int, why string) {
	if !s.mayStart(name) {
		return
	}
	s.add(Step{Action: PullImage, Container: name, Why: why})
	s.add(Step{Action: CreateContainer, Container: name, Attempt: s.nextAttempt(name), Streak: streak, Why: why})
	s.begin(name, "", why)
}

// begin lets a created container run: the one with this ID, or the one just
// created. The next container is made after the postStart hook (C-1.22.1).
func (s *scene) begin(name, id, why string) {
	s.add(Step{Action: StartContainer, Container: name, ID: id, Why: why})
	if hook := s.postStart(name); hook != nil {
		s.add(Step{Action: RunHook, Container: name, ID: id, Hook: hook, Why: why})
	}
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
