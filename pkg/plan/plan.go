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
	"github.com/nodectl/nodectl/pkg/podview"
)

// View is all that Next decides by. NewView makes it for an agent that acts and for a
// forecast alike.
type View struct {
	// Want is the newest spec, with the resources that the pod is given (Edits.FitResize);
	// nil says that the pod has to go.
	Want *pod.Spec
	Have pod.Actual
	// Record is the pod's record. Its Want, nil when unknown, says by which grace the
	// pod stops when it has to go. That spec follows edits that start no other instance,
	// and stays while Instance(v) is another number than the recorded one: an edit of a
	// pod that has ended shows in nothing else. Its Attempts count beside the numbers
	// that the runtime shows.
	Record pod.Record
	// VolumesReady says that the volumes of (Want, the instance to start) are in
	// place: containers may start with them.
	VolumesReady bool
	// VolumesStale says that they do not show what Want is bound to now; VolumesUntil
	// is when that comes by time alone, zero for never.
	VolumesStale bool
	VolumesUntil time.Time
	// Forbidden is why nothing of this pod may start or start again: the node's policy
	// does not allow it, wherever it was read from; "" when it may. What runs goes on.
	Forbidden string
	// Evicted is why the instance has to end for good: which limit of its disk it
	// exceeds (C-1.35.9); "" when it may go on.
	Evicted string
	// Health is what the probes said of the containers that run.
	Health pod.Health
	Hindrances
	// MaxBackoff caps the crash back-off on this node; 0 is 5 min.
	MaxBackoff time.Duration
	Now        time.Time
}

// Hindrances is what keeps the pod from going on now and may be over later. A forecast
// leaves all of it out.
type Hindrances struct {
	// Trouble holds failures by container name; "" is the sandbox or the pod as
	// a whole (volumes included).
	Trouble map[string]pod.Trouble
	// NoNetwork says that the runtime's pod network does not work. Pods on the host
	// network do not wait for it.
	NoNetwork bool
	// Refused is why admission does not let this pod start; "" when it may.
	Refused string
	// Waits says which pod has to start, be ready or be done before this one's
	// sandbox is made (AnnotationDependsOn); "" when nothing is in the way.
	Waits string
	// StopWaits says which pod, one that depends on this one, has to be gone before
	// this unwanted one stops; "" when nothing is in the way.
	StopWaits string
	// StopUntil is when it stops all the same: the other one cannot be stopped. Zero is
	// never.
	StopUntil time.Time
}

// Volumes reports whether the volumes of an instance of want are in place (put), and
// show what want is bound to (current) until a time, zero for as long as nothing changes.
type Volumes func(want *pod.Spec, instance int) (put, current bool, until time.Time)

// NewView returns the view of a pod that nothing hinders. An agent that acts and a
// forecast both pass all that they know: want is nil for a pod that has to go, rec is
// zero for one without a record, forbidden is "" where the node's policy allows the pod,
// and volumes is nil where nothing can tell but the record.
func NewView(want *pod.Spec, have pod.Actual, rec pod.Record, forbidden string, volumes Volumes, now time.Time) View {
	rec.CatchUp(have)
	v := View{Want: want, Have: have, Record: rec, Forbidden: forbidden, Now: now}
	if want == nil {
		return v
	}
	instance := Instance(v)
	if volumes == nil {
		// An agent puts them in place before it makes a sandbox, and takes them away when
		// the pod has ended.
		v.VolumesReady = have.Sandbox != nil && instance == rec.Instance && rec.Terminal == ""
		return v
	}
	put, current, until := volumes(want, instance)
	v.VolumesReady, v.VolumesStale, v.VolumesUntil = put, !current, until
	return v
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
	Backoff map[string]podview.Backoff
}

// Stops reports whether the running instance is being ended now: a Stopping plan
// that pulls first ends nothing before that is done.
func (p Plan) Stops() bool {
	return p.Stopping && (len(p.Steps) == 0 || p.Steps[0].Action != PullImage)
}

// Ended is the end of an instance: its phase, Succeeded or Failed, and why, where
// its containers do not say (DeadlineExceeded).
type Ended struct{ Phase, Reason, Message string }

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
