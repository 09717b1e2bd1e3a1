package engine

import (
	"context"
	"errors"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// target is one readiness probe of one container's life.
type target struct {
	key         pod.Key
	container   *v1.Container
	containerID string
	podIP       string
	startedAt   time.Time
	// seeded is the verdict before an agent restart, kept until the first probe
	// answers (C-1.29.4).
	seeded bool
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
	next    time.Time
	running bool
	ok      bool // published
	said    bool // something was published
	run     int  // results in a row
	runOK   bool // what they say
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
				w.running = true
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
				if v, changed := w.answer(r.err, time.Now()); changed {
					out = append(out, v)
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
// its counters; a new one starts as not ready (C-1.29.4), after its initial
// delay, which counts from the container's start (C-1.29.5).
func (p *prober) take(all map[probeID]*watched, set targetSet, out *[]verdict) {
	keep := make(map[probeID]bool, len(set.list))
	for _, t := range set.list {
		id := probeID{t.key, t.container.Name, t.containerID}
		keep[id] = true
		if w := all[id]; w != nil {
			w.container, w.podIP = t.container, t.podIP
			continue
		}
		first := t.startedAt.Add(time.Duration(t.container.ReadinessProbe.InitialDelaySeconds) * time.Second)
		all[id] = &watched{target: t, next: first, ok: t.seeded, said: t.seeded}
	}
	for id := range all {
		if id.key == set.key && !keep[id] {
			delete(all, id)
		}
	}
	*out = deleteVerdicts(*out, set.key, keep)
}

// deleteVerdicts drops what waits to be said of lives that are over.
func deleteVerdicts(out []verdict, key pod.Key, keep map[probeID]bool) []verdict {
	kept := out[:0]
	for _, v := range out {
		if v.key != key || keep[probeID{v.key, v.container, v.ContainerID}] {
			kept = append(kept, v)
		}
	}
	return kept
}

func (w *watched) request() pod.ProbeRequest {
	return pod.ProbeRequest{Probe: w.container.ReadinessProbe, Container: w.container, ContainerID: w.containerID, PodIP: w.podIP}
}

// answer counts one result and says whether it publishes a verdict: a result
// counts when it repeats to its threshold; the prober's own trouble counts for
// nothing (C-1.29.7, C-1.29.8).
func (w *watched) answer(err error, now time.Time) (verdict, bool) {
	probe := w.container.ReadinessProbe
	if w.next = w.next.Add(time.Duration(max(probe.PeriodSeconds, 1)) * time.Second); w.next.Before(now) {
		w.next = now // the probe took longer than its period
	}
	var failure *pod.ProbeFailure
	ok := err == nil
	if !ok && !errors.As(err, &failure) {
		return verdict{}, false
	}
	if w.run == 0 || w.runOK != ok {
		w.run, w.runOK = 0, ok
	}
	w.run++
	threshold := max(probe.FailureThreshold, 1)
	if ok {
		threshold = max(probe.SuccessThreshold, 1)
	}
	if w.run < int(threshold) || (w.said && w.ok == ok) {
		return verdict{}, false
	}
	w.ok, w.said = ok, true
	v := verdict{key: w.key, container: w.container.Name, Verdict: pod.Verdict{ContainerID: w.containerID, OK: ok}}
	if failure != nil {
		v.Message = failure.Message
	}
	return v, true
}
