// Package prober runs the probes of the node's containers when they are due, and applies
// their thresholds.
//
// The sync loop sets the targets of each pod. The prober sends a Status when the probe
// status of a container has changed. Only a running probe has a goroutine. A probe that is
// not due yet is an entry in a heap, and a due probe without a slot is an entry in a queue.
// Package probe runs a single probe, and computes delays and thresholds.
//
// A probe delays another one only while both need the same slots (F81).
package prober

import (
	"context"
	"log/slog"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/nodectl/nodectl/pkg/activity"
	"github.com/nodectl/nodectl/pkg/panics"
	"github.com/nodectl/nodectl/pkg/pod"
)

// How many probes run at once, at most (F81). A due probe without a slot runs late: it
// waits for running probes, and for those that were queued for the same slots before it.
const (
	// execSlots limits the exec probes of the node: each one costs processes of the runtime.
	execSlots = 32
	// netSlots limits all other probes of the node. A connection costs little, and many
	// hang at once when the pod network is down.
	netSlots = 256
	// podSlots limits the probes of one pod, so that a pod whose probes all hang leaves
	// slots to the other pods.
	podSlots = 8
)

// heartbeat is how often the prober wakes up while a probe runs. A late wake-up shows that
// the process was stopped meanwhile (F5).
const heartbeat = 250 * time.Millisecond

// Runner runs one probe once.
type Runner interface {
	// Probe returns nil or a *pod.ProbeWarning if the probe succeeded, and a
	// *pod.ProbeFailure if it failed. Any other error means that the probe could not be
	// run: it counts neither as success nor as failure (C-1.29.7).
	Probe(ctx context.Context, r pod.ProbeRequest) error
}

// Target is one probe of one container of the runtime. A container that restarts gets
// another ID, and its probes are other targets.
type Target struct {
	Key         pod.Key
	UID         string // of the pod
	Path        string // fieldPath of the container in events: spec.containers{web}
	Kind        pod.ProbeKind
	Container   *v1.Container // must have a probe of this kind
	ContainerID string
	PodIP       string // empty on the host network
	StartedAt   time.Time
	// Started is that of the container's status: only the startup probe runs before it is
	// true, only the other probes run after.
	Started bool
	Ready   bool // that of the container's status
}

// Equal reports whether t and o are the same to the prober. It ignores Key, UID, Path and
// StartedAt, which do not change while the ContainerID stays the same.
func (t Target) Equal(o Target) bool {
	return t.Kind == o.Kind && t.ContainerID == o.ContainerID && t.PodIP == o.PodIP &&
		t.Started == o.Started && t.Ready == o.Ready &&
		(t.Container == o.Container || equality.Semantic.DeepEqual(t.Container, o.Container))
}

// Probe returns the container's probe of the target's kind; nil if it has none.
func (t Target) Probe() *v1.Probe {
	switch t.Kind {
	case pod.Liveness:
		return t.Container.LivenessProbe
	case pod.Startup:
		return t.Container.StartupProbe
	}
	return t.Container.ReadinessProbe
}

// Status is the probe status of one container for one kind of probe: the result after the
// thresholds.
type Status struct {
	Key       pod.Key
	Kind      pod.ProbeKind
	Container string
	pod.ProbeStatus
}

// Prober runs probes when they are due (C-1.29). Construct it with New.
type Prober struct {
	targets  chan podTargets
	statuses chan Status
	results  chan result
	runner   Runner
	log      *slog.Logger
	now      func() time.Time // Run calls it once at its start and once each time it wakes up
	event    func(t Target, reason, message string)
}

// podTargets are all targets that one pod has now.
type podTargets struct {
	key  pod.Key
	list []Target
}

// result is how one run of a task's probe ended.
type result struct {
	of  *task
	err error
}

// New returns a prober. Run calls event, which must not block, for each run of a probe that
// fails or warns, and when a probe could not be run more than once in a row; nil discards
// events.
func New(runner Runner, log *slog.Logger, event func(t Target, reason, message string)) *Prober {
	if event == nil {
		event = func(Target, string, string) {}
	}
	return &Prober{
		targets:  make(chan podTargets),
		statuses: make(chan Status),
		results:  make(chan result),
		runner:   runner,
		log:      log,
		now:      time.Now,
		event:    event,
	}
}

// SetTargets replaces the targets of one pod; an empty list ends its probes. For a
// terminating pod, the caller must pass the readiness targets only (C-1.29.11). SetTargets
// blocks until Run receives the list or ctx ends. Run receives it at once, whatever the
// probes do.
func (p *Prober) SetTargets(ctx context.Context, key pod.Key, list []Target) {
	select {
	case p.targets <- podTargets{key: key, list: list}:
	case <-ctx.Done():
	}
}

// Statuses returns the channel on which Run sends each changed Status. It is never closed.
func (p *Prober) Statuses() <-chan Status { return p.statuses }

// Run runs probes until ctx ends, and returns when every probe has ended.
func (p *Prober) Run(ctx context.Context) {
	var probes sync.WaitGroup
	defer probes.Wait()
	timer := time.NewTimer(maxSleep)
	defer timer.Stop()
	all := newSchedule(p.now(), p.log, p.event)
	for {
		var send chan Status
		var first Status
		if len(all.unsent) > 0 {
			send, first = p.statuses, all.unsent[0]
		}
		var handle func(now time.Time)
		select {
		case set := <-p.targets:
			handle = func(now time.Time) { all.setTargets(set, now) }
		case r := <-p.results:
			handle = func(now time.Time) { all.finish(r.of, r.err, now) }
		case send <- first:
			all.unsent = all.unsent[1:]
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		now := p.now()
		all.noteStall(now) // before a result is handled, which may have to be discarded
		if handle != nil {
			handle(now)
		}
		for _, t := range all.startDue(now) {
			probeCtx, cancel := context.WithCancel(activity.WithPod(ctx, t.Key))
			t.cancel = cancel
			request := t.request()
			probes.Go(func() {
				defer cancel()
				p.probe(ctx, probeCtx, t, request)
			})
		}
		timer.Reset(all.nextWakeUp(now).Sub(now))
	}
}

// probe runs one probe until probeCtx ends at the latest, and sends its result unless ctx,
// that of Run, has ended.
func (p *Prober) probe(ctx, probeCtx context.Context, t *task, r pod.ProbeRequest) {
	err := panics.ToError(func() error { return p.runner.Probe(probeCtx, r) })
	select {
	case p.results <- result{t, err}:
	case <-ctx.Done():
	}
}
