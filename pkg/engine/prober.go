package engine

import (
	"context"
	"log/slog"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/nodectl/nodectl/pkg/panics"
	"github.com/nodectl/nodectl/pkg/pod"
)

// How many probes run at once, at most (F81). One that waits for its turn loses
// nothing but time, and no more of it than the running ones may take.
const (
	// execSlots are the node's: every command costs the runtime processes.
	execSlots = 32
	// netSlots are the node's: a connection costs little, and a node whose pod
	// network is down has many that hang.
	netSlots = 256
	// podSlots are one pod's, so that a pod whose probes all hang leaves the rest
	// of the node its turn.
	podSlots = 8
)

// heartbeat is how often the prober wakes up while a probe runs, to notice that
// the process stood still meanwhile (F5). Nothing running, nothing beats.
const heartbeat = 250 * time.Millisecond

// target is one probe of one container's life.
type target struct {
	key         pod.Key
	uid         string // of the pod
	path        string // of the container, as events name it
	kind        pod.ProbeKind
	container   *v1.Container // it has a probe of this kind
	containerID string
	podIP       string // empty on the host network
	startedAt   time.Time
	started     bool // as in the container's status: opens liveness and readiness, ends startup
	ready       bool // as in the container's status
}

// same reports whether two targets are probed alike.
func (t target) same(o target) bool {
	return t.kind == o.kind && t.containerID == o.containerID && t.podIP == o.podIP &&
		t.started == o.started && t.ready == o.ready &&
		(t.container == o.container || equality.Semantic.DeepEqual(t.container, o.container))
}

// probe is what is asked.
func (t target) probe() *v1.Probe {
	switch t.kind {
	case pod.Liveness:
		return t.container.LivenessProbe
	case pod.Startup:
		return t.container.StartupProbe
	}
	return t.container.ReadinessProbe
}

// targetSet is every target one pod has now; none at all ends its probes. A pod
// that stops keeps its readiness targets alone (C-1.29.11).
type targetSet struct {
	key  pod.Key
	list []target
}

// verdict is what a probe published for one container's life.
type verdict struct {
	key       pod.Key
	kind      pod.ProbeKind
	container string
	pod.Verdict
}

// prober runs probes at their times (C-1.29). A probe that runs has a goroutine;
// one that waits has a place in a heap and nothing else. It is always ready to
// take targets, whatever its probes do.
type prober struct {
	targets  chan targetSet
	verdicts chan verdict
	results  chan probeResult
	prober   Prober
	log      *slog.Logger
	now      func() time.Time                       // asked once each time the prober wakes up
	say      func(t target, reason, message string) // a probe has failed; nil tells nobody
}

type probeResult struct {
	of  *watched
	err error
}

func newProber(p Prober, log *slog.Logger) *prober {
	return &prober{
		targets:  make(chan targetSet),
		verdicts: make(chan verdict),
		results:  make(chan probeResult),
		prober:   p,
		log:      log,
		now:      time.Now,
	}
}

// run probes until ctx ends.
func (p *prober) run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	timer := time.NewTimer(never)
	defer timer.Stop()
	all := newRound(p.now(), p.log)
	all.say = p.say
	for {
		var send chan verdict
		var first verdict
		if len(all.out) > 0 {
			send, first = p.verdicts, all.out[0]
		}
		var happened func(now time.Time)
		select {
		case set := <-p.targets:
			happened = func(now time.Time) { all.take(set, now) }
		case r := <-p.results:
			happened = func(now time.Time) { all.done(r.of, r.err, now) }
		case send <- first:
			all.out = all.out[1:]
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		now := p.now()
		all.woke(now)
		if happened != nil {
			happened(now)
		}
		for _, w := range all.due(now) {
			one, cancel := context.WithCancel(ctx)
			w.cancel = cancel
			request := w.request()
			running.Go(func() {
				defer cancel()
				p.ask(ctx, one, w, request)
			})
		}
		timer.Reset(all.until(now).Sub(now))
	}
}

// ask runs one probe, which ends with one, and hands its result in.
func (p *prober) ask(ctx, one context.Context, w *watched, r pod.ProbeRequest) {
	err := panics.ToError(func() error { return p.prober.Probe(one, r) })
	select {
	case p.results <- probeResult{w, err}:
	case <-ctx.Done():
	}
}
