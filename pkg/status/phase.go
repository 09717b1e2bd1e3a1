package status

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podview"
)

// RejectedPrefix begins the status message of a rejected pod.
const RejectedPrefix = "Pod was rejected: "

// TerminatedByShutdown is the status reason of a pod of an API server that a shutdown of the node has
// ended. ShutdownMessage is its message (C-1.36.2).
const (
	TerminatedByShutdown = "Terminated"
	ShutdownMessage      = "Pod was terminated in response to imminent node shutdown."
)

// WaitsForPod is the status reason of a pod that waits for another one (pod.AnnotationDependsOn).
const WaitsForPod = "WaitsForPod"

// DisruptedBy returns the message of the DisruptionTarget condition of the recorded instance, "" if
// it has no such condition. An instance has it if a shutdown of the node ended it (C-1.36.2). It also
// has it if it was evicted because the node was short of a resource (C-1.35.7). An instance that
// exceeded a limit of its own does not have it.
func DisruptedBy(rec *pod.Record) string {
	if e := rec.Evicted(); e != nil && e.Condition != "" || rec.TerminalReason == TerminatedByShutdown {
		return rec.TerminalMessage
	}
	return ""
}

// phase sets the phase with its reason and message. A final phase stays (C-1.26.15).
func (b *build) phase(st *v1.PodStatus) {
	reported := b.reported()
	switch {
	case pod.IsPhaseTerminal(reported):
		st.Phase = reported
	case pod.IsPhaseTerminal(b.notes.Terminal):
		st.Phase = b.notes.Terminal
	case b.notAdmitted() && b.notes.Rejected:
		st.Phase, st.Reason, st.Message = v1.PodFailed, b.notes.NotAdmittedReason, RejectedPrefix+b.notes.NotAdmittedMessage
	case b.notAdmitted():
		st.Phase, st.Reason, st.Message = v1.PodPending, b.notes.NotAdmittedReason, b.notes.NotAdmittedMessage
	case b.waitsForPod():
		st.Phase, st.Reason, st.Message = v1.PodPending, WaitsForPod, b.notes.Waits
	default:
		st.Phase = b.phaseOfContainers(st)
	}
	if pod.IsPhaseTerminal(st.Phase) && st.Phase == b.notes.Terminal {
		st.Reason, st.Message = b.notes.TerminalReason, b.notes.TerminalMessage
	}
}

// reported returns the final phase that was reported for the instance, else the phase of the pod at
// its API server; "" if there is neither.
func (b *build) reported() v1.PodPhase {
	switch {
	case b.same && pod.IsPhaseTerminal(b.before.Phase):
		return b.before.Phase
	case b.want.Origin.FromAPI():
		return b.want.Pod.Status.Phase
	}
	return ""
}

// end completes the status of a terminated pod. No container of it restarts, and each that has
// started gets a terminated state.
func (b *build) end(st *v1.PodStatus) {
	if !b.over {
		b.over, b.triggersRestartAll, b.restarting = true, false, false
		b.containers(st)
	}
	if st.Reason == "" && b.same && b.before.Phase == st.Phase {
		st.Reason, st.Message = b.before.Reason, b.before.Message // C-1.26.16
	}
	if b.wasRejected(st.Phase) {
		st.InitContainerStatuses, st.ContainerStatuses, st.EphemeralContainerStatuses = nil, nil, nil
		return
	}
	b.terminateAll(st)
}

// notAdmitted reports whether the pod is not admitted. A running pod stays admitted.
func (b *build) notAdmitted() bool {
	return b.notes.NotAdmittedReason+b.notes.NotAdmittedMessage != "" && !b.HasNewestSandbox()
}

// waitsForPod reports whether this pod waits for another one before it starts.
func (b *build) waitsForPod() bool { return b.notes.Waits != "" && !b.HasNewestSandbox() }

// wasRejected reports whether the pod was rejected before any container was created. Such a pod
// has no container statuses.
func (b *build) wasRejected(phase v1.PodPhase) bool {
	if phase != v1.PodFailed || !b.have.Empty() {
		return false
	}
	before := b.same && b.before.Phase == v1.PodFailed && len(b.before.ContainerStatuses) == 0
	return before || b.notAdmitted() && b.notes.Rejected
}

// tally counts containers by their effect on the phase (C-1.26.12).
type tally struct {
	initPending, initFailed   int // of init containers that are no sidecars
	sidecarPending            int
	running, waiting          int // of regular containers and sidecars
	stopped, again, succeeded int // of regular containers: again counts those that will restart
}

func (b *build) tally(st *v1.PodStatus) tally {
	var t tally
	for i := range st.InitContainerStatuses {
		if c := &b.want.Pod.Spec.InitContainers[i]; pod.Restartable(c) {
			t.sidecar(&st.InitContainerStatuses[i])
		} else {
			b.tallyInit(&t, c, &st.InitContainerStatuses[i])
		}
	}
	for i := range st.ContainerStatuses {
		s := &st.ContainerStatuses[i]
		c, _ := b.want.Container(s.Name)
		b.tallyRegular(&t, c, s)
	}
	return t
}

func (b *build) tallyInit(t *tally, c *v1.Container, s *v1.ContainerStatus) {
	switch end := lastExit(s); {
	case end == nil, s.State.Waiting != nil && end.ExitCode == 0: // it runs again in a new sandbox
		t.initPending++
	case end.ExitCode != 0 && b.mayBeFinal(c.Name) && !b.comesBack(c, end):
		t.initFailed++
	}
}

// mayBeFinal reports whether the exit of an init container can be final. It cannot if the pod
// needs another sandbox: the init containers run again there (C-1.20.9).
func (b *build) mayBeFinal(name string) bool {
	r, _ := b.Container(name)
	return b.SandboxReady() && b.InSandbox(r)
}

func (t *tally) sidecar(s *v1.ContainerStatus) {
	switch {
	case s.State.Running != nil:
		t.running++
		if !*s.Started {
			t.sidecarPending++
		}
	case lastExit(s) == nil:
		t.sidecarPending++
		t.waiting++
	}
}

func (b *build) tallyRegular(t *tally, c *v1.Container, s *v1.ContainerStatus) {
	end := lastExit(s)
	switch {
	case s.State.Running != nil:
		t.running++
	case end != nil:
		t.stopped++
		if b.comesBack(c, end) {
			t.again++
		}
		if s.State.Terminated != nil && end.ExitCode == 0 {
			t.succeeded++
		}
	default:
		t.waiting++
	}
}

// lastExit returns the last exit of a container that does not run; nil when it runs or never
// ran.
func lastExit(s *v1.ContainerStatus) *v1.ContainerStateTerminated {
	switch {
	case s.State.Running != nil:
		return nil
	case s.State.Terminated != nil:
		return s.State.Terminated
	}
	return s.LastTerminationState.Terminated
}

// phaseOfContainers returns the phase that follows from the containers (C-1.26.13, in its order). For
// a static pod that is being stopped, the restart policy still counts: with Always it stays Running
// (C-1.26.14). A deleted pod of an API server is Succeeded or Failed once nothing of it is left
// (C-1.27.10).
func (b *build) phaseOfContainers(st *v1.PodStatus) v1.PodPhase {
	t := b.tally(st)
	ends := b.notes.Terminating && b.want.Origin.FromAPI()
	duplicates := podview.DuplicatesOf(b.have).Any() && !ends
	switch {
	case t.initFailed > 0 && !b.RegularContainerCreated() && !duplicates:
		return v1.PodFailed
	case ends && !b.AnyLeft():
		if t.stopped > 0 && t.stopped == t.succeeded && t.waiting == 0 {
			return v1.PodSucceeded
		}
		return v1.PodFailed
	case t.initPending > 0, t.sidecarPending > 0 && !b.RegularContainerCreated(), t.waiting > 0:
		return v1.PodPending
	case t.running > 0:
		return v1.PodRunning
	case t.stopped == 0:
		return v1.PodPending
	case t.again > 0 && !ends, duplicates:
		return v1.PodRunning
	case t.stopped == t.succeeded:
		return v1.PodSucceeded
	}
	return v1.PodFailed
}

// terminateAll gives the containers of a terminated pod a terminated state (C-1.27.10). An init
// container keeps its waiting state if neither it nor a later one has started. The regular
// containers keep it if none of them has started and the init containers are not done. In a
// static pod these do not count as done: the last one may have exited with 0 because it was
// stopped.
func (b *build) terminateAll(st *v1.PodStatus) {
	hasStarted := func(s v1.ContainerStatus) bool {
		return s.State.Waiting == nil || s.LastTerminationState.Terminated != nil
	}
	initDone := len(st.InitContainerStatuses) == 0 || b.want.Origin.FromAPI() && b.initDone
	if initDone || slices.ContainsFunc(st.ContainerStatuses, hasStarted) {
		for i := range st.ContainerStatuses {
			terminate(&st.ContainerStatuses[i])
		}
	}
	laterStarted := false
	for i := len(st.InitContainerStatuses) - 1; i >= 0; i-- {
		s := &st.InitContainerStatuses[i]
		if laterStarted = laterStarted || hasStarted(*s); !laterStarted {
			continue
		}
		terminate(s)
		if end := s.State.Terminated; end != nil && !pod.Restartable(&b.want.Pod.Spec.InitContainers[i]) {
			s.Ready = end.ExitCode == 0
		}
	}
}

func terminate(s *v1.ContainerStatus) {
	if s.State.Waiting == nil {
		return
	}
	end := s.LastTerminationState.Terminated
	if end == nil {
		end = lost(notLocated)
	}
	s.State = v1.ContainerState{Terminated: end}
	s.LastTerminationState = v1.ContainerState{}
}
