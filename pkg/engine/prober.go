package engine

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/probe"
)

// target is one readiness probe of one container's life.
type target struct {
	key         pod.Key
	container   *v1.Container
	containerID string
	podIP       string
	startedAt   time.Time
}

// same reports whether two targets are probed alike.
func (t target) same(o target) bool {
	return t.containerID == o.containerID && t.podIP == o.podIP &&
		(t.container == o.container || equality.Semantic.DeepEqual(t.container, o.container))
}

// verdict is what a probe published for one container's life.
type verdict struct {
	key       pod.Key
	container string
	pod.Verdict
}

// prober runs readiness probes at their times (C-1.29). It owns all counters;
// a probe that runs has a goroutine, a probe that waits has none.
type prober struct {
	targets  chan targetSet
	verdicts chan verdict
	results  chan probeResult
	prober   Prober
	slots    int // probes running at once, at most
	start    time.Time
}

// targetSet is every target one pod has now; none at all ends its probes.
type targetSet struct {
	key  pod.Key
	list []target
}

type probeResult struct {
	id  probeID
	err error
}

type probeID struct {
	key         pod.Key
	container   string
	containerID string
}

// watched is one probe the prober keeps.
type watched struct {
	target
	state   probe.State
	last    time.Time // start of the run before; zero before the first
	next    time.Time
	running bool
}

func newProber(p Prober) *prober {
	return &prober{
		targets:  make(chan targetSet),
		verdicts: make(chan verdict),
		results:  make(chan probeResult),
		prober:   p,
		slots:    32,
	}
}

func (p *prober) run(ctx context.Context) {
	p.start = time.Now()
	var wg sync.WaitGroup
	defer wg.Wait()
	all := make(map[probeID]*watched)
	var out []verdict // verdicts the loop has not taken yet
	inFlight := 0
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		now := time.Now()
		next := now.Add(time.Hour)
		for id, w := range all {
			if w.running {
				continue
			}
			if !w.next.After(now) && inFlight < p.slots {
				w.running, w.last = true, now
				inFlight++
				req := w.request()
				wg.Go(func() { p.probe(ctx, id, req) })
				continue
			}
			if w.next.Before(next) && inFlight < p.slots {
				next = w.next
			}
		}
		timer.Reset(time.Until(next))
		var send chan verdict
		var first verdict
		if len(out) > 0 {
			send, first = p.verdicts, out[0]
		}
		select {
		case set := <-p.targets:
			p.take(all, set, &out)
		case send <- first:
			out = out[1:]
		case r := <-p.results:
			inFlight--
			if w := all[r.id]; w != nil {
				w.running = false
				w.next = probe.Due(w.container.ReadinessProbe, w.startedAt, w.last, time.Now())
				var changed bool
				if w.state, changed = w.state.After(w.container.ReadinessProbe, r.err); changed {
					out = append(out, verdict{w.key, w.container.Name, w.state.Verdict})
				}
			}
		case <-timer.C:
		case <-ctx.Done():
			return
		}
	}
}

func (p *prober) probe(ctx context.Context, id probeID, req pod.ProbeRequest) {
	err := p.prober.Probe(ctx, req)
	select {
	case p.results <- probeResult{id, err}:
	case <-ctx.Done():
	}
}

// take replaces the targets of one pod. A life that is already watched keeps
// its counters; what waits to be said of lives that are over is dropped.
func (p *prober) take(all map[probeID]*watched, set targetSet, out *[]verdict) {
	now := time.Now()
	keep := make(map[probeID]bool, len(set.list))
	for _, t := range set.list {
		id := probeID{t.key, t.container.Name, t.containerID}
		keep[id] = true
		if w := all[id]; w != nil {
			w.container, w.podIP = t.container, t.podIP
			continue
		}
		due := probe.Due(t.container.ReadinessProbe, t.startedAt, time.Time{}, now)
		due = due.Add(probe.Spread(t.container.ReadinessProbe, t.startedAt, p.start, now, rand.Float64()))
		all[id] = &watched{target: t, state: probe.Begin(t.containerID), next: due}
	}
	for id := range all {
		if id.key == set.key && !keep[id] {
			delete(all, id)
		}
	}
	*out = slices.DeleteFunc(*out, func(v verdict) bool {
		return v.key == set.key && !keep[probeID{v.key, v.container, v.ContainerID}]
	})
}

func (w *watched) request() pod.ProbeRequest {
	return pod.ProbeRequest{Probe: w.container.ReadinessProbe, Container: w.container, ContainerID: w.containerID, PodIP: w.podIP}
}
