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

// The kubelet's reasons of events.
const (
	reasonUnhealthy = "Unhealthy"
	reasonWarning   = "ProbeWarning"
)

// schedule holds every probe of the node and the time when each is due. Only the goroutine
// of Prober.Run uses it.
type schedule struct {
	log     *slog.Logger
	event   func(t Target, reason, message string)
	start   time.Time // of the agent
	wakeUp  time.Time // the latest time at which Run is going to wake up
	pods    map[pod.Key]*podTasks
	waiting waiting  // not due yet, the next one first
	queue   []*task  // due and without a slot, the oldest first
	unsent  []Status // not received by the sync loop yet
	execs   int      // exec probes that are running
	nets    int      // other probes that are running
}

// podTasks are the probes of one pod.
type podTasks struct {
	list    []*task
	running int
}

// maxSleep is the longest time between two wake-ups of Run. Run also wakes up this often if
// no probe is due.
const maxSleep = 24 * time.Hour

// phase says whether a task is in the heap or in the queue, or runs.
type phase int

const (
	phaseIdle    phase = iota // not active: only other targets can make it active
	phasePending              // in the heap, not due yet
	phaseQueued               // in the queue: due, and waits for a slot
	phaseRunning              // its probe has a goroutine
	phaseRemoved              // its pod has no such target any more; its canceled run may not have ended yet
)

// task is the schedule's entry for one target.
type task struct {
	Target
	pod    *podTasks
	state  probe.State
	last   time.Time // start of the newest run; zero before the first
	next   time.Time // when it is due, in phasePending
	phase  phase
	index  int                // in the heap
	exec   bool               // the newest run has an exec slot, else a net slot
	stale  bool               // the process was stopped during the run, or the probe was edited: discard its result
	cancel context.CancelFunc // cancels the run

	errorsInARow int // how many of the newest runs, in a row, ended with an error of the prober
}

func newSchedule(start time.Time, log *slog.Logger, event func(t Target, reason, message string)) *schedule {
	return &schedule{log: log, event: event, start: start, wakeUp: start.Add(maxSleep), pods: make(map[pod.Key]*podTasks)}
}

// active reports whether the probe is to run. The startup probe runs until the container
// has started, the others run after that (C-1.29.6). No probe runs once its status is final:
// a failure of liveness, or any status of the startup probe (C-1.29.9).
func (t *task) active() bool {
	return t.Started == (t.Kind != pod.Startup) && !t.state.Final()
}

func (t *task) request() pod.ProbeRequest {
	return pod.ProbeRequest{Probe: t.Probe(), Container: t.Container, ContainerID: t.ContainerID, PodIP: t.PodIP}
}

// hasTarget reports whether o is the target of t, perhaps with changes: the same kind of
// probe of the same container ID.
func (t *task) hasTarget(o Target) bool {
	return t.Kind == o.Kind && t.ContainerID == o.ContainerID && t.Container.Name == o.Container.Name
}

// noteStall marks the running probes as stale if Run woke up far later than planned. Then
// the process was stopped or the machine slept, and the probes may have failed only because
// of that (F5).
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

// nextWakeUp returns when Run has to wake up if neither targets nor results arrive before.
func (s *schedule) nextWakeUp(now time.Time) time.Time {
	s.wakeUp = now.Add(maxSleep)
	if s.execs+s.nets > 0 {
		s.wakeUp = now.Add(heartbeat)
	}
	if len(s.waiting) > 0 && s.waiting[0].next.Before(s.wakeUp) {
		s.wakeUp = s.waiting[0].next
	}
	return s.wakeUp
}

// startDue moves the due tasks to the queue. It returns those for which there is a slot, and
// counts them as running. The others keep their place in the queue.
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
			continue // it was removed, or is no longer active
		}
		t.exec = t.Probe().Exec != nil
		running, limit := &s.nets, netSlots
		if t.exec {
			running, limit = &s.execs, execSlots
		}
		if *running >= limit || t.pod.running >= podSlots {
			s.queue = append(s.queue, t)
			continue
		}
		*running++
		t.pod.running++
		t.phase, t.last, t.stale = phaseRunning, now, false
		list = append(list, t)
	}
	clear(queue[len(s.queue):])
	return list
}

// finish frees the slots of a run that has ended, applies its result, and plans the next run.
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

// apply applies the result of a run to the task's status. It sends events, queues the status
// if it changed, and logs errors.
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
	if s.report(t, err); !probe.IsProberError(err) {
		t.errorsInARow = 0
		return
	}
	t.errorsInARow++
	about := []any{"pod", t.Key.String(), "container", t.Container.Name, "probe", string(t.Kind), "error", err}
	if p, ok := panics.Of(err); ok && t.errorsInARow == 1 {
		s.log.Error("Probe panicked", append(about, "stack", string(p.Stack))...)
	} else if t.errorsInARow == 2 && !errors.Is(err, pod.ErrUnavailable) { // the first one may be due to the container's exit
		s.log.Warn("Failed to run probe", about...)
	}
}

// report sends an event for every failure, below the threshold too (C-1.29.17), and from the
// second run in a row for which the probe could not be run. It sends none for a panic, and none
// if the runtime does not answer: that is a problem of the node and not of the pod.
func (s *schedule) report(t *task, err error) {
	if err == nil || errors.Is(err, pod.ErrUnavailable) {
		return
	}
	kind := title(t.Kind)
	if probe.IsProberError(err) {
		if _, panicked := panics.Of(err); !panicked && t.errorsInARow > 0 { // the first one may be due to the container's exit
			s.event(t.Target, reasonUnhealthy, fmt.Sprintf("%s probe errored and resulted in unknown state: %v", kind, err))
		}
		return
	}
	s.event(t.Target, reasonUnhealthy, fmt.Sprintf("%s probe failed: %v", kind, err))
}

// title returns the kind of a probe with a capital letter.
func title(k pod.ProbeKind) string { return strings.ToUpper(string(k[:1])) + string(k[1:]) }

// plan makes a task due at a time, or idle if it is not active. Its probe must not be running.
func (s *schedule) plan(t *task, at time.Time) {
	if t.phase == phasePending {
		heap.Remove(&s.waiting, t.index)
	}
	if t.phase = phaseIdle; t.active() {
		t.phase, t.next = phasePending, at
		heap.Push(&s.waiting, t)
	}
}

// setTargets replaces the targets of one pod. A task whose target is still in the set keeps
// its status and its counters. The other tasks are removed, with their unsent statuses.
func (s *schedule) setTargets(set podTargets, now time.Time) {
	p := s.pods[set.key]
	if p == nil {
		p = &podTasks{}
		s.pods[set.key] = p
	}
	before := p.list
	p.list = nil
	for _, target := range set.list {
		i := slices.IndexFunc(before, func(t *task) bool { return t.hasTarget(target) })
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

// add returns a new task of a pod and plans its first run.
func (s *schedule) add(p *podTasks, target Target, now time.Time) *task {
	t := &task{Target: target, pod: p, state: probe.Begin(target.Kind, target.ContainerID)}
	first := probe.Due(t.Probe(), t.StartedAt, time.Time{}, now)
	s.plan(t, first.Add(probe.Spread(t.Probe(), t.StartedAt, s.start, now, rand.Float64())))
	return t
}

// update sets the target of a task and plans its next run accordingly.
func (s *schedule) update(t *task, target Target, now time.Time) {
	wasActive := t.active()
	edited := !equality.Semantic.DeepEqual(t.Probe(), target.Probe())
	t.Target = target
	switch {
	case t.phase == phaseRunning:
		t.stale = t.stale || edited // finish plans the next run
	case !t.active():
		s.plan(t, now) // idle
	case t.phase == phaseQueued: // it runs as soon as it gets a slot
	case !wasActive, t.Kind == pod.Readiness && !t.Ready && !t.last.IsZero():
		// A probe that becomes active runs once its initial delay is over. So does the
		// readiness probe of a container that is not ready (C-1.29.19), after its first run.
		s.plan(t, probe.Due(t.Probe(), t.StartedAt, time.Time{}, now))
	case edited: // its new period counts from the last run
		s.plan(t, probe.Due(t.Probe(), t.StartedAt, t.last, now))
	}
}

// remove removes a task from the heap, cancels its run, and drops its unsent statuses.
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

// waiting is a heap of tasks; the first one is due first.
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
