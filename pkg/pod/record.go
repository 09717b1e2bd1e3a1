package pod

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
)

// OwnerError says that the record of a UID is another pod's: a manifest may claim a UID.
type OwnerError struct {
	UID   string
	Owner Key
}

func (e *OwnerError) Error() string { return fmt.Sprintf("UID %s belongs to pod %s", e.UID, e.Owner) }

// Record is the state of one pod that cannot be observed. It is stored only in
// <root-dir>/pods/<uid>/.
type Record struct {
	Key
	UID string
	// Want is the spec the running instance was made from.
	Want *Spec
	// Instance is the number of the newest instance.
	Instance int
	// Attempts holds the next free attempt number by container name, "" for
	// the sandbox.
	Attempts map[string]uint32
	// StartTime is when this instance was first acknowledged (status.startTime).
	StartTime time.Time
	// StopSince is when stopping began; zero when it has not.
	StopSince time.Time
	// StopGrace is the requested grace period of that stop, in seconds; nil: the pod's
	// own. With a Terminal phase, and without StopSince, it is the most seconds that the
	// containers get.
	StopGrace *int64
	// StopAsked says that a person or the node requested that stop; the pod is still in the
	// desired set.
	StopAsked bool
	// StopReason says why the node requested it; "" for a person.
	StopReason string
	// Terminal is the phase this instance ended in: "", Succeeded, Failed.
	Terminal v1.PodPhase
	// TerminalReason and TerminalMessage say why, where its containers do not
	// (DeadlineExceeded).
	TerminalReason, TerminalMessage string
	// Streaks holds the crashes in a row, by name, of containers that were removed when
	// all containers were restarted (C-1.21.3).
	Streaks map[string]int
	// Devices holds the devices, by name, of containers that were removed, until they have a
	// successor.
	Devices map[string][]DeviceAllocation
	// RestartingAll says that a restart of all containers has begun (C-1.21.3).
	RestartingAll bool
	// ContainerNotes holds the container notes, by container ID.
	ContainerNotes map[string]ContainerNotes
	// Eviction is the last eviction of the pod, also after its next instance began; nil for
	// none.
	Eviction *Eviction
}

// Eviction says why and when the node ended an instance.
type Eviction struct {
	Instance int
	At       time.Time
	Grace    int64 // the most seconds that its containers got to stop
	// Condition is the pressure of the node that the instance was evicted for (C-1.35.7). "" is
	// a limit of its own storage: the pod starts again only after an edit (C-1.35.9).
	Condition v1.NodeConditionType
	// Count is how often in a row the pod was evicted for pressure.
	Count int
	// Over says that the pressure has ended: another instance is due.
	Over bool
}

// Evicted returns the eviction of the recorded instance, nil if it was not evicted.
func (r *Record) Evicted() *Eviction {
	if r.Eviction == nil || r.Eviction.Instance != r.Instance || r.Terminal == "" {
		return nil
	}
	return r.Eviction
}

// Begin notes that an instance of want begins at now, and reports whether it differs
// from the recorded one: then Begin resets the state of the one before. Attempts
// continue within one UID, so that numbers only rise.
func (r *Record) Begin(want *Spec, instance int, now time.Time) bool {
	if r.Instance == instance && r.Want != nil && r.UID == want.UID() {
		return false
	}
	if r.UID != "" && r.UID != want.UID() {
		r.Attempts, r.Eviction = make(map[string]uint32), nil
	}
	r.endInstance()
	r.UID, r.Want, r.Instance, r.StartTime = want.UID(), want, instance, want.Acknowledged(now)
	return true
}

// AdoptNewerInstance takes the number of a newer instance from the runtime, and reports whether
// there is one: then its record could not be written, and this record is of the
// instance before.
func (r *Record) AdoptNewerInstance(have Actual) bool {
	b := have.Sandbox
	if b == nil || b.Instance <= r.Instance || r.UID != "" && r.UID != have.UID {
		return false
	}
	before := *r
	r.endInstance()
	if before.Instance == 0 { // the instance was never recorded: notes from this time belong to it
		r.Want, r.StartTime, r.Streaks, r.Devices, r.RestartingAll = before.Want, before.StartTime, before.Streaks, before.Devices, before.RestartingAll
	}
	r.Instance = b.Instance
	return true
}

// endInstance resets the state of one instance. ContainerNotes stay: they belong to
// containers, and are removed with them.
func (r *Record) endInstance() {
	r.Want, r.StartTime = nil, time.Time{}
	r.StopSince, r.StopGrace, r.StopAsked, r.StopReason = time.Time{}, nil, false, ""
	r.Streaks, r.Devices, r.RestartingAll = nil, nil, false
	r.Terminal, r.TerminalReason, r.TerminalMessage = "", "", ""
}

// Acknowledged returns the start time of an instance that begins at now: an API
// server's pod keeps the start time that the server has (C-1.26.17).
func (s *Spec) Acknowledged(now time.Time) time.Time {
	if t := s.Pod.Status.StartTime; s.Origin.FromAPI() && t != nil {
		return t.Time
	}
	return now
}

// ContainerNotes is the notes on one CRI container: its state that cannot be observed.
type ContainerNotes struct {
	// PostStart is the state of the postStart hook: "" when there is none or it has
	// succeeded, else HookDue or HookFailed.
	PostStart string
	// PreStop says that the preStop hook has succeeded or failed: it does not run
	// again.
	PreStop bool
	// Killed is why the agent killed this container, or is to kill it: "" for no
	// reason, else the ProbeKind that failed, HookFailed, or OnRequest.
	Killed string
	// Grace is the grace period of a kill OnRequest, in seconds; nil: the container's
	// own.
	Grace *int64
	// Resources are those of the last UpdateContainer call for this container, as
	// Spec.Resources writes them; "" without a call.
	Resources string
}

// The values of ContainerNotes.PostStart and ContainerNotes.Killed for a postStart hook.
const (
	HookDue    = "due"    // it has to run, or was running when the agent exited
	HookFailed = "failed" // the agent has to stop the container (C-1.22.8)
)

// OnRequest is the ContainerNotes.Killed of a container that was restarted on request.
const OnRequest = "request"
