package plan

import (
	"cmp"
	"fmt"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Next says what to do now for one pod. It is a ladder: the first rung that
// matches writes the whole plan.
//
//	 # | state of the pod                                      | plan
//	---+-------------------------------------------------------+---------------------------------------------
//	 1 | unwanted or being deleted, something is left          | stop all, stop and remove sandboxes, take
//	   |                                                       | volumes, forget
//	   |   it lives, and a pod that depends on it has to go    | wait
//	   |   first                                               |
//	   | unwanted, nothing is left                             | gone
//	   | being deleted, nothing is left                        | wait for its source to let go of it
//	 2 | another pod's UID is on the node                      | stop and remove it; its volumes go
//	 3 | a second life: an older record that has not ended, a  | stop it; older records are removed as well
//	   | container that lives outside the newest sandbox, an   |
//	   | older sandbox that is ready                           |
//	 4 | ended for good, unchanged: recorded so, or computed   | stop what still lives (sidecars too) and the
//	   | by Outcome, or its active deadline is over            | sandbox; keep the dead, then settled
//	 5 | no ready sandbox of the wanted instance:              |
//	   |   refused, waits for another pod, in trouble, or the  | wait
//	   |   network is not ready                                |
//	   |   nothing may restart, and something of it has run    | stop what still lives; it then ends in 4
//	   |   none, ended, or the newest instance is over         | stop the old one, take the volumes of what is
//	   |   (edited, being removed, ended and edited)           | over, put volumes, run sandbox
//	 6 | ready sandbox                                         |
//	   |   a container that the spec does not have             | stop and remove it
//	   |   volumes not in place                                | put volumes; in trouble: nothing is started
//	   |   a container ended and its rule restarts all         | kill and remove all but ephemeral ones, that
//	   |                                                       | one last, when its back-off is over
//	   |   ephemeral container without a record                | start
//	   |   init container whose turn it is                     |
//	   |     none, created, lost, failed                       | start; pod fails where it may not restart
//	   |     running                                           | wait for it
//	   |     has completed; a sidecar has started: running,    | the next one's turn; after the last the pod
//	   |     postStart done, startup probe passed              | is initialised
//	   |   sidecars that had their turn, this one's included,  |
//	   |   and when initialised each regular container, in     |
//	   |   order, each by itself:                              |
//	   |     none, or one of an instance that is over          | start
//	   |     its definition changed                            | stop, start; no back-off
//	   |     running                                           |
//	   |       liveness or startup probe failed                | stop; start, when its policy allows and it is
//	   |                                                       | not in back-off
//	   |       postStart failed                                | stop, then as exited
//	   |       postStart is due                                | run the hook
//	   |       resources changed                               | update; or by its resize policy stop, start
//	   |       else                                            | keep
//	   |     created here                                      | start
//	   |     state unknown                                     | stop, then as failed
//	   |     exited; rules, its policy or the pod's allow      | start when back-off is over
//	   |     exited for good                                   | keep
//	   |   dead records but one a container, older sandboxes   | remove
//	   |   nothing of these                                    | settled
//
// To start is to pull, create, start and run the postStart hook; to stop is to
// run the preStop hook and to stop, sidecars after what they serve. Before its
// active deadline a pod waits for that as well.
//
// The steps of one plan are done in order and up to the first that fails; each
// one's precondition is what the ones before it leave behind, or what was read.
// So a plan that was cut short anywhere is followed by one that leads to the
// same end (I1, I3, I4).
func Next(v View) Plan {
	s := newScene(v)
	for _, rung := range []func(*scene) bool{
		(*scene).unwanted,
		(*scene).stranger,
		(*scene).secondLife,
		(*scene).ended,
		(*scene).sandboxless,
		(*scene).containers,
	} {
		if rung(s) {
			break
		}
	}
	s.awaitDeadline()
	s.p.Settled = !s.p.Gone && len(s.p.Steps) == 0 && s.p.Wait == 0
	return s.p
}

// unwanted is rung 1. What carries the marks of the pod goes last: a pod whose
// record was lost is still found, and its volumes taken, until then.
func (s *scene) unwanted() bool {
	deleting := s.deleting()
	if s.Want != nil && !deleting {
		return false
	}
	why := "pod is not wanted any more"
	if deleting {
		why = "pod is being deleted"
	}
	if s.Have.Empty() && s.Kept == nil && s.Instance == 0 {
		if s.p.Gone = !deleting; deleting {
			s.p.WaitFor = "its source still has the deleted pod"
		}
		return true
	}
	if s.StopWaits != "" && s.StopSince.IsZero() && s.alive() {
		s.p.WaitFor = s.StopWaits
		return true
	}
	s.p.Stopping = true
	s.tearDown(why)
	s.add(Step{Action: Forget, UID: s.uid(), Why: "nothing is left of the pod"})
	return true
}

// deleting reports whether the pod is wanted no more than its source still
// shows it: a pod that an API server deletes gracefully (C-1.2.9). It never
// starts again.
func (s *scene) deleting() bool { return s.Want != nil && s.Want.Pod.DeletionTimestamp != nil }

// stranger is rung 2: the key is held by a pod with another UID, which stops by
// its own kept spec before the wanted one starts (stricter than C-1.16.19).
func (s *scene) stranger() bool {
	if s.Have.Empty() || s.Have.UID == "" || s.Have.UID == s.Want.UID() {
		return false
	}
	s.p.Stopping = true
	s.tearDown("pod with another uid is wanted")
	return true
}

// secondLife is rung 3 (I1). The newest record and the newest sandbox stay.
func (s *scene) secondLife() bool {
	for _, c := range s.Have.Dead {
		if c.State != pod.StateExited {
			const why = "a newer life of this container exists"
			s.stop(c, why)
			s.remove(c, why)
		}
	}
	for _, c := range sortedContainers(s.Have) {
		if s.Have.Sandbox == nil || c.SandboxID == s.Have.Sandbox.ID {
			continue
		}
		const why = "container lives outside the newest sandbox"
		switch c.State {
		case pod.StateExited:
		case pod.StateCreated:
			s.remove(c, why)
		default:
			s.stop(c, why)
		}
	}
	for _, b := range s.Have.Older {
		if b.Ready {
			s.add(Step{Action: StopSandbox, ID: b.ID, Why: "a newer sandbox exists"})
		}
	}
	return len(s.p.Steps) > 0
}

// ended is rung 4: a terminal instance never runs again (I4, C-1.16.22). Its
// dead containers stay, for logs and status, until the pod is unwanted.
func (s *scene) ended() bool {
	end := s.end()
	if end.Phase == "" {
		return false
	}
	if end.Reason != "" {
		s.p.Ended = end
	}
	why := "pod has ended: " + cmp.Or(end.Reason, end.Phase)
	s.stopAlive(why)
	if b := s.Have.Sandbox; b != nil && b.Ready {
		s.add(Step{Action: StopSandbox, ID: b.ID, Why: why})
	}
	s.tidy()
	return true
}

// sandboxless is rung 5 (C-1.19.1, C-1.19.3). The old sandbox and its dead
// containers stay until new ones exist: they carry the numbers that only rise.
func (s *scene) sandboxless() bool {
	if s.sandbox != nil {
		return false
	}
	if s.over == "" && s.hasRun() && !s.restartable() {
		const why = "sandbox has ended and restartPolicy is Never"
		s.stopAlive(why)
		return true
	}
	if s.held() {
		return true
	}
	why := s.whyRun()
	// What has ended already is not being stopped: an edit that is taken back
	// before its instance starts leaves a terminal pod as it was (I4).
	s.p.Stopping = s.over != "" && s.alive()
	s.stopAlive(why)
	if b := s.Have.Sandbox; b != nil {
		s.add(Step{Action: StopSandbox, ID: b.ID, Why: why})
	}
	for _, n := range s.instances() {
		if n != s.target {
			s.add(Step{Action: TakeVolumes, Instance: n, UID: s.uid(), Why: why})
		}
	}
	if !s.VolumesReady || s.target != s.Instance {
		s.add(Step{Action: PutVolumes, Instance: s.target, Why: why})
	}
	s.add(Step{Action: RunSandbox, Instance: s.target, Attempt: s.nextAttempt(""), Why: why})
	return true
}

// held reports, and says in the plan, that the sandbox may not be made now.
// A stop that has begun is not held up: nothing takes it back.
func (s *scene) held() bool {
	if !s.StopSince.IsZero() && s.over != "" && s.alive() {
		return false
	}
	trouble := s.Trouble[""]
	switch {
	case s.Refused != "" && !s.seated():
		s.p.WaitFor = s.Refused
	case s.Waits != "" && !s.alive():
		s.p.WaitFor = s.Waits
	case trouble.Until.After(s.Now):
		s.wait(trouble.Until, troubleText("pod", trouble))
	case !s.NetworkReady && !s.Want.Pod.Spec.HostNetwork:
		s.p.WaitFor = "network is not ready"
	default:
		return false
	}
	return true
}

// seated reports whether the wanted instance has had a sandbox: it is not
// judged again (C-1.31.5).
func (s *scene) seated() bool {
	if b := s.Have.Sandbox; b != nil && s.instanceOf(b) == s.target {
		return true
	}
	for i := range s.Have.Older {
		if s.instanceOf(&s.Have.Older[i]) == s.target {
			return true
		}
	}
	return false
}

func (s *scene) whyRun() string {
	b := s.Have.Sandbox
	switch {
	case s.over != "":
		return s.over
	case b == nil && s.nextAttempt("") == 0:
		return "pod is new"
	case b == nil:
		return "pod has no sandbox"
	case s.instanceOf(b) != s.target:
		return fmt.Sprintf("instance %d has no sandbox", s.target)
	}
	return "sandbox is not ready"
}
