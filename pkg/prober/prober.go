// Package prober says when the probes of the node's containers are due, runs them, and
// applies their thresholds.
//
// The sync loop sets the targets of a pod; the prober answers with a Status for each
// container whose result changed. A probe that runs has a goroutine; one that waits has
// a place in a heap and nothing else. How one probe is run, and the arithmetic of delays
// and thresholds, is in package probe.
//
// The one rule: no probe delays another one beyond the slots that both need (F81).
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

// How many probes run at once, at most (F81). A probe that waits for a slot is only delayed,
// at most by the time that the running probes take.
const (
	// execSlots are the node's: every command costs processes of the runtime.
	execSlots = 32
	// netSlots are the node's: a connection costs little, and a node whose pod
	// network is down has many that hang.
	netSlots = 256
	// podSlots are one pod's, so that a pod whose probes all hang leaves slots to the
	// other pods.
	podSlots = 8
)

// heartbeat is how often the prober wakes up while a probe runs, to notice that the
// process was stopped meanwhile (F5). While no probe runs, it does not wake up for that.
const heartbeat = 250 * time.Millisecond

// Runner runs one probe once.
type Runner interface {
	// Probe returns nil on success, or a *pod.ProbeWarning. A *pod.ProbeFailure is the
	// container's answer; any other error is a failure to run the probe, and does not count
	// (C-1.29.7).
	Probe(ctx context.Context, r pod.ProbeRequest) error
}

// Target is one probe of one run of a container.
type Target struct {
	Key         pod.Key
	UID         string // of the pod
	Path        string // of the container, as events name it
	Kind        pod.ProbeKind
	Container   *v1.Container // it has a probe of this kind
	ContainerID string
	PodIP       string // empty on the host network
	StartedAt   time.Time
	Started     bool // as in the container's status: opens liveness and readiness, ends startup
	Ready       bool // as in the container's status
}

// Equal reports whether two targets need the same probes.
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

// Status is the result of a probe for one run of a container, thresholds applied.
type Status struct {
	Key       pod.Key
	Kind      pod.ProbeKind
	Container string
	pod.ProbeStatus
}

// Prober runs probes when they are due (C-1.29). It is always ready to take targets,
// whatever its probes do.
type Prober struct {
	targets  chan podTargets
	statuses chan Status
	results  chan result
	runner   Runner
	log      *slog.Logger
	now      func() time.Time // called once each time the prober wakes up
	event    func(t Target, reason, message string)
}

// podTargets are all targets that one pod has now.
type podTargets struct {
	key  pod.Key
	list []Target
}

type result struct {
	of  *task
	err error
}

// New returns a prober. Run calls event, which must not block, for each probe that fails
// or warns; nil discards events.
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

// SetTargets replaces the targets of one pod; an empty list ends its probes. A pod that
// stops keeps its readiness targets alone (C-1.29.11). It blocks until Run takes them, or
// until ctx ends.
func (p *Prober) SetTargets(ctx context.Context, key pod.Key, list []Target) {
	select {
	case p.targets <- podTargets{key: key, list: list}:
	case <-ctx.Done():
	}
}

// Statuses returns the channel on which Run sends what changed. It is never closed.
func (p *Prober) Statuses() <-chan Status { return p.statuses }

// Run probes until ctx ends, and returns when every probe has ended.
func (p *Prober) Run(ctx context.Context) {
	var probes sync.WaitGroup
	defer probes.Wait()
	timer := time.NewTimer(never)
	defer timer.Stop()
	all := newSchedule(p.now(), p.log, p.event)
	for {
		var send chan Status
		var first Status
		if len(all.unsent) > 0 {
			send, first = p.statuses, all.unsent[0]
		}
		var happened func(now time.Time)
		select {
		case set := <-p.targets:
			happened = func(now time.Time) { all.setTargets(set, now) }
		case r := <-p.results:
			happened = func(now time.Time) { all.finish(r.of, r.err, now) }
		case send <- first:
			all.unsent = all.unsent[1:]
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		now := p.now()
		all.noteStall(now)
		if happened != nil {
			happened(now)
		}
		for _, t := range all.startDue(now) {
			one, cancel := context.WithCancel(activity.WithPod(ctx, t.Key))
			t.cancel = cancel
			request := t.request()
			probes.Go(func() {
				defer cancel()
				p.probe(ctx, one, t, request)
			})
		}
		timer.Reset(all.nextWakeUp(now).Sub(now))
	}
}

// probe runs one probe, which ends with one, and sends its result.
func (p *Prober) probe(ctx, one context.Context, t *task, r pod.ProbeRequest) {
	err := panics.ToError(func() error { return p.runner.Probe(one, r) })
	select {
	case p.results <- result{t, err}:
	case <-ctx.Done():
	}
}
