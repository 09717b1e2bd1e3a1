// Package plan decides. Next says what to do now for one pod, one action a
// step, and why; Admit says which pods may start.
//
// It sits between what is wanted (podconfig) and what is there (the runtime):
// the engine's workers read, ask Next, do the steps and read again.
//
// The one rule: no I/O, no clock, no goroutine. State is computed from what
// was read, never stored.
package plan

import (
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// View is all that one worker has read about its pod.
type View struct {
	// Want is the newest spec, with the resources that the pod is given (FitResize);
	// nil says that the pod has to go.
	Want *pod.Spec
	// Kept is the spec the running instance was made from, as the pod's record
	// keeps it; nil when unknown. Grace comes from it when the pod has to go.
	// It follows edits that start no other instance, and is left alone while
	// Instance(v) is another number than the recorded one: an edit of a pod that
	// has ended shows in nothing else.
	Kept *pod.Spec
	Have pod.Actual
	// Instance is the number of the newest instance ever recorded for this
	// key; 0 when none. A new instance gets the next number (at least one more
	// than any the runtime shows).
	Instance int
	// Attempts holds the next free attempt number by container name, "" for the
	// sandbox: numbers of this pod's removed lives, so that attempts and log
	// numbers only rise. A number the runtime shows counts as well. May be nil.
	Attempts map[string]uint32
	// Terminal is the phase ("Succeeded", "Failed") the recorded instance
	// ended in; "" while it lives. A terminal instance never runs again (I4).
	Terminal string
	// VolumesReady says that the volumes of (Want, the instance to start) are in
	// place: containers may start with them.
	VolumesReady bool
	// VolumesStale says that they do not show what Want is bound to now; VolumesUntil
	// is when that comes by time alone, zero for never.
	VolumesStale bool
	VolumesUntil time.Time
	// Trouble holds failures by container name; "" is the sandbox or the pod as
	// a whole (volumes included).
	Trouble map[string]pod.Trouble
	// StopSince is when stopping this instance began (kept across a restart of
	// the agent); zero when it has not.
	StopSince time.Time
	// StopGrace is how many seconds who asked for that stop gave it; nil: the pod's own.
	StopGrace *int64
	// StopAsked says that a person asked for that stop.
	StopAsked bool
	// NetworkReady says that the runtime's pod network works. Pods on the host
	// network do not wait for it.
	NetworkReady bool
	// Evicted is why the instance has to end for good: which limit of its disk it
	// exceeds (C-1.35.9); "" when it may go on.
	Evicted string
	// Refused is why admission does not let this pod start; "" when it may.
	Refused string
	// Forbidden is why nothing of this pod may start or start again: the node's policy
	// does not allow it, wherever it was read from; "" when it may. What runs goes on.
	Forbidden string
	// Waits says which pod has to start, be ready or be done before this one's
	// sandbox is made (AnnotationDependsOn); "" when nothing is in the way.
	Waits string
	// StopWaits says which pod, one that depends on this one, has to be gone before
	// this unwanted one stops; "" when nothing is in the way.
	StopWaits string
	// StopUntil is when it stops all the same: the other one cannot be stopped. Zero is
	// never.
	StopUntil time.Time
	// Health is what the probes said of the lives that run.
	Health pod.Health
	// Lives is the record's, by container ID. May be nil.
	Lives map[string]pod.Life
	// Streaks holds the crashes in a row, by container name, of lives whose records
	// were removed to restart all containers: what the last RemoveContainer step
	// with a Streak said, until that container is created again. May be nil.
	Streaks map[string]int
	// RestartingAll is what the plan before this one said: a restart of all that has
	// begun is brought to its end, whatever the rules say by now.
	RestartingAll bool
	// StartTime is when the instance was first acknowledged: activeDeadlineSeconds
	// counts from it (C-1.26.17). Zero is not known yet.
	StartTime time.Time
	// MaxBackoff caps the crash back-off on this node; 0 is 5 min.
	MaxBackoff time.Duration
	Now        time.Time
}

// Action is one thing the outside world is asked for.
type Action string

const (
	PutVolumes      Action = "put-volumes"      // directories and volumes of an instance
	RunSandbox      Action = "run-sandbox"      //
	PullImage       Action = "pull-image"       // by the container's pull policy; nothing to do when present
	CreateContainer Action = "create-container" //
	StartContainer  Action = "start-container"  // ID empty: the one just created under this name
	RunHook         Action = "run-hook"         // the postStart hook, in Step.Hook; failing it ends the container (C-1.22.8)
	UpdateContainer Action = "update-container" // resources, in place
	StopContainer   Action = "stop-container"   // the preStop hook in Step.Hook, then Grace seconds less its time, then SIGKILL
	RemoveContainer Action = "remove-container" //
	StopSandbox     Action = "stop-sandbox"     //
	RemoveSandbox   Action = "remove-sandbox"   //
	TakeVolumes     Action = "take-volumes"     // take an instance's volumes and directories away
	Forget          Action = "forget"           // remove the pod's record and log directory: nothing is left
)

// Step is one action and why it is done.
type Step struct {
	Action    Action
	Container string // container name, for container actions
	ID        string // sandbox or container ID, where one exists
	Instance  int    // RunSandbox, PutVolumes, TakeVolumes
	Attempt   uint32 // RunSandbox, CreateContainer
	Streak    int    // CreateContainer: crashes in a row before this life; RemoveContainer: before the next one
	Grace     int64  // StopContainer, seconds for all of it
	// Hook is the postStart hook (RunHook) or the preStop hook (StopContainer).
	Hook *v1.LifecycleHandler
	// After names containers whose steps, in the same group of steps together,
	// have to be over before this one is stopped; their time comes out of Grace,
	// its own hook does not wait (C-1.23.4).
	After []string
	// Killed is what the life's record says of a StopContainer that a probe or a
	// hook asks for.
	Killed string
	// KeepLog says that the log of a container that is removed stays (C-1.21.3).
	KeepLog bool
	UID     string // TakeVolumes, Forget: whose directories; it may be another pod's than the wanted one's
	Why     string
	// Anew says that a CreateContainer follows an edit, not an end.
	Anew bool
	// Together marks steps that may run at once with their marked neighbours
	// (the stops of one pod's containers).
	Together bool
}

// WaitNetwork is what a pod waits for where the pod network does not work (Plan.WaitFor).
const WaitNetwork = "network is not ready"

// Plan is what to do now for one pod.
type Plan struct {
	Steps []Step
	// Wait is how long until the plan may change by time alone (a back-off
	// ends, a retry is due); 0 is never.
	Wait time.Duration
	// WaitFor says what Wait or the missing steps wait for, in words for a
	// person; may be empty.
	WaitFor string
	// Settled says that nothing is left to do until something changes; time
	// alone is no change. WaitFor may still say what has to change.
	Settled bool
	// Stopping says that the steps end the running instance (the pod has to go
	// or is replaced): the worker records since when.
	Stopping bool
	// Behind says that something of the wanted pod runs as it was before an edit,
	// until what keeps the edit from being made is over.
	Behind bool
	// Gone says that the pod is unwanted and nothing of it is left.
	Gone bool
	// RestartingAll says that a restart rule has all containers removed, to start
	// from the first init container on (C-1.21.3).
	RestartingAll bool
	// Ended is what is to be recorded of an instance that has ended for good; zero
	// while it lives, is to be replaced or is not wanted. What is recorded already
	// has the last word.
	Ended Ended
	// Backoff holds, by container name, until when a crashed container is held
	// back and the delay it was given (C-1.22.5).
	Backoff map[string]Backoff
}

// Stops reports whether the running instance is being ended now: a Stopping plan
// that pulls first ends nothing before that is done.
func (p Plan) Stops() bool {
	return p.Stopping && (len(p.Steps) == 0 || p.Steps[0].Action != PullImage)
}

// Ended is the end of an instance: its phase, Succeeded or Failed, and why, where
// its containers do not say (DeadlineExceeded).
type Ended struct{ Phase, Reason, Message string }

// Backoff is one crash back-off: the delay and its end.
type Backoff struct {
	Delay time.Duration
	Until time.Time
}

// String returns one line a step, then what is waited for: the form goldens
// compare and debug logs show.
func (p Plan) String() string {
	var b strings.Builder
	for _, s := range p.Steps {
		b.WriteString(s.String() + "\n")
	}
	switch {
	case p.Gone:
		b.WriteString("gone\n")
	case p.Wait > 0:
		fmt.Fprintf(&b, "wait %s: %s\n", p.Wait, p.WaitFor)
	case p.WaitFor != "":
		fmt.Fprintf(&b, "wait: %s\n", p.WaitFor)
	case p.Settled:
		b.WriteString("settled\n")
	}
	return b.String()
}

// String returns the step on one line: action, what it concerns, why.
func (s Step) String() string {
	var b strings.Builder
	b.WriteString(string(s.Action))
	if s.Container != "" {
		b.WriteString(" " + s.Container)
	}
	if s.ID != "" {
		b.WriteString(" id=" + s.ID)
	}
	if s.Instance > 0 {
		fmt.Fprintf(&b, " instance=%d", s.Instance)
	}
	if s.Action == RunSandbox || s.Action == CreateContainer {
		fmt.Fprintf(&b, " attempt=%d", s.Attempt)
	}
	if s.Streak > 0 {
		fmt.Fprintf(&b, " streak=%d", s.Streak)
	}
	if s.Action == StopContainer {
		fmt.Fprintf(&b, " grace=%d", s.Grace)
	}
	if s.Hook != nil {
		b.WriteString(" hook=" + hookKind(s.Hook))
	}
	if len(s.After) > 0 {
		b.WriteString(" after=" + strings.Join(s.After, ","))
	}
	if s.KeepLog {
		b.WriteString(" keep-log")
	}
	if s.Killed != "" {
		b.WriteString(" killed=" + s.Killed)
	}
	if s.UID != "" {
		b.WriteString(" uid=" + s.UID)
	}
	if s.Together {
		b.WriteString(" together")
	}
	if s.Why != "" {
		b.WriteString(" # " + s.Why)
	}
	return b.String()
}
