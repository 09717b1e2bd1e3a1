package plan

import (
	"fmt"

	"github.com/nodectl/nodectl/pkg/pod"
)

// initContainers starts the init containers, sidecars among them, in order, and reports whether
// the pod is initialised. The table is about the current init container. Completed init containers
// before it stay as they are. For sidecars before it, the table of container applies: a sidecar
// that was removed starts again (C-1.20.7).
//
//	 the current init container       | plan
//	----------------------------------+----------------------------------------------
//	 has no container in this sandbox | start
//	 is a sidecar                     | see container; start the next init container
//	                                  | when it runs, its postStart hook has
//	                                  | succeeded and its startup probe has passed
//	 runs                             | update its resources if they changed
//	                                  | (C-1.34.8); wait for its exit
//	 is created                       | start
//	 state unknown                    | stop; start, if its policy allows
//	 exited with an error, and edited | start; no back-off
//	 exited with an error             | start, when its back-off is over. If it may
//	                                  | not restart, the rule terminated has matched
//	 exited with 0                    | start the next one; after the last one the
//	                                  | pod is initialised
func (s *planner) initContainers() (initialised bool) {
	list := s.Want.Pod.Spec.InitContainers
	current := s.CurrentInit()
	for i := range list[:current] {
		if pod.Restartable(&list[i]) {
			s.container(list[i].Name)
		}
	}
	if current == len(list) {
		return true
	}
	name := list[current].Name
	c, ok := s.Container(name)
	switch {
	case !ok || !s.InSandbox(c):
		s.start(name, s.Record.Streaks[name], "first init container")
		return false
	case pod.Restartable(&list[current]):
		s.container(name)
		if !s.started(c) {
			s.waitFor(fmt.Sprintf("sidecar %s has not started yet", name))
			return false
		}
	case c.State != pod.StateExited || c.ExitCode != 0:
		s.incompleteInit(c)
		return false
	}
	if current+1 == len(list) {
		return true
	}
	why := "init container %s has completed"
	if pod.Restartable(&list[current]) {
		why = "sidecar %s has started"
	}
	next := list[current+1].Name
	s.start(next, s.Record.Streaks[next], fmt.Sprintf(why, name))
	return false
}

// incompleteInit decides about the current init container if it is no sidecar and has not
// completed. An edit does not replace it while it runs (C-1.20.10).
func (s *planner) incompleteInit(c pod.Container) {
	switch {
	case c.State == pod.StateRunning:
		s.resize(c)
		s.waitFor(fmt.Sprintf("init container %s is running", c.Name))
	case c.State == pod.StateCreated:
		s.startCreated(c)
	case c.State == pod.StateUnknown:
		s.unknown(c)
	case s.Changed(c):
		s.create(Step{Container: c.Name, Edited: true, Why: WhyEdited})
	default:
		s.restart(c)
	}
}

// started reports whether the init container after sidecar c may start. It may if c runs with the
// desired definition, and its postStart hook and its startup probe, if any, have succeeded.
// Readiness does not count (C-1.20.6).
func (s *planner) started(c pod.Container) bool {
	if c.State != pod.StateRunning || s.Changed(c) || s.killReason(c) != "" || s.hookDue(c) {
		return false
	}
	spec, _ := s.Want.Container(c.Name)
	return s.HasStarted(spec, c, false)
}
