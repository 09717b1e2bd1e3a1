package plan

import (
	"cmp"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podview"
)

// container decides about one regular container (C-1.19.6) or one sidecar (C-1.20.5); only
// their restart policies differ. The left column is the state of the newest container of this
// name in the instance. The first row that matches decides, with one exception: if a postStart
// hook is due and resources changed, both rows apply. Containers outside the newest sandbox do
// not run any more: the rule duplicates has stopped them.
//
//	 state   | when                                      | plan
//	---------+-------------------------------------------+----------------------------------------
//	 none    | the instance has no container of the name | start
//	 any     | its definition changed                    | pull, stop, start; no back-off
//	 running | a restart was requested                   | pull, stop, start; no back-off. Until a
//	         |                                           | new one may start: run a hook that is due
//	         | its postStart hook failed                 | stop; the next plan treats it as exited
//	         | its liveness or startup probe failed      | stop; start, if its policy allows and
//	         |                                           | it is not in back-off
//	         | postStart is due                          | run the hook
//	         | resources changed                         | update; restart if its resize policy
//	         |                                           | says so
//	         | else                                      | keep
//	 created | in this sandbox                           | start
//	         | in another sandbox                        | remove, start
//	 unknown |                                           | stop; start, if its policy allows
//	 exited  | a restart was requested                   | start; no back-off
//	         | its rules or its policy allow a restart   | start, when its back-off is over
//	         | else                                      | keep
//
// If a stop for a failed hook or probe has begun, the plan completes it, even if the probe succeeds
// now or another one fails.
func (s *planner) container(name string) {
	c, ok := s.Container(name)
	switch {
	case !ok: // it has not run yet, or a restart of all containers removed it (C-1.19.8)
		s.start(name, s.Record.Streaks[name], "container has not run yet")
	case s.Changed(c):
		s.replace(c, WhyEdited)
	case c.State == pod.StateRunning:
		s.running(c)
	case c.State == pod.StateCreated:
		s.startCreated(c)
	case c.State == pod.StateUnknown:
		s.unknown(c)
	case s.willRestart(c):
		s.restart(c)
	}
}

// The reasons to replace a container that did not exit by itself (Step.Why).
const (
	WhyEdited    = "definition changed"
	WhyResized   = "resources changed"
	WhyRequested = "a restart was requested"
)

// running decides about a container that runs and has the desired definition.
func (s *planner) running(c pod.Container) {
	switch kill := s.killReason(c); kill {
	case "":
	case pod.OnRequest:
		if s.replace(c, WhyRequested) {
			return
		}
		// The new container cannot start now. Until it can, this one continues to run, and
		// its postStart hook runs if it is due.
	default:
		s.killFor(c, kill)
		return
	}
	if s.hookDue(c) {
		s.add(Step{Action: RunHook, Container: c.Name, ID: c.ID, Hook: s.postStart(c.Name), Why: "postStart hook has not ended"})
	}
	if s.Record.ContainerNotes[c.ID].Killed == "" {
		s.resize(c) // it may restart the container
	}
}

// killReason returns the reason to kill a running container, as a value of ContainerNotes.Killed;
// "" if it may continue. A recorded reason comes before a new one, even if an earlier agent
// recorded it.
func (s *planner) killReason(c pod.Container) string {
	spec, _ := s.Want.Container(c.Name)
	notes := s.Record.ContainerNotes[c.ID]
	failed := func(probe *v1.Probe, kind pod.ProbeKind) bool {
		ok, known := s.ProbeStatus(kind, c)
		return probe != nil && known && !ok
	}
	switch {
	case notes.Killed != "":
		return notes.Killed
	case notes.PostStart == pod.HookFailed:
		return pod.HookFailed
	case failed(spec.LivenessProbe, pod.Liveness):
		return string(pod.Liveness)
	case failed(spec.StartupProbe, pod.Startup):
		return string(pod.Startup)
	}
	return ""
}

// killFor stops a container whose probe or postStart hook failed; why is the killReason. After
// a failed probe the plan also restarts the container, unless its policy or a back-off prevents
// that. After a failed hook the next plan decides about the exited container.
func (s *planner) killFor(c pod.Container, why string) {
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

// resize gives a running container the resources of its spec: in place, or by a restart if
// its resize policy says RestartContainer (C-1.34.4). It never restarts an init container that is
// no sidecar (C-1.34.8), and changes nothing of it if that feature is off. If an older agent made the
// container, and nothing shows its current resources, resize changes nothing.
func (s *planner) resize(c pod.Container) {
	has := cmp.Or(s.Record.ContainerNotes[c.ID].Resources, c.Resources)
	if has == "" && s.Record.Want != nil { // an older agent did not record the resources
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
	spec, init := s.Want.Container(c.Name)
	if init && !pod.Restartable(spec) && (s.Changed(c) || s.Disabled.Has(pod.FeatureInitResize)) {
		return // an edit does not replace it while it runs (C-1.20.10)
	}
	if pod.ResizeRestarts(spec, changed) && (!init || pod.Restartable(spec)) {
		s.replace(c, WhyResized)
		return
	}
	if s.mayStart(c.Name) {
		s.add(Step{Action: UpdateContainer, Container: c.Name, ID: c.ID, Why: fmt.Sprintf("%s: %s → %s", WhyResized, has, want)})
	}
}

// replace replaces a container for another reason than its exit, under any restart policy,
// and resets its crash streak. The running container continues until the new image is present:
// a pull that fails stops nothing. replace returns false, and plans nothing, when the new
// container may not start now.
func (s *planner) replace(c pod.Container, why string) bool {
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
	s.createPulled(Step{Container: c.Name, Edited: why != WhyRequested, Why: why})
	return true
}

// replaceStep stops a container that a new one replaces. A restart request may have set the
// grace.
//
// If the agent restarts after the stop, the hash of the container shows a changed definition,
// but neither a restart request nor a resize. So for these two, Step.Killed records that a new
// container is due.
func (s *planner) replaceStep(c pod.Container, why string) Step {
	if why != WhyResized && s.Record.ContainerNotes[c.ID].Killed != pod.OnRequest {
		return s.stopStep(c, why, s.grace())
	}
	step := s.stopStep(c, why, s.killGrace(c, pod.OnRequest))
	step.Killed = pod.OnRequest
	return step
}

// startCreated starts a container that was created and not started, because the agent or the
// runtime exited in between (P2, C-1.19.8).
func (s *planner) startCreated(c pod.Container) {
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

// unknown stops a container whose state the runtime does not know, and restarts it unless its
// policy is Never. Restart rules do not apply: they match an exit code, which is not known.
func (s *planner) unknown(c pod.Container) {
	const why = "state is unknown"
	s.stop(c, why)
	if s.policyOf(c.Name) != never {
		s.start(c.Name, c.CrashStreak+1, why)
	}
}

// restart restarts an exited container when its back-off is over. The back-off of one
// container does not delay the others.
func (s *planner) restart(c pod.Container) {
	streak, delay, due := s.crash(c)
	if due.After(s.Now) {
		s.backOff(c, delay, due)
		return
	}
	s.start(c.Name, streak, fmt.Sprintf("exited with %d", c.ExitCode))
}

// start creates and starts container name, after streak crashes in a row.
func (s *planner) start(name string, streak int, why string) {
	s.create(Step{Container: name, Streak: streak, Why: why})
}

// create pulls the image, then creates and starts the container of a CreateContainer step.
func (s *planner) create(step Step) {
	if !s.mayStart(step.Container) {
		return
	}
	s.add(Step{Action: PullImage, Container: step.Container, Why: step.Why})
	s.createPulled(step)
}

// createPulled is create without the pull: the image is present.
func (s *planner) createPulled(step Step) {
	step.Action, step.Attempt = CreateContainer, s.nextAttempt(step.Container)
	s.add(step)
	s.run(step.Container, "", step.Why)
}

// run starts the created container with this ID; "" is the one that the step before creates.
// The next container follows after this one's postStart hook (C-1.22.1).
func (s *planner) run(name, id, why string) {
	s.add(Step{Action: StartContainer, Container: name, ID: id, Why: why})
	if hook := s.postStart(name); hook != nil {
		s.add(Step{Action: RunHook, Container: name, ID: id, Hook: hook, Why: why})
	}
}

// mayStart reports whether container name may be started now. If not, it sets Plan.WaitFor.
func (s *planner) mayStart(name string) bool {
	if s.Forbidden != "" {
		s.waitFor(s.Forbidden)
		return false
	}
	if t := s.Failures[""]; !s.VolumesReady && t.Until.After(s.Now) {
		return false // the method volumes sets Plan.WaitFor
	}
	if t := s.Failures[name]; t.Until.After(s.Now) {
		text := failureText("container "+name, t)
		s.wait(t.Until, text)
		if from := podview.PullBackOffFrom(t); from.After(s.Now) { // from then on the status shows ImagePullBackOff
			s.wait(from, text)
		}
		return false
	}
	return true
}

// policyOf returns the restart policy of container name: its own, as a sidecar has, else the pod's
// (C-1.21.1, C-1.21.2).
func (s *planner) policyOf(name string) v1.RestartPolicy {
	if c, _ := s.Want.Container(name); c != nil && c.RestartPolicy != nil {
		return v1.RestartPolicy(*c.RestartPolicy)
	}
	return s.policy()
}

// anyMayRestart reports whether any regular container may restart. If none may, the instance gets
// no other sandbox (C-1.19.3).
func (s *planner) anyMayRestart() bool {
	return slices.ContainsFunc(s.Want.Pod.Spec.Containers, func(c v1.Container) bool {
		return s.policyOf(c.Name) != never || c.RestartPolicy != nil && len(c.RestartPolicyRules) > 0
	})
}

// willRestart reports whether an exited container restarts (C-1.19.8).
func (s *planner) willRestart(c pod.Container) bool {
	restart, _ := s.Restarts(c)
	return restart
}
