package plan

import (
	"cmp"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podview"
)

// container decides about one regular container (C-1.19.6) or one sidecar
// (C-1.20.5); they differ in their policy alone. The first line that matches
// says all, but for the hook that is due. What lives outside the newest sandbox
// was stopped by rung doubled.
//
//	 its record | when                                    | plan
//	------------+-----------------------------------------+------------------------------------------
//	 none       | or one of an instance that is over      | start
//	 any        | its definition changed                  | pull, stop, start; no back-off
//	 running    | liveness or startup probe failed        | stop; start, where its policy allows and
//	            |                                         | no back-off holds it
//	            | postStart failed                        | stop, then as exited
//	            | somebody asked for another life         | pull, stop, start; no back-off
//	            | postStart is due                        | run the hook; then as below
//	            | resources changed                       | update; or by its resize policy stop, start
//	            | else                                    | keep
//	 created    | in this sandbox                         | start
//	            | in another                              | remove, start
//	 unknown    |                                         | stop; start, where its policy allows
//	 exited     | rules, its policy or the pod's allow    | start, when its back-off is over
//	            | another life was asked for              | start; no back-off
//	            | for good                                | keep
func (s *scene) container(name string) {
	c, ok := s.Container(name)
	switch {
	case !ok: // also where all of it was removed (C-1.19.8)
		s.start(name, s.Record.Streaks[name], "container has not run yet")
	case s.Changed(c):
		s.replace(c, WhyEdited)
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

// Why a container has another life that its own end did not ask for (Step.Why).
const (
	WhyEdited  = "definition changed"
	WhyResized = "resources changed"
	WhyAsked   = "a restart was asked for"
)

// running decides about a container that runs and has the wanted definition.
func (s *scene) running(c pod.Container) {
	switch kill := s.doomed(c); kill {
	case "":
	case pod.OnRequest:
		if s.replace(c, WhyAsked) {
			return
		}
		// It lives until another life can follow, and so its hook is due.
	default:
		s.killFor(c, kill)
		return
	}
	if s.hookDue(c) {
		s.add(Step{Action: RunHook, Container: c.Name, ID: c.ID, Hook: s.postStart(c.Name), Why: "postStart hook has not ended"})
	}
	if s.Record.Lives[c.ID].Killed == "" {
		s.resize(c)
	}
}

// doomed says why a running container has to be ended: what Life.Killed will
// say, "" when it may live. A kill that was begun is brought to its end, also by
// the agent after the one that began it.
func (s *scene) doomed(c pod.Container) string {
	spec, _ := s.Want.Container(c.Name)
	life := s.Record.Lives[c.ID]
	failed := func(probe *v1.Probe, kind pod.ProbeKind) bool {
		ok, known := s.Probed(kind, c)
		return probe != nil && known && !ok
	}
	switch {
	case life.Killed != "":
		return life.Killed
	case life.PostStart == pod.HookFailed:
		return pod.HookFailed
	case failed(spec.LivenessProbe, pod.Liveness):
		return string(pod.Liveness)
	case failed(spec.StartupProbe, pod.Startup):
		return string(pod.Startup)
	}
	return ""
}

// killFor stops a container because of why: a probe or hook that failed. After a
// probe's kill its next life begins at once, unless it is in back-off; after a
// hook's it is one that ended.
func (s *scene) killFor(c pod.Container, why string) {
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

// resize gives a running container the resources that its spec names: in place,
// or in another life where its resize policy asks for that (C-1.34.4). What one
// was given that was made by an agent that did not note it is not known, and
// stays. A container that does not run gets them when it starts.
func (s *scene) resize(c pod.Container) {
	has := cmp.Or(s.Record.Lives[c.ID].Resources, c.Resources)
	if has == "" && s.Record.Want != nil { // made by an agent that did not note it
		has = s.Record.Want.Resources(c.Name)
	}
	if has == "" {
		return
	}
	want := s.Want.Resources(c.Name)
	changed := pod.ResourcesChanged(has, want)
	if len(changed) == 0 {
		return
	}
	if spec, _ := s.Want.Container(c.Name); pod.ResizeRestarts(spec, changed) {
		s.replace(c, WhyResized)
		return
	}
	if s.mayStart(c.Name) {
		s.add(Step{Action: UpdateContainer, Container: c.Name, ID: c.ID, Why: fmt.Sprintf("%s: %s → %s", WhyResized, has, want)})
	}
}

// replace starts a container anew for another reason than its end: by whatever
// policy, and with its crashes forgotten. What runs goes on until the image of the
// next life is here: one that cannot be pulled, or anything else that keeps it from
// starting, costs nothing that runs. It reports whether there is nothing like that.
func (s *scene) replace(c pod.Container, why string) bool {
	if !s.mayStart(c.Name) {
		s.p.Behind = true
		return false
	}
	s.add(Step{Action: PullImage, Container: c.Name, Why: why})
	switch c.State {
	case pod.StateExited:
	case pod.StateCreated:
		s.remove(c, why)
	default:
		s.add(s.replaceStep(c, why))
	}
	s.made(Step{Container: c.Name, Anew: why != WhyAsked, Why: why})
	return true
}

// replaceStep stops what another life is to follow: who asked for that may have said
// in what time. Where only the record can tell that it is to follow, it does so.
func (s *scene) replaceStep(c pod.Container, why string) Step {
	asked := s.Record.Lives[c.ID].Killed
	if why == WhyResized { // another definition shows, other resources do not
		asked = pod.OnRequest
	}
	if asked != pod.OnRequest {
		return s.stopStep(c, why, s.grace())
	}
	step := s.stopStep(c, why, s.killGrace(c, asked))
	step.Killed = asked
	return step
}

// startCreated starts what was made and not started: the agent or the runtime
// ended in between (P2, C-1.19.8).
func (s *scene) startCreated(c pod.Container) {
	const why = "created and not started"
	if !s.InSandbox(c) || s.Changed(c) {
		s.remove(c, why)
		s.start(c.Name, c.CrashStreak, "container has not run yet")
		return
	}
	if s.mayStart(c.Name) {
		s.run(c.Name, c.ID, why)
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

// start makes a new life of container name, which follows so many crashes.
func (s *scene) start(name string, streak int, why string) {
	s.create(Step{Container: name, Streak: streak, Why: why})
}

// create makes the life that step, a CreateContainer, speaks of.
func (s *scene) create(step Step) {
	if !s.mayStart(step.Container) {
		return
	}
	s.add(Step{Action: PullImage, Container: step.Container, Why: step.Why})
	s.made(step)
}

// made is create with the image here.
func (s *scene) made(step Step) {
	step.Action, step.Attempt = CreateContainer, s.nextAttempt(step.Container)
	s.add(step)
	s.run(step.Container, "", step.Why)
}

// run lets a created container run: the one with this ID, or the one just
// created. The next container is made after the postStart hook (C-1.22.1).
func (s *scene) run(name, id, why string) {
	s.add(Step{Action: StartContainer, Container: name, ID: id, Why: why})
	if hook := s.postStart(name); hook != nil {
		s.add(Step{Action: RunHook, Container: name, ID: id, Hook: hook, Why: why})
	}
}

// mayStart reports whether container name may be started now; what is in the
// way of one does not hold the others.
func (s *scene) mayStart(name string) bool {
	if s.Forbidden != "" {
		s.waitFor(s.Forbidden)
		return false
	}
	if t := s.Trouble[""]; !s.VolumesReady && t.Until.After(s.Now) {
		return false // volumes says what is waited for
	}
	if t := s.Trouble[name]; t.Until.After(s.Now) {
		text := troubleText("container "+name, t)
		s.wait(t.Until, text)
		if shown := podview.PullBackOffFrom(t); shown.After(s.Now) { // the status changes then
			s.wait(shown, text)
		}
		return false
	}
	return true
}

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

// comesBack is the restart decision for a container that ended (C-1.19.8).
func (s *scene) comesBack(c pod.Container) bool {
	restart, _ := s.Restarts(c)
	return restart
}
