package plan

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podview"
)

// grace returns how many seconds a stop may still take; none are left if it is 0 or negative. It
// subtracts the time that a stop of the whole pod has already taken, even if another agent began
// the stop (C-1.16.12).
func (s *planner) grace() int64 {
	g := podview.Grace(s.Record.Want, s.Want, s.Have)
	if s.deleting() && s.Want.Pod.DeletionGracePeriodSeconds != nil { // the grace of the deletion counts (C-1.23.1)
		g = *s.Want.Pod.DeletionGracePeriodSeconds
		if made := s.madeFrom(); made != nil && made.Pod.DeletionGracePeriodSeconds != nil {
			g = min(g, *made.Pod.DeletionGracePeriodSeconds)
		}
	}
	if e := s.Record.Evicted(); e != nil {
		g = min(g, e.Grace)
	}
	if s.Record.Terminal != "" && s.Record.StopGrace != nil { // the node ended the instance
		g = min(g, *s.Record.StopGrace)
	}
	if s.Record.StopSince.IsZero() || s.Want != nil && s.newInstance == "" && !s.deleting() {
		return g
	}
	if s.Record.StopGrace != nil {
		g = *s.Record.StopGrace
	}
	return g - max(0, int64(s.Now.Sub(s.Record.StopSince).Seconds()))
}

// killGrace returns how many seconds a kill may take; why is the killReason. A probe or a restart
// request may set a grace of its own (C-1.23.1).
func (s *planner) killGrace(c pod.Container, why string) int64 {
	if why == pod.OnRequest && s.Record.ContainerNotes[c.ID].Grace != nil {
		return *s.Record.ContainerNotes[c.ID].Grace
	}
	spec, _ := s.Want.Container(c.Name)
	probe := map[string]*v1.Probe{string(pod.Liveness): spec.LivenessProbe, string(pod.Startup): spec.StartupProbe}[why]
	if probe != nil && probe.TerminationGracePeriodSeconds != nil && s.Want.Pod.Spec.TerminationGracePeriodSeconds != nil {
		return *probe.TerminationGracePeriodSeconds
	}
	return s.grace()
}

// stopStep stops c within grace seconds. If none are left, no hook runs (C-1.23.3), and the
// runtime gets the shortest grace (C-1.23.5).
func (s *planner) stopStep(c pod.Container, why string, grace int64) Step {
	step := Step{Action: StopContainer, Container: c.Name, ID: c.ID, Grace: max(grace, podview.MinGrace), Why: why}
	if grace > 0 {
		step.Hook = s.preStop(c)
	}
	return step
}

func (s *planner) stop(c pod.Container, why string) { s.add(s.stopStep(c, why, s.grace())) }

func (s *planner) remove(c pod.Container, why string) {
	s.add(Step{Action: RemoveContainer, Container: c.Name, ID: c.ID, Why: why})
}

// stopRunning stops every container that may run, in parallel (C-1.23.6). It removes those that
// were created and never started: there is nothing to stop.
func (s *planner) stopRunning(why string) {
	s.stopContainers(why, func(c pod.Container) bool { return c.MayRun() })
	for _, c := range podview.AllContainers(s.Have) {
		if c.State == pod.StateCreated {
			s.remove(c, why)
		}
	}
}

func (s *planner) stopContainers(why string, selects func(pod.Container) bool) {
	from := len(s.p.Steps)
	for _, c := range podview.AllContainers(s.Have) {
		if selects(c) {
			s.stop(c, why)
			s.p.Steps[len(s.p.Steps)-1].Together = true
		}
	}
	if s.grace() > 0 {
		s.sidecarsLast(s.p.Steps[from:])
	}
}

// sidecarsLast stops the sidecars in a group after the containers they serve: each waits for
// the regular containers and for the sidecars after it (C-1.23.4).
func (s *planner) sidecarsLast(group []Step) {
	made := s.madeFrom()
	if made == nil {
		return
	}
	var before []string
	for i := range made.Pod.Spec.Containers {
		name := made.Pod.Spec.Containers[i].Name
		if slices.ContainsFunc(group, func(step Step) bool { return step.Container == name }) {
			before = append(before, name)
		}
	}
	for _, c := range slices.Backward(made.Pod.Spec.InitContainers) {
		if !pod.Restartable(&c) {
			continue
		}
		waits := slices.Clone(before)
		for i := range group {
			if group[i].Container == c.Name {
				group[i].After = waits
				before = append(slices.Clone(waits), c.Name)
			}
		}
	}
}

// stopPod stops all containers and sandboxes of the pod, and returns its sandboxes, the
// newest first.
func (s *planner) stopPod(why string) []pod.Sandbox {
	s.stopContainers(why, func(c pod.Container) bool { return c.State != pod.StateExited })
	sandboxes := slices.Clone(s.Have.Older)
	if s.Have.Sandbox != nil {
		sandboxes = slices.Insert(sandboxes, 0, *s.Have.Sandbox)
	}
	for _, b := range sandboxes {
		s.add(Step{Action: StopSandbox, ID: b.ID, Why: why})
	}
	return sandboxes
}

// tearDown stops and removes everything of the pod on the node, its volumes included (B5, but
// without the kubelet's delay).
func (s *planner) tearDown(why string) {
	sandboxes := s.stopPod(why)
	// The newest containers are removed last: if the worker does not get to the end, the next
	// attempt numbers are still derived from them.
	for _, c := range slices.Backward(s.Have.Dead) {
		s.remove(c, why)
	}
	for _, c := range podview.NewestContainers(s.Have) {
		s.remove(c, why)
	}
	for _, n := range s.Instances() {
		s.add(Step{Action: TearDownVolumes, Instance: n, UID: s.uid(), Why: why})
	}
	for _, b := range slices.Backward(sandboxes) {
		s.add(Step{Action: RemoveSandbox, ID: b.ID, Why: why})
	}
}
