package plan

import (
	"cmp"
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podview"
)

// Next decides the next steps for one pod. It tries the rules below in order; the first one that
// matches writes the whole plan. Each rule is the method of its name. An indented row is a part of
// the rule above it.
//
//	 rule         | state of the pod                               | plan
//	--------------+------------------------------------------------+-----------------------------------------
//	 notDesired   | no spec, or being deleted                      | stop all, remove sandboxes, tear down
//	              |                                                | volumes, forget
//	              |   a pod that depends on it has to go first     | wait until then, or until StopUntil
//	              |   it is being deleted, and a container may run | stop all, stop sandboxes
//	              |   nothing is left                              | gone; while it is being deleted, wait
//	 uidMismatch  | the pod on the node has another UID than the   | stop and remove the pod on the node, and
//	              | desired one                                    | its volumes
//	              |   a static pod that is not admitted            | wait, while a container may run
//	 duplicates   | an older container or one outside the newest   | stop them; remove older containers as
//	              | sandbox has not exited, or an older sandbox is | well
//	              | ready                                          |
//	 terminated   | its containers have terminated, its active     | stop what still runs, sidecars too, and
//	              | deadline is over, or the record or the API     | the sandbox; tear down the volumes; keep
//	              | server has its final phase                     | the exited containers
//	              |   it was evicted                               | also remove the exited containers
//	 replaced     | a new instance is due (see whyNewInstance),    | pull the changed images, stop the old
//	              | and a container may run                        | instance; wait, if the new one would be
//	              |                                                | blocked and the stop has not begun
//	 lostSandbox  | no ready sandbox of the instance; a container  | stop what still runs: then the pod has
//	              | has run, and none may restart                  | terminated
//	 blocked      | no ready sandbox, and the pod is forbidden,    | wait
//	              | not admitted, waits for another pod, for the   |
//	              | network or for the retry of a failed step      |
//	              |   it is forbidden, the old instance was        | stop that sandbox, tear down its volumes
//	              |   stopped, and its sandbox is still ready      |
//	 needsSandbox | no ready sandbox                               | stop old sandbox, tear down volumes of
//	              |                                                | other instances, set up those of this
//	              |                                                | one, run sandbox
//	 restartAll   | a container exited, and its rule restarts all; | kill and remove all but ephemeral ones;
//	              | or such a restart has begun                    | remove the exited one last, after its
//	              |                                                | back-off
//	 runs         | a ready sandbox                                |
//	              |   a container that the spec does not have      | stop it; at the end of the plan, remove
//	              |   volumes not set up                           | set them up; start no container before
//	              |   volumes stale                                | set them up; a failure delays no
//	              |                                                | container
//	              |   ephemeral container that was never created   | start
//	              |   init containers, sidecars                    | in order: see initContainers
//	              |   the sidecars before the current init         | see container; one that may not start
//	              |   container and, when the pod is initialised,  | does not delay the others
//	              |   the regular containers, in order             |
//	              |   exited containers except the newest of each  | remove
//	              |   name, older sandboxes                        |
//	              |   nothing of these                             | settled
//
// Nothing of a forbidden pod is started; its running containers continue until they exit.
//
// In the table "start" means: pull the image, create and start the container, run its postStart
// hook. "Stop" means: run the preStop hook, then stop the container; sidecars stop after the
// containers they serve. If the pod has an active deadline, Next sets Plan.Wait so that the worker
// plans the pod again at that time.
//
// The worker does the steps of a plan in order, up to the first that fails. Each step's
// precondition is the state that the worker read, or that the steps before it lead to. So if
// the worker does only a part of a plan, the next plans lead to the same state (I1, I3, I4).
func Next(v View) Plan {
	s := newPlanner(v)
	for _, rule := range []func(*planner) bool{
		(*planner).notDesired,
		(*planner).uidMismatch,
		(*planner).duplicates,
		(*planner).terminated,
		(*planner).replaced,
		(*planner).lostSandbox,
		(*planner).blocked,
		(*planner).needsSandbox,
		(*planner).restartAll,
		(*planner).runs,
	} {
		if rule(s) {
			break
		}
	}
	s.awaitDeadline()
	s.p.Settled = !s.p.Gone && len(s.p.Steps) == 0 && s.p.Wait == 0
	return s.p
}

// notDesired stops and removes a pod that is not in the desired set. It removes the sandboxes
// last. As long as one exists, an agent finds the pod by the sandbox's labels and tears its
// volumes down, even without the record.
func (s *planner) notDesired() bool {
	deleting := s.deleting()
	if s.Want != nil && !deleting {
		return false
	}
	why := "pod is no longer in the desired set"
	if deleting {
		why = "pod is being deleted"
	}
	if s.Have.Empty() && s.Record.Want == nil && s.Record.Instance == 0 {
		if s.p.Gone = !deleting; deleting {
			s.p.WaitFor = "the source still lists the deleted pod"
		}
		return true
	}
	if s.StopWaits != "" && s.Record.StopSince.IsZero() && podview.MayRun(s.Have) && (s.StopUntil.IsZero() || s.StopUntil.After(s.Now)) {
		if s.p.WaitFor = s.StopWaits; !s.StopUntil.IsZero() {
			s.wait(s.StopUntil, s.StopWaits)
		}
		return true
	}
	s.p.Stopping = true
	if deleting && podview.MayRun(s.Have) { // before the removal the worker reads the exit codes and reports them to the API server
		s.stopPod(why)
		return true
	}
	s.tearDown(why)
	s.add(Step{Action: Forget, UID: s.uid(), Why: "nothing is left of the pod"})
	return true
}

// uidMismatch stops and removes a pod of the same name that has another UID. The stop has the
// grace and the hooks of that pod's recorded spec. The desired pod starts after that (stricter than
// C-1.16.19). If the desired pod is static and not admitted, the old one continues: the other UID
// is then an edit. A pod of an API server with another UID is another pod: the old one stops in any
// case.
func (s *planner) uidMismatch() bool {
	if s.Have.Empty() || s.Have.UID == "" || s.Have.UID == s.Want.UID() {
		return false
	}
	fromAPI := s.Want.Origin.FromAPI() || s.Record.Want != nil && s.Record.Want.Origin.FromAPI() ||
		s.Have.Sandbox != nil && pod.IsAPILayer(s.Have.Sandbox.Layer)
	if s.Refused != "" && !fromAPI && podview.MayRun(s.Have) {
		s.p.Behind, s.p.WaitFor = true, s.Refused
		return true
	}
	s.p.Stopping = true
	s.tearDown("the desired pod has another uid")
	return true
}

// duplicates stops containers and sandboxes that run beside the newest ones (I1). The newest
// sandbox and the newest container of each name in it continue.
func (s *planner) duplicates() bool {
	duplicates := podview.DuplicatesOf(s.Have)
	for _, c := range duplicates.Older {
		const why = "a newer container of this name exists"
		s.stop(c, why)
		s.remove(c, why)
	}
	for _, c := range duplicates.Outside {
		const why = "container is not in the newest sandbox"
		if c.State == pod.StateCreated {
			s.remove(c, why)
		} else {
			s.stop(c, why)
		}
	}
	for _, b := range duplicates.Sandboxes {
		s.add(Step{Action: StopSandbox, ID: b.ID, Why: "a newer sandbox exists"})
	}
	return duplicates.Any()
}

// terminated keeps a terminated pod from running again (I4, C-1.16.22) and tears down its
// volumes (C-1.37.3). Its exited containers stay, for logs and status, until the pod is not
// desired. The plan removes those of an evicted pod, because the node needs the space (C-1.33.2). If
// the pod never ran here, there is nothing to tear down: a directory of its UID belongs to
// another pod.
func (s *planner) terminated() bool {
	end := s.endOfInstance()
	if end.Phase == "" {
		return false
	}
	s.p.End = end
	why := "pod has terminated: " + cmp.Or(end.Reason, end.Phase)
	if e := s.Record.Evicted(); e != nil && e.Condition != "" && !s.Want.Origin.FromAPI() {
		s.waitFor(fmt.Sprintf("pod was evicted, and starts again after %s", e.Condition))
	}
	s.stopRunning(why)
	if b := s.Have.Sandbox; b != nil && b.Ready {
		s.add(Step{Action: StopSandbox, ID: b.ID, Why: why})
	}
	if len(s.Want.Pod.Spec.Volumes) > 0 && (s.VolumesReady || s.VolumesLeft) && (s.Record.Instance > 0 || !s.Have.Empty()) {
		s.add(Step{Action: TearDownVolumes, Instance: s.target, UID: s.uid(), Why: why})
	}
	if s.Record.Evicted() != nil && !podview.MayRun(s.Have) {
		for _, c := range podview.AllContainers(s.Have) {
			s.remove(c, why)
		}
		return true
	}
	s.tidy()
	return true
}

// replaced stops an instance that a new one has to replace, if the new one can start now. A stop
// that has begun continues in any case. The plan after the stop starts the new instance.
func (s *planner) replaced() bool {
	if s.newInstance == "" || !podview.MayRun(s.Have) {
		return false
	}
	if s.Record.StopSince.IsZero() && (s.blocked() || !s.pullFirst()) {
		s.p.Behind = true
		return true
	}
	s.p.Stopping = true
	s.stopRunning(s.newInstance)
	return true
}

// pullFirst pulls the images of an edit before the edit stops anything. While a container may
// not start, it returns false and pulls nothing: otherwise each plan would again check images that
// are already present.
func (s *planner) pullFirst() bool {
	var pulls []Step
	for _, list := range [][]v1.Container{s.Want.Pod.Spec.InitContainers, s.Want.Pod.Spec.Containers} {
		for i := range list {
			if s.Record.Want != nil {
				if was, _ := s.Record.Want.Container(list[i].Name); was != nil && was.Image == list[i].Image && list[i].ImagePullPolicy != v1.PullAlways {
					continue
				}
			}
			if !s.mayStart(list[i].Name) {
				return false
			}
			pulls = append(pulls, Step{Action: PullImage, Container: list[i].Name, Why: s.newInstance})
		}
	}
	s.p.Steps = append(s.p.Steps, pulls...)
	return true
}

// lostSandbox stops the running containers of an instance that has lost its ready sandbox, if no
// container may restart (C-1.19.3). The instance gets no other sandbox, and terminates.
func (s *planner) lostSandbox() bool {
	if s.SandboxReady() || s.newInstance != "" || !s.HasRun() || s.anyMayRestart() {
		return false
	}
	s.stopRunning("there is no ready sandbox, and no container may restart")
	return true
}

// blocked reports whether the sandbox must not be made now, and sets the reason.
func (s *planner) blocked() bool {
	if s.SandboxReady() {
		return false
	}
	failure := s.Failures[""]
	switch {
	case s.Forbidden != "":
		s.p.WaitFor = s.Forbidden
		s.finishStop()
	case s.Refused != "" && !s.HadSandbox():
		s.p.WaitFor = s.Refused
	case s.Waits != "" && !podview.MayRun(s.Have): // a pod that runs does not wait for its dependencies; its next instance does
		s.p.WaitFor = s.Waits
	case failure.Until.After(s.Now):
		s.wait(failure.Until, failureText("pod", failure))
	case s.NoNetwork && !s.Want.Pod.Spec.HostNetwork:
		s.p.WaitFor = WaitNetwork
	default:
		return false
	}
	return true
}

// finishStop stops the sandbox of an instance whose containers were stopped, and tears down its
// volumes, while the next instance may not start. Its exited containers stay, for logs and status.
func (s *planner) finishStop() {
	b := s.Have.Sandbox
	if s.Record.StopSince.IsZero() || b == nil || !b.Ready || podview.MayRun(s.Have) {
		return
	}
	const why = "the pod was stopped, and may not start now"
	s.add(Step{Action: StopSandbox, ID: b.ID, Why: why})
	for _, n := range s.Instances() {
		if n != s.target {
			s.add(Step{Action: TearDownVolumes, Instance: n, UID: s.uid(), Why: why})
		}
	}
}

// needsSandbox creates the sandbox (C-1.19.1). The old one and its exited containers stay until
// new ones exist: the next attempt numbers are derived from them.
func (s *planner) needsSandbox() bool {
	if s.SandboxReady() {
		return false
	}
	why := s.whySandbox()
	s.stopRunning(why)
	if b := s.Have.Sandbox; b != nil {
		s.add(Step{Action: StopSandbox, ID: b.ID, Why: why})
	}
	for _, n := range s.Instances() {
		if n != s.target {
			s.add(Step{Action: TearDownVolumes, Instance: n, UID: s.uid(), Why: why})
		}
	}
	if !s.VolumesReady || s.VolumesStale || s.target != s.Record.Instance {
		s.add(Step{Action: SetUpVolumes, Instance: s.target, Why: why})
	}
	s.add(Step{Action: RunSandbox, Instance: s.target, Attempt: s.nextAttempt(""), Why: why})
	return true
}

// whySandbox returns the reason why the instance needs a sandbox.
func (s *planner) whySandbox() string {
	b := s.Have.Sandbox
	switch {
	case s.newInstance != "":
		return s.newInstance
	case b == nil && s.nextAttempt("") == 0:
		return "pod is new"
	case b == nil:
		return "pod has no sandbox"
	case s.InstanceOf(b) != s.target:
		return fmt.Sprintf("instance %d has no sandbox", s.target)
	}
	return "sandbox is not ready"
}
