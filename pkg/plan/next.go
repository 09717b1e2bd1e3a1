package plan

import (
	"cmp"
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podview"
)

// Next says what to do now for one pod. It is a ladder: the first rung that
// matches writes the whole plan. Each rung is the function of its name.
//
//	 rung        | state of the pod                               | plan
//	-------------+------------------------------------------------+-----------------------------------------
//	 unwanted    | no spec, or being deleted                      | stop all, stop and remove sandboxes, take
//	             |                                                | volumes, forget
//	             |   a pod that depends on it has to go first     | wait, for a bounded time
//	             |   it is being deleted, and something runs      | stop all, stop sandboxes
//	             |   nothing is left                              | gone; while it is being deleted, wait
//	 stranger    | a pod with another UID has the name            | stop and remove it; its volumes go
//	 doubled     | a second life: an older record that has not    | stop it; older records are removed as
//	             | ended, a container that lives outside the      | well
//	             | newest sandbox, an older sandbox that is ready |
//	 ended       | it has ended for good: so recorded or known to | stop what still lives, sidecars too, and
//	             | its API server, by its containers, by its      | the sandbox; take the volumes, keep the dead
//	             | active deadline, or it was evicted             |
//	 replaced    | another instance is due (it was edited, came   | pull other images, stop it; while the
//	             | back while it stopped, or has ended and was    | next one would be held, and no stop has
//	             | edited), and something of this one lives       | begun, wait
//	 finished    | no ready sandbox of the instance; something of | stop what still lives: then it has ended
//	             | it has run, and nothing may restart            |
//	 held        | no ready sandbox: forbidden, refused, waits    | wait
//	             | for another pod, in trouble, or the network is |
//	             | not ready                                      |
//	 bare        | no ready sandbox                               | stop the old one, take the volumes of
//	             |                                                | what is over, put volumes, run sandbox
//	 restartsAll | a container ended, and its rule restarts all;  | kill and remove all but ephemeral ones,
//	             | or such a restart has begun                    | that one last, after its back-off
//	 runs        | a ready sandbox                                |
//	             |   a container that the spec does not have      | stop it; at the end of the plan, remove
//	             |   volumes not in place                         | put them; in trouble, start nothing
//	             |   ephemeral container without a record         | start
//	             |   init containers, sidecars                    | by their turn: see initContainers
//	             |   sidecars that had their turn and, when the   | each by itself: see container
//	             |   pod is initialised, containers, in order     |
//	             |   dead records but one a container, older      | remove
//	             |   sandboxes                                    |
//	             |   nothing of these                             | settled
//
// Of a forbidden pod nothing is started: what runs goes on to its end.
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
		(*scene).doubled,
		(*scene).ended,
		(*scene).replaced,
		(*scene).finished,
		(*scene).held,
		(*scene).bare,
		(*scene).restartsAll,
		(*scene).runs,
	} {
		if rung(s) {
			break
		}
	}
	s.awaitDeadline()
	s.p.Settled = !s.p.Gone && len(s.p.Steps) == 0 && s.p.Wait == 0
	return s.p
}

// unwanted ends what nobody wants. What carries the marks of the pod goes last: a
// pod whose record was lost is still found, and its volumes taken, until then.
func (s *scene) unwanted() bool {
	deleting := s.deleting()
	if s.Want != nil && !deleting {
		return false
	}
	why := "pod is not wanted any more"
	if deleting {
		why = "pod is being deleted"
	}
	if s.Have.Empty() && s.Record.Want == nil && s.Record.Instance == 0 {
		if s.p.Gone = !deleting; deleting {
			s.p.WaitFor = "its source still has the deleted pod"
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
	if deleting && podview.MayRun(s.Have) { // how it ended is read, and told its source, before it is removed
		s.stopDown(why)
		return true
	}
	s.tearDown(why)
	s.add(Step{Action: Forget, UID: s.uid(), Why: "nothing is left of the pod"})
	return true
}

// stranger ends a pod with another UID that has the name. It stops by its own kept
// spec before the wanted one starts (stricter than C-1.16.19).
func (s *scene) stranger() bool {
	if s.Have.Empty() || s.Have.UID == "" || s.Have.UID == s.Want.UID() {
		return false
	}
	s.p.Stopping = true
	s.tearDown("pod with another uid is wanted")
	return true
}

// doubled ends second lives (I1). The newest record and the newest sandbox stay.
func (s *scene) doubled() bool {
	twice := podview.DuplicatesOf(s.Have)
	for _, c := range twice.Older {
		const why = "a newer life of this container exists"
		s.stop(c, why)
		s.remove(c, why)
	}
	for _, c := range twice.Outside {
		const why = "container lives outside the newest sandbox"
		if c.State == pod.StateCreated {
			s.remove(c, why)
		} else {
			s.stop(c, why)
		}
	}
	for _, b := range twice.Sandboxes {
		s.add(Step{Action: StopSandbox, ID: b.ID, Why: "a newer sandbox exists"})
	}
	return twice.Any()
}

// ended keeps what has ended for good from running again (I4, C-1.16.22). Its volumes
// go (C-1.37.3). Its dead containers stay, for logs and status, until the pod is
// unwanted.
func (s *scene) ended() bool {
	end := s.end()
	if end.Phase == "" {
		return false
	}
	s.p.Ended = end
	why := "pod has ended: " + cmp.Or(end.Reason, end.Phase)
	s.stopAlive(why)
	if b := s.Have.Sandbox; b != nil && b.Ready {
		s.add(Step{Action: StopSandbox, ID: b.ID, Why: why})
	}
	if len(s.Want.Pod.Spec.Volumes) > 0 && s.VolumesReady {
		s.add(Step{Action: TakeVolumes, Instance: s.target, UID: s.uid(), Why: why})
	}
	s.tidy()
	return true
}

// replaced ends the instance that another one is to follow. It is not stopped for
// one that could not start; a stop that has begun is not taken back. What follows
// is planned when it is over, by what is so then.
func (s *scene) replaced() bool {
	if s.anew == "" || !podview.MayRun(s.Have) {
		return false
	}
	if s.Record.StopSince.IsZero() && (s.held() || !s.pullFirst()) {
		s.p.Behind = true
		return true
	}
	s.p.Stopping = true
	s.stopAlive(s.anew)
	return true
}

// pullFirst brings the images that an edit asks for before anything is stopped for
// it, and reports whether nothing is in the way of that. While one of them is, none is
// brought: those that are here would be asked for again and again.
func (s *scene) pullFirst() bool {
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
			pulls = append(pulls, Step{Action: PullImage, Container: list[i].Name, Why: s.anew})
		}
	}
	s.p.Steps = append(s.p.Steps, pulls...)
	return true
}

// finished ends what is left of an instance that lost its sandbox and of which
// nothing may restart (C-1.19.3).
func (s *scene) finished() bool {
	if s.SandboxReady() || s.anew != "" || !s.HasRun() || s.restartable() {
		return false
	}
	s.stopAlive("sandbox has ended and restartPolicy is Never")
	return true
}

// held says that the sandbox may not be made now, and why.
func (s *scene) held() bool {
	if s.SandboxReady() {
		return false
	}
	trouble := s.Trouble[""]
	switch {
	case s.Forbidden != "":
		s.p.WaitFor = s.Forbidden
	case s.Refused != "" && !s.HadSandbox():
		s.p.WaitFor = s.Refused
	case s.Waits != "" && !podview.MayRun(s.Have): // what runs waits for no other pod: what follows it does
		s.p.WaitFor = s.Waits
	case trouble.Until.After(s.Now):
		s.wait(trouble.Until, troubleText("pod", trouble))
	case s.NoNetwork && !s.Want.Pod.Spec.HostNetwork:
		s.p.WaitFor = WaitNetwork
	default:
		return false
	}
	return true
}

// bare makes the sandbox (C-1.19.1). The old one and its dead containers stay until
// new ones exist: they carry the numbers that only rise.
func (s *scene) bare() bool {
	if s.SandboxReady() {
		return false
	}
	why := s.whyRun()
	s.stopAlive(why)
	if b := s.Have.Sandbox; b != nil {
		s.add(Step{Action: StopSandbox, ID: b.ID, Why: why})
	}
	for _, n := range s.Instances() {
		if n != s.target {
			s.add(Step{Action: TakeVolumes, Instance: n, UID: s.uid(), Why: why})
		}
	}
	if !s.VolumesReady || s.VolumesStale || s.target != s.Record.Instance {
		s.add(Step{Action: PutVolumes, Instance: s.target, Why: why})
	}
	s.add(Step{Action: RunSandbox, Instance: s.target, Attempt: s.nextAttempt(""), Why: why})
	return true
}

func (s *scene) whyRun() string {
	b := s.Have.Sandbox
	switch {
	case s.anew != "":
		return s.anew
	case b == nil && s.nextAttempt("") == 0:
		return "pod is new"
	case b == nil:
		return "pod has no sandbox"
	case s.InstanceOf(b) != s.target:
		return fmt.Sprintf("instance %d has no sandbox", s.target)
	}
	return "sandbox is not ready"
}
