// Package plan decides. Next returns the plan for one pod: its next steps, each one action with its
// reason. Admit returns the pods that may start.
//
// It sits between the desired state (podconfig) and the actual state (the runtime). The
// engine's workers read the runtime, call Next, do the steps and read again.
//
// An instance is one run of a pod on this node, from its start to its removal. Instances of one pod
// have rising numbers; each has its own sandboxes, containers and volumes. The record has the facts
// about a pod that the agent stores because the runtime cannot show them (pod.Record). A layer is
// one source of pods; where two layers define a pod, the earlier one wins (podconfig). Numbers such
// as C-1.19.3, I4, F14, P2 and B5 are entries of docs/contract.md.
//
// The package has no I/O, no clock, no goroutine, and no state that lasts from one call to the
// next.
package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podview"
)

// View is the whole input of Next. NewView makes it, for an agent and for a forecast.
type View struct {
	// Want is the newest spec, with the allocated resources (Edits.FitResize); nil: stop and remove
	// the pod.
	Want *pod.Spec
	// Have is the state of the pod in the runtime.
	Have pod.Actual
	// Record is the pod's record. Record.Want is the spec that the newest instance runs by, nil
	// if unknown. The worker replaces it by the edited spec when the edit needs no new instance.
	// When the edit needs one, Record.Want stays until the new instance begins. Until then it gives
	// the grace of the stop, and a comparison with it shows that a terminated pod was edited.
	Record pod.Record
	// VolumesReady says that the volumes of instance Instance(v) are set up: containers may
	// start with them.
	VolumesReady bool
	// VolumesStale says that these volumes differ from the current spec, or from the current
	// content of the config objects that Want is bound to. These are the ConfigMaps, Secrets and
	// claims that podconfig has found for the names in the spec. VolumesUntil is when the volumes
	// become stale by time alone, because a token has to be renewed; zero is never.
	VolumesStale bool
	VolumesUntil time.Time
	// VolumesLeft says that VolumesReady is false, and that CSI drivers have nevertheless mounted
	// volumes for the pod, or are about to. Their set-up has failed in part, or the machine has
	// booted since.
	VolumesLeft bool
	// Forbidden is why no container of this pod may start or restart, whatever its source; "" when
	// they may. The node's policy forbids it, the machine shuts down, or the node is drained.
	// Running containers continue.
	Forbidden string
	// Health holds the probe statuses of the running containers.
	Health pod.Health
	Blockers
	// MaxBackoff caps the crash back-off on this node; 0 is 5 min.
	MaxBackoff time.Duration
	// Disabled names the features that are off on this node.
	Disabled pod.Disabled
	Now      time.Time
}

// Blockers are temporary reasons why the worker cannot carry out a part of the plan now. A
// forecast leaves all of them out.
type Blockers struct {
	// Failures holds the failures that are retried later, by container name; "" is the sandbox
	// or the pod as a whole (volumes included).
	Failures map[string]pod.Failure
	// NoNetwork says that the runtime's pod network does not work. Pods on the host
	// network do not wait for it.
	NoNetwork bool
	// Refused is the reason why admission does not admit this pod, or an edit of it; else "".
	Refused string
	// Waits is the condition that another pod has to reach before this one gets a sandbox, as text
	// for users; else "". It is started, ready or done (AnnotationDependsOn).
	Waits string
	// StopWaits names a terminating pod that depends on this one and has to be removed first, as
	// text for users; else "".
	StopWaits string
	// StopUntil is when this pod stops even if the pod of StopWaits is still there. Zero is
	// never.
	StopUntil time.Time
}

// Volumes returns View.VolumesReady, the opposite of View.VolumesStale, and View.VolumesUntil
// for an instance of want.
type Volumes func(want *pod.Spec, instance int) (ready, current bool, until time.Time)

// NewView returns the view of a pod without blockers. want is nil for a pod to remove, rec
// is zero for a pod without a record, forbidden is View.Forbidden. A forecast passes nil for
// volumes: then NewView infers from the record and the sandbox whether they are set up.
func NewView(want *pod.Spec, have pod.Actual, rec pod.Record, forbidden string, volumes Volumes, now time.Time) View {
	rec.AdoptNewerInstance(have)
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
	ready, current, until := volumes(want, instance)
	v.VolumesReady, v.VolumesStale, v.VolumesUntil = ready, !current, until
	return v
}

// Action is one operation on the runtime or the node.
type Action string

const (
	SetUpVolumes    Action = "put-volumes"      // set up the directories and volumes of an instance
	RunSandbox      Action = "run-sandbox"      //
	PullImage       Action = "pull-image"       // if the container's pull policy requires it
	CreateContainer Action = "create-container" //
	StartContainer  Action = "start-container"  // without an ID: the container that the step before created
	RunHook         Action = "run-hook"         // run the postStart hook Step.Hook; if it fails, the container is stopped (C-1.22.8)
	UpdateContainer Action = "update-container" // change the resources in place
	StopContainer   Action = "stop-container"   // run the preStop hook Step.Hook, send the stop signal, kill it when Step.Grace is over
	RemoveContainer Action = "remove-container" //
	StopSandbox     Action = "stop-sandbox"     //
	RemoveSandbox   Action = "remove-sandbox"   //
	TearDownVolumes Action = "take-volumes"     // tear down an instance's volumes and remove its directories
	Forget          Action = "forget"           // remove the pod's record and log directory: nothing is left
)

// Step is one action and its reason.
type Step struct {
	Action    Action
	Container string // container name, for container actions
	ID        string // sandbox or container ID, where one exists
	Instance  int    // RunSandbox, SetUpVolumes, TearDownVolumes
	Attempt   uint32 // RunSandbox, CreateContainer
	Streak    int    // CreateContainer: crashes in a row before this container; RemoveContainer: before the next one
	Grace     int64  // StopContainer: seconds for the hook and the stop together
	// Hook is the postStart hook (RunHook) or the preStop hook (StopContainer).
	Hook *v1.LifecycleHandler
	// After names containers that have to exit before this one gets the stop signal: those that
	// this sidecar serves. That time counts against Grace. The preStop hook of this container
	// does not wait (C-1.23.4).
	After []string
	// Killed is the reason of a StopContainer step for a failed probe, a failed hook or a restart
	// that is due; "" for other stops. The worker writes it to ContainerNotes.Killed before the
	// stop.
	Killed string
	// KeepLog says that the log of a removed container stays (C-1.21.3).
	KeepLog bool
	UID     string // TearDownVolumes, Forget: the UID in the directories' path; may differ from the desired pod's
	Why     string // the reason, as text for users
	// Edited says that a CreateContainer follows an edit, not an exit.
	Edited bool
	// Together marks the steps in a row that run in parallel: the stops of a pod's containers.
	Together bool
}

// WaitNetwork is the value of Plan.WaitFor while the pod network does not work.
const WaitNetwork = "network is not ready"

// Plan has the next steps for one pod.
type Plan struct {
	Steps []Step
	// Wait is how long until the plan may change by time alone (a back-off
	// ends, a retry is due); 0 is never.
	Wait time.Duration
	// WaitFor is the condition that the pod waits for, as text for users; may be empty.
	WaitFor string
	// Settled says that the plan has no steps, and that the passing of time alone adds none. WaitFor
	// may name the change that the pod needs.
	Settled bool
	// Stopping says that the steps stop the running instance, to remove or to replace it. The
	// worker records since when (Record.StopSince).
	Stopping bool
	// Behind says that a part of the pod still runs as before an edit, because the worker cannot
	// carry out the edit now.
	Behind bool
	// Gone says that the pod is not desired and nothing of it is left.
	Gone bool
	// RestartingAll says that a restart rule removes all containers, to start again from the
	// first init container (C-1.21.3).
	RestartingAll bool
	// End is the end of the instance. It is zero while the instance continues, has to be replaced
	// or is not desired. The worker records it unless the record already has an end.
	End InstanceEnd
	// Backoff holds the crash back-offs by container name (C-1.22.5).
	Backoff map[string]podview.Backoff
}

// Stops reports whether the plan begins to stop the running instance. A Stopping plan that
// begins with a pull does not: if the pull fails, nothing is stopped.
func (p Plan) Stops() bool {
	return p.Stopping && (len(p.Steps) == 0 || p.Steps[0].Action != PullImage)
}

// Replacing reports whether the plan still has to stop the whole instance or some containers. These
// are edited, resized, restarted on request or not in the spec any more. done is the number of
// steps that the worker has done. Replacing is already true before the steps that precede the
// stops, such as pulls. It is also true if the pod is not desired and only stops: the caller
// excludes that.
func (p Plan) Replacing(done int) bool {
	return p.Stopping || slices.ContainsFunc(p.Steps[done:], func(s Step) bool {
		return s.Action == StopContainer && (s.Why == WhyEdited || s.Why == WhyResized || s.Why == WhyRequested || s.Why == whyLeftover)
	})
}

// InstanceEnd is the end of an instance. Phase is Succeeded or Failed. Reason and Message are set
// if its containers do not show why, as for DeadlineExceeded.
type InstanceEnd struct{ Phase, Reason, Message string }

// String returns one line for each step, then WaitFor. Golden files and debug logs have this form.
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
