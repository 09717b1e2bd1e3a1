package prober

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

// Reasons of events, as the kubelet has them.
const (
	reasonUnhealthy = "Unhealthy"
	reasonWarning   = "ProbeWarning"
)

// schedule is every probe of the node, and when each is due. It belongs to the prober's
// goroutine, which passes the time to it.
type schedule struct {
	log     *slog.Logger
	event   func(t Target, reason, message string)
	start   time.Time // of the agent
	wakeUp  time.Time // when the prober means to wake up, at the latest
	pods    map[pod.Key]*podTasks
	waiting waiting  // by the time they are due
	queue   []*task  // due, first come first served
	unsent  []Status // not received by the sync loop yet
	execs   int      // running
	nets    int      // running
}

// podTasks are the probes of one pod.
type podTasks struct {
	list    []*task
	running int
}

// never is longer than any probe waits: a prober without probes wakes up this often.
const never = 24 * time.Hour

// phase is where a task is between two runs of its probe.
type phase int

const (
	phaseIdle    phase = iota // not active, until its targets change
	phasePending              // in the heap
	phaseQueued               // due, and waits for a slot
	phaseRunning              // has a goroutine
	phaseRemoved              // its container or its pod is gone
)

// task is one probe of the schedule.
type task struct {
	Target
	pod    *podTasks
	state  probe.State
	last   time.Time // start of the run before; zero before the first
	next   time.Time
	phase  phase
	index  int                // in the heap
	exec   bool               // the run is a command
	stale  bool               // the process was stopped during the run, or the probe was edited: its result does not count
	cancel context.CancelFunc // ends the run
	errors int                // runs in a row that ended in an error of the prober's own
}

func newSchedule(start time.Time, log *slog.Logger, event func(t Target, reason, message string)) *schedule {
	return &schedule{log: log, event: event, start: start, wakeUp: start.Add(never), pods: make(map[pod.Key]*podTasks)}
}

// active reports whether the probe runs: the startup probe before the container has
// started, the others after it (C-1.29.6), and none whose result ends the container
// (C-1.29.9).
func (t *task) active() bool {
	return t.Started == (t.Kind != pod.Startup) && !t.state.Final()
}

func (t *task) request() pod.ProbeRequest {
	return pod.ProbeRequest{Probe: t.Probe(), Container: t.Container, ContainerID: t.ContainerID, PodIP: t.PodIP}
}

// isOf reports whether o is the same probe of the same run of the container.
func (t *task) isOf(o Target) bool {
	return t.Kind == o.Kind && t.ContainerID == o.ContainerID && t.Container.Name == o.Container.Name
}

// noteStall discards the results of running probes when the prober woke up far later than
// planned: the process was stopped, or the machine slept, and the probes may have failed for
// that (F5).
func (s *schedule) noteStall(now time.Time) {
	if !probe.Stalled(s.wakeUp, now) {
		return
	}
	for _, p := range s.pods {
		for _, t := range p.list {
			t.stale = t.stale || t.phase == phaseRunning
		}
	}
}

// nextWakeUp is when the prober has to wake up by itself.
func (s *schedule) nextWakeUp(now time.Time) time.Time {
	s.wakeUp = now.Add(never)
	if s.execs+s.nets > 0 {
		s.wakeUp = now.Add(heartbeat)
	}
	if len(s.waiting) > 0 && s.waiting[0].next.Before(s.wakeUp) {
		s.wakeUp = s.waiting[0].next
	}
	return s.wakeUp
}

// startDue returns the probes to run now and counts them as running. A probe that finds
// no slot keeps its place in the queue.
func (s *schedule) startDue(now time.Time) []*task {
	for len(s.waiting) > 0 && !s.waiting[0].next.After(now) {
		t := heap.Pop(&s.waiting).(*task)
		t.phase = phaseQueued
		s.queue = append(s.queue, t)
	}
	var list []*task
	queue := s.queue
	s.queue = queue[:0]
	for _, t := range queue {
		if t.phase != phaseQueued {
			continue // it was removed, or is not active any more
		}
		t.exec = t.Probe().Exec != nil
		slots, most := &s.nets, netSlots
		if t.exec {
			slots, most = &s.execs, execSlots
		}
		if *slots >= most || t.pod.running >= podSlots {
			s.queue = append(s.queue, t)
			continue
		}
		*slots++
		t.pod.running++
		t.phase, t.last, t.stale = phaseRunning, now, false
		list = append(list, t)
	}
	clear(queue[len(s.queue):])
	return list
}

// finish takes the result of a probe that ran.
func (s *schedule) finish(t *task, err error, now time.Time) {
	if t.exec {
		s.execs--
	} else {
		s.nets--
	}
	t.pod.running--
	if t.phase == phaseRemoved {
		return
	}
	t.phase = phaseIdle
	if !t.stale && t.active() {
		s.apply(t, err)
	}
	s.plan(t, probe.Due(t.Probe(), t.StartedAt, t.last, now))
}

// apply adds a result to those before it, and reports what changed by it.
func (s *schedule) apply(t *task, err error) {
	var changed bool
	var warning *pod.ProbeWarning
	if errors.As(err, &warning) { // the probe has succeeded
		s.event(t.Target, reasonWarning, fmt.Sprintf("%s probe warning: %s", title(t.Kind), warning.Message))
		err = nil
	}
	if t.state, changed = t.state.After(t.Probe(), err); changed {
		s.unsent = append(s.unsent, Status{t.Key, t.Kind, t.Container.Name, t.state.Status})
	}
	if s.report(t, err); !probe.Trouble(err) {
		t.errors = 0
		return
	}
	t.errors++
	about := []any{"pod", t.Key.String(), "container", t.Container.Name, "probe", string(t.Kind), "error", err}
	if p, ok := panics.Of(err); ok && t.errors == 1 {
		s.log.Error("Probe panicked", append(about, "stack", string(p.Stack))...)
	} else if t.errors == 2 && !errors.Is(err, pod.ErrUnavailable) { // a single error may be the container's end
		s.log.Warn("Failed to run probe", about...)
	}
}

// report sends an event for every run that fails, below the threshold too (C-1.29.17). If the
// runtime does not answer, that is the node's problem, and no event of the pod.
func (s *schedule) report(t *task, err error) {
	if err == nil || errors.Is(err, pod.ErrUnavailable) {
		return
	}
	kind := title(t.Kind)
	if probe.Trouble(err) {
		if _, panicked := panics.Of(err); !panicked && t.errors > 0 { // a single error may be the container's end
			s.event(t.Target, reasonUnhealthy, fmt.Sprintf("%s probe errored and resulted in unknown state: %v", kind, err))
		}
		return
	}
	s.event(t.Target, reasonUnhealthy, fmt.Sprintf("%s probe failed: %v", kind, err))
}

// title is a kind of probe with a capital letter.
func title(k pod.ProbeKind) string { return strings.ToUpper(string(k[:1])) + string(k[1:]) }

// plan gives a probe that does not run its next time, or none if it is not active.
func (s *schedule) plan(t *task, at time.Time) {
	if t.phase == phasePending {
		heap.Remove(&s.waiting, t.index)
	}
	if t.phase = phaseIdle; t.active() {
		t.phase, t.next = phasePending, at
		heap.Push(&s.waiting, t)
	}
}

// setTargets replaces the targets of one pod. A probe of the same run of a container keeps
// its counters; unsent statuses of runs that are over are dropped.
func (s *schedule) setTargets(set podTargets, now time.Time) {
	p := s.pods[set.key]
	if p == nil {
		p = &podTasks{}
		s.pods[set.key] = p
	}
	before := p.list
	p.list = nil
	for _, target := range set.list {
		i := slices.IndexFunc(before, func(t *task) bool { return t.isOf(target) })
		if i < 0 {
			p.list = append(p.list, s.add(p, target, now))
			continue
		}
		s.update(before[i], target, now)
		p.list = append(p.list, before[i])
		before = slices.Delete(before, i, i+1)
	}
	for _, t := range before {
		s.remove(t)
	}
	if len(p.list) == 0 {
		delete(s.pods, set.key)
	}
}

// add adds a probe to a pod.
func (s *schedule) add(p *podTasks, target Target, now time.Time) *task {
	t := &task{Target: target, pod: p, state: probe.Begin(target.Kind, target.ContainerID)}
	first := probe.Due(t.Probe(), t.StartedAt, time.Time{}, now)
	s.plan(t, first.Add(probe.Spread(t.Probe(), t.StartedAt, s.start, now, rand.Float64())))
	return t
}

// update takes what changed of the target of a task.
//
//	it was not active, and is now             first run as soon as its initial delay is over
//	readiness, started, not ready (C-1.29.19) the same: probed at once, and a period from there
//	another probe than before                 a period of its own from the run before
//	anything else                             as planned
func (s *schedule) update(t *task, target Target, now time.Time) {
	activated := !t.active()
	edited := !equality.Semantic.DeepEqual(t.Probe(), target.Probe())
	t.Target = target
	last := t.last
	switch {
	case t.phase == phaseRunning:
		t.stale = t.stale || edited
		return
	case !t.active():
		s.plan(t, now)
		return
	case t.phase == phaseQueued:
		return
	case activated, target.Kind == pod.Readiness && !target.Ready && !last.IsZero():
		last = time.Time{}
	case !edited:
		return
	}
	s.plan(t, probe.Due(t.Probe(), t.StartedAt, last, now))
}

// remove ends a task, and its run.
func (s *schedule) remove(t *task) {
	switch t.phase {
	case phasePending:
		heap.Remove(&s.waiting, t.index)
	case phaseRunning:
		t.cancel()
	}
	t.phase = phaseRemoved
	s.unsent = slices.DeleteFunc(s.unsent, func(u Status) bool { return u.ContainerID == t.ContainerID && u.Kind == t.Kind })
}

// waiting is a heap of tasks by the time they are due.
type waiting []*task

func (h waiting) Len() int           { return len(h) }
func (h waiting) Less(i, j int) bool { return h[i].next.Before(h[j].next) }
func (h waiting) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *waiting) Push(x any) {
	t := x.(*task)
	t.index = len(*h)
	*h = append(*h, t)
}

func (h *waiting) Pop() any {
	last := len(*h) - 1
	t := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return t
}
