// Package plan decides what to do. Next says what to do now for one pod, one action a step,
// and why; Admit says which pods may start.
//
// It sits between the desired state (podconfig) and the actual state (the runtime). The
// engine's workers read, call Next, do the steps and read again.
//
// The one rule: no I/O, no clock, no goroutine. State is computed from the input, never
// stored.
package plan

import (
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podview"
)

// View is all the input of Next. NewView makes it for an agent that acts and for a forecast
// alike.
type View struct {
	// Want is the newest spec, with the resources that the pod is given (Edits.FitResize);
	// nil: stop and remove the pod.
	Want *pod.Spec
	Have pod.Actual
	// Record is the pod's record. Its Want, nil when unknown, gives the grace of a stop. That
	// spec follows edits that start no new instance. It stays while Instance(v) differs from
	// the recorded number: nothing else shows an edit of a terminated pod. Its Attempts count
	// beside the numbers that the runtime shows.
	Record pod.Record
	// VolumesReady says that the volumes of (Want, the instance to start) are in
	// place: containers may start with them.
	VolumesReady bool
	// VolumesStale says that they do not show what Want is bound to now; VolumesUntil is when
	// they go stale by time alone, zero for never.
	VolumesStale bool
	VolumesUntil time.Time
	// Forbidden is why nothing of this pod may start or start again, from any source: the
	// node's policy does not allow it; "" when it may. Running containers continue.
	Forbidden string
	// Evicted is why the instance has to terminate: which limit of its disk it exceeds
	// (C-1.35.9); "" when it may continue.
	Evicted string
	// Health holds the probe statuses of the running containers.
	Health pod.Health
	Hindrances
	// MaxBackoff caps the crash back-off on this node; 0 is 5 min.
	MaxBackoff time.Duration
	Now        time.Time
}

// Hindrances are temporary reasons why the pod cannot continue now. A forecast leaves all of
// them out.
type Hindrances struct {
	// Trouble holds failures by container name; "" is the sandbox or the pod as
	// a whole (volumes included).
	Trouble map[string]pod.Trouble
	// NoNetwork says that the runtime's pod network does not work. Pods on the host
	// network do not wait for it.
	NoNetwork bool
	// Refused is why admission does not admit this pod; "" when it does.
	Refused string
	// Waits says which pod has to start, be ready or be done before this one's sandbox is
	// made (AnnotationDependsOn); "" for none.
	Waits string
	// StopWaits says which pod, one that depends on this one, has to be gone before this one
	// stops; "" for none.
	StopWaits string
	// StopUntil is when this pod stops although the other one is still there. Zero is never.
	StopUntil time.Time
}

// Volumes reports whether the volumes of an instance of want are set up (put), and show what
// want is bound to (current). They do so until a time, zero for as long as nothing changes.
type Volumes func(want *pod.Spec, instance int) (put, current bool, until time.Time)

// NewView returns the view of a pod without hindrances. An agent and a forecast both pass all
// that they know. want is nil for a pod to remove, rec is zero for a pod without a record,
// forbidden is "" where the node's policy allows the pod. volumes is nil where only the
// record can tell.
func NewView(want *pod.Spec, have pod.Actual, rec pod.Record, forbidden string, volumes Volumes, now time.Time) View {
	rec.CatchUp(have)
	v := View{Want: want, Have: have, Record: rec, Forbidden: forbidden, Now: now}
	if want == nil {
		return v
	}
	instance := Instance(v)
	if volumes == nil {
		// An agent sets them up before it makes a sandbox, and tears them down when the pod
		// has terminated.
		v.VolumesReady = have.Sandbox != nil && instance == rec.Instance && rec.Terminal == ""
		return v
	}
	put, current, until := volumes(want, instance)
	v.VolumesReady, v.VolumesStale, v.VolumesUntil = put, !current, until
	return v
}

// Action is one operation on the runtime or the node.
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
	TakeVolumes     Action = "take-volumes"     // tear down an instance's volumes and remove its directories
	Forget          Action = "forget"           // remove the pod's record and log directory: nothing is left
)

// Step is one action and its reason.
type Step struct {
	Action    Action
	Container string // container name, for container actions
	ID        string // sandbox or container ID, where one exists
	Instance  int    // RunSandbox, PutVolumes, TakeVolumes
	Attempt   uint32 // RunSandbox, CreateContainer
	Streak    int    // CreateContainer: crashes in a row before this container; RemoveContainer: before the next one
	Grace     int64  // StopContainer, seconds in total
	// Hook is the postStart hook (RunHook) or the preStop hook (StopContainer).
	Hook *v1.LifecycleHandler
	// After names containers whose steps, in the same group, have to end before this
	// container is stopped. That time counts against Grace. Its own hook does not wait
	// (C-1.23.4).
	After []string
	// Killed is the reason that the container's notes record for a StopContainer, where a
	// probe or a hook causes it.
	Killed string
	// KeepLog says that the log of a removed container stays (C-1.21.3).
	KeepLog bool
	UID     string // TakeVolumes, Forget: whose directories; may differ from the desired pod's UID
	Why     string
	// Edited says that a CreateContainer follows an edit, not an exit.
	Edited bool
	// Together marks steps that may run in parallel with their marked neighbours (the stops
	// of one pod's containers).
	Together bool
}

// WaitNetwork is what a pod waits for while the pod network does not work (Plan.WaitFor).
const WaitNetwork = "network is not ready"

// Plan is what to do now for one pod.
type Plan struct {
	Steps []Step
	// Wait is how long until the plan may change by time alone (a back-off
	// ends, a retry is due); 0 is never.
	Wait time.Duration
	// WaitFor says, for a person, what Wait or the missing steps wait for; may be empty.
	WaitFor string
	// Settled says that nothing is left to do until something other than the time changes.
	// WaitFor may still say what has to change.
	Settled bool
	// Stopping says that the steps stop the running instance (it is removed or replaced): the
	// worker records since when.
	Stopping bool
	// Behind says that a part of the pod still runs as before an edit, because something
	// blocks the edit.
	Behind bool
	// Gone says that the pod is not desired and nothing of it is left.
	Gone bool
	// RestartingAll says that a restart rule removes all containers, to start again from the
	// first init container (C-1.21.3).
	RestartingAll bool
	// Ended is what to record of a terminated instance. It is zero while the instance runs,
	// is to be replaced or is not desired. An end that is recorded already takes precedence.
	Ended Ended
	// Backoff holds the crash back-offs by container name: the end and the delay (C-1.22.5).
	Backoff map[string]podview.Backoff
}

// Stops reports whether the running instance is being stopped now. A Stopping plan that pulls
// first stops nothing before the pull is done.
func (p Plan) Stops() bool {
	return p.Stopping && (len(p.Steps) == 0 || p.Steps[0].Action != PullImage)
}

// Ended is the end of an instance: its phase, Succeeded or Failed, and a reason where its
// containers do not show one (DeadlineExceeded).
type Ended struct{ Phase, Reason, Message string }

// String returns one line a step, then what the plan waits for. Golden files and debug logs
// have this form.
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

// String returns the step on one line: action, target, reason.
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
