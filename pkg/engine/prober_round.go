package engine

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/nodectl/nodectl/pkg/panics"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/probe"
)

// round is everything the prober watches, and when it is whose turn. It belongs
// to the prober's goroutine, and learns the time from it.
type round struct {
	log     *slog.Logger
	say     func(t target, reason, message string) // nil tells nobody
	start   time.Time                              // of the agent
	planned time.Time                              // when the prober means to wake up, at the latest
	pods    map[pod.Key]*share
	waiting waiting    // by the time they are due
	queue   []*watched // due, first come first served
	out     []verdict  // not taken by the loop yet
	execs   int        // running
	nets    int        // running
}

// share is one pod's part of the round.
type share struct {
	list    []*watched
	running int
}

// never is longer than anybody waits: the prober that has nothing to do wakes up
// this often.
const never = 24 * time.Hour

// turn is where a watched probe is.
type turn int

const (
	turnIdle    turn = iota // nothing to ask now, until its targets change
	turnWaiting             // in the heap
	turnQueued              // due, for want of a slot
	turnRunning             // has a goroutine
	turnLeft                // its life or its pod is over
)

// watched is one probe of the round.
type watched struct {
	target
	share    *share
	state    probe.State
	last     time.Time // start of the run before; zero before the first
	next     time.Time
	turn     turn
	index    int                // in the heap
	exec     bool               // what runs is a command
	stale    bool               // what runs had no fair chance, or asks what is asked no more: its result says nothing
	cancel   context.CancelFunc // ends what runs
	troubles int                // the prober's own, in a row
}

func newRound(start time.Time, log *slog.Logger) *round {
	return &round{log: log, start: start, planned: start.Add(never), pods: make(map[pod.Key]*share)}
}

// open reports whether there is anything to ask: the startup probe before the
// container has started, the others after it (C-1.29.6), and none whose verdict
// ends the container's life (C-1.29.9).
func (w *watched) open() bool {
	return w.started == (w.kind != pod.Startup) && !w.state.Final()
}

func (w *watched) request() pod.ProbeRequest {
	return pod.ProbeRequest{Probe: w.probe(), Container: w.container, ContainerID: w.containerID, PodIP: w.podIP}
}

// lives reports whether t is of the same life, and asks for the same.
func (w *watched) lives(t target) bool {
	return w.kind == t.kind && w.containerID == t.containerID && w.container.Name == t.container.Name
}

// woke notices that the prober woke up far later than it meant to: the process
// was stopped, or the machine slept. Probes that ran meanwhile had no fair chance,
// and what they say is thrown away (F5).
func (r *round) woke(now time.Time) {
	if !probe.Stalled(r.planned, now) {
		return
	}
	for _, p := range r.pods {
		for _, w := range p.list {
			w.stale = w.stale || w.turn == turnRunning
		}
	}
}

// until is when the prober has to wake up by itself.
func (r *round) until(now time.Time) time.Time {
	r.planned = now.Add(never)
	if r.execs+r.nets > 0 {
		r.planned = now.Add(heartbeat)
	}
	if len(r.waiting) > 0 && r.waiting[0].next.Before(r.planned) {
		r.planned = r.waiting[0].next
	}
	return r.planned
}

// due returns the probes to run now and counts them as running. What finds no
// slot keeps its place in the queue.
func (r *round) due(now time.Time) []*watched {
	for len(r.waiting) > 0 && !r.waiting[0].next.After(now) {
		w := heap.Pop(&r.waiting).(*watched)
		w.turn = turnQueued
		r.queue = append(r.queue, w)
	}
	var list []*watched
	queue := r.queue
	r.queue = queue[:0]
	for _, w := range queue {
		if w.turn != turnQueued {
			continue // it was called off
		}
		w.exec = w.probe().Exec != nil
		slots, most := &r.nets, netSlots
		if w.exec {
			slots, most = &r.execs, execSlots
		}
		if *slots >= most || w.share.running >= podSlots {
			r.queue = append(r.queue, w)
			continue
		}
		*slots++
		w.share.running++
		w.turn, w.last, w.stale = turnRunning, now, false
		list = append(list, w)
	}
	clear(queue[len(r.queue):])
	return list
}

// done takes the result of a probe that ran.
func (r *round) done(w *watched, err error, now time.Time) {
	if w.exec {
		r.execs--
	} else {
		r.nets--
	}
	w.share.running--
	if w.turn == turnLeft {
		return
	}
	w.turn = turnIdle
	if !w.stale && w.open() {
		r.count(w, err)
	}
	r.schedule(w, probe.Due(w.probe(), w.startedAt, w.last, now))
}

// count adds a result to what the ones before it said.
func (r *round) count(w *watched, err error) {
	var published bool
	var warning *pod.ProbeWarning
	if errors.As(err, &warning) { // it is well
		r.warn(w, warning)
		err = nil
	}
	if w.state, published = w.state.After(w.probe(), err); published {
		r.out = append(r.out, verdict{w.key, w.kind, w.container.Name, w.state.Verdict})
	}
	if r.tell(w, err); !probe.Trouble(err) {
		w.troubles = 0
		return
	}
	w.troubles++
	about := []any{"pod", w.key.String(), "container", w.container.Name, "probe", string(w.kind), "error", err}
	if p, ok := panics.Of(err); ok && w.troubles == 1 {
		r.log.Error("Probe panicked", append(about, "stack", string(p.Stack))...)
	} else if w.troubles == 2 && !errors.Is(err, pod.ErrUnavailable) { // once may be a container's end
		r.log.Warn("Probe cannot be run", about...)
	}
}

// tell tells of every attempt that fails, below the threshold too (C-1.29.17). That
// the runtime does not answer is the node's trouble.
func (r *round) tell(w *watched, err error) {
	if err == nil || r.say == nil || errors.Is(err, pod.ErrUnavailable) {
		return
	}
	kind := kindText(w.kind)
	if probe.Trouble(err) {
		if _, ours := panics.Of(err); !ours && w.troubles > 0 { // once may be a container's end
			r.say(w.target, eventUnhealthy, fmt.Sprintf("%s probe errored and resulted in unknown state: %v", kind, err))
		}
		return
	}
	r.say(w.target, eventUnhealthy, fmt.Sprintf("%s probe failed: %v", kind, err))
}

// warn tells of what a probe that has succeeded has to say.
func (r *round) warn(w *watched, warning *pod.ProbeWarning) {
	if r.say != nil {
		r.say(w.target, eventProbeWarning, fmt.Sprintf("%s probe warning: %s", kindText(w.kind), warning.Message))
	}
}

// kindText is a kind of probe at the beginning of a sentence.
func kindText(k pod.ProbeKind) string { return strings.ToUpper(string(k[:1])) + string(k[1:]) }

// schedule gives a probe that does not run its next time, or none.
func (r *round) schedule(w *watched, at time.Time) {
	if w.turn == turnWaiting {
		heap.Remove(&r.waiting, w.index)
	}
	if w.turn = turnIdle; w.open() {
		w.turn, w.next = turnWaiting, at
		heap.Push(&r.waiting, w)
	}
}

// take replaces the targets of one pod. A life that is already watched keeps
// its counters; what waits to be said of lives that are over is dropped.
func (r *round) take(set targetSet, now time.Time) {
	p := r.pods[set.key]
	if p == nil {
		p = &share{}
		r.pods[set.key] = p
	}
	before := p.list
	p.list = nil
	for _, t := range set.list {
		i := slices.IndexFunc(before, func(w *watched) bool { return w.lives(t) })
		if i < 0 {
			p.list = append(p.list, r.watch(p, t, now))
			continue
		}
		r.renew(before[i], t, now)
		p.list = append(p.list, before[i])
		before = slices.Delete(before, i, i+1)
	}
	for _, w := range before {
		r.leave(w)
	}
	if len(p.list) == 0 {
		delete(r.pods, set.key)
	}
}

// watch begins to watch one life.
func (r *round) watch(p *share, t target, now time.Time) *watched {
	w := &watched{target: t, share: p, state: probe.Begin(t.kind, t.containerID)}
	first := probe.Due(t.probe(), t.startedAt, time.Time{}, now)
	r.schedule(w, first.Add(probe.Spread(t.probe(), t.startedAt, r.start, now, rand.Float64())))
	return w
}

// renew takes what is new of a target that is watched already.
//
//	it was not open, and is now               first run as soon as its initial delay is over
//	readiness, started, not ready (C-1.29.19) the same: asked at once, and a period from there
//	another probe than before                 a period of its own from the run before
//	anything else                             as planned
func (r *round) renew(w *watched, t target, now time.Time) {
	opened := !w.open()
	edited := !equality.Semantic.DeepEqual(w.probe(), t.probe())
	w.target = t
	last := w.last
	switch {
	case w.turn == turnRunning:
		w.stale = w.stale || edited
		return
	case !w.open():
		r.schedule(w, now)
		return
	case w.turn == turnQueued:
		return
	case opened, t.kind == pod.Readiness && !t.ready && !last.IsZero():
		last = time.Time{}
	case !edited:
		return
	}
	r.schedule(w, probe.Due(w.probe(), w.startedAt, last, now))
}

// leave ends the watch, and what runs of it.
func (r *round) leave(w *watched) {
	switch w.turn {
	case turnWaiting:
		heap.Remove(&r.waiting, w.index)
	case turnRunning:
		w.cancel()
	}
	w.turn = turnLeft
	r.out = slices.DeleteFunc(r.out, func(v verdict) bool { return v.ContainerID == w.containerID && v.kind == w.kind })
}

// waiting is a heap of probes by the time they are due.
type waiting []*watched

func (h waiting) Len() int           { return len(h) }
func (h waiting) Less(i, j int) bool { return h[i].next.Before(h[j].next) }
func (h waiting) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *waiting) Push(x any) {
	w := x.(*watched)
	w.index = len(*h)
	*h = append(*h, w)
}

func (h *waiting) Pop() any {
	last := len(*h) - 1
	w := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return w
}
