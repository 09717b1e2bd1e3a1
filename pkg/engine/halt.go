package engine

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podview"
	"github.com/nodectl/nodectl/pkg/shutdown"
	"github.com/nodectl/nodectl/pkg/status"
)

// Halt is why and how all pods of the node stop, and why none starts.
type Halt struct {
	plan.HaltReason // shown by pods that do not run
	Order           shutdown.Order
	// Shutdown says that the machine shuts down: pods of an API server end as Failed (C-1.36.2).
	// Any other pod that was stopped starts again when it may.
	Shutdown bool
}

// same reports whether two halts stop the same pods in the same way.
func (h Halt) same(o Halt) bool {
	a, b := h.Order.MaxGrace, o.Order.MaxGrace
	return h.HaltReason == o.HaltReason && h.Shutdown == o.Shutdown && slices.Equal(h.Order.Classes, o.Order.Classes) &&
		(a == nil) == (b == nil) && (a == nil || *a == *b)
}

// Halt stops all pods in order, each within its grace, and starts none until Resume. It returns
// when the sync loop has the request. The sync loop closes ended when each pod has stopped or has
// used up its time, or at Resume. Another Halt replaces the one before; an equal one continues it.
// An agent that starts while the node is halted needs Config.Halted, so that it starts nothing
// before the first call. Halt returns an error if ctx ends before the sync loop has the request, or
// after a minute.
func (e *Engine) Halt(ctx context.Context, h Halt) (ended <-chan struct{}, err error) {
	done := make(chan struct{})
	return done, e.sendHalt(ctx, haltRequest{halt: &h, ended: done})
}

// Resume lets pods start again. It returns as Halt does.
func (e *Engine) Resume(ctx context.Context) error { return e.sendHalt(ctx, haltRequest{}) }

func (e *Engine) sendHalt(ctx context.Context, r haltRequest) error {
	ctx, cancel := context.WithTimeout(ctx, operationTimeout)
	defer cancel()
	select {
	case e.halts <- r:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the sync loop is not responding: %w", ctx.Err())
	}
}

// haltRequest is a call of Halt, or of Resume.
type haltRequest struct {
	halt  *Halt // nil: resume
	ended chan struct{}
}

// halting is the halt of the node, as the sync loop carries it out.
type halting struct {
	halt     *Halt // nil: pods may run
	progress shutdown.Progress
	again    <-chan time.Time // fires when the next decision is due; nil: after the next report
	waiters  []chan struct{}  // closed when the halt has finished
	over     bool             // each pod has stopped, or its time is over
}

// podHalt is the effect of the node's halt on one pod.
type podHalt struct {
	plan.HaltReason       // zero: the node is not halted
	shutdown        bool  // see Halt.Shutdown
	stop            bool  // the order has reached the pod: it stops
	limit           int64 // in seconds; if the pod's own grace is shorter, that one applies
}

// terminates reports whether the halt ends the pod as Failed now.
func (h podHalt) terminates(want *pod.Spec) bool {
	return h.stop && h.shutdown && want != nil && want.Origin.FromAPI() && !deleting(want)
}

// haltOf returns the effect of the halt on a pod.
func (l *loop) haltOf(e *entry) (h podHalt) {
	if of := l.nodeState.halting.halt; of != nil {
		h = podHalt{of.HaltReason, of.Shutdown, !e.haltBegun.IsZero(), e.haltLimit}
	}
	return h
}

// handleHalt begins a halt of the node, replaces the one in progress, or ends it.
func (l *loop) handleHalt(ctx context.Context, r haltRequest) {
	h := &l.nodeState.halting
	if r.halt != nil && h.halt != nil && h.halt.same(*r.halt) { // the one in progress continues
		if h.over {
			close(r.ended)
		} else {
			h.waiters = append(h.waiters, r.ended)
		}
		return
	}
	waiters := h.waiters
	*h = halting{halt: r.halt}
	if r.halt != nil {
		h.waiters = slices.Concat(waiters, []chan struct{}{r.ended})
		l.log.Info("Stopping all pods", "reason", r.halt.Message)
	} else {
		for _, w := range waiters {
			close(w)
		}
		l.log.Info("Pods may start again")
	}
	for _, e := range l.sorted() {
		e.haltBegun, e.haltLimit = time.Time{}, 0
		if e.updates != nil {
			l.queueUpdate(e, true)
		}
	}
	if l.start.dispatching() {
		l.admit(ctx)
	}
}

// continueHalt stops the pods that shutdown.Order.Next names now.
func (l *loop) continueHalt() {
	h := &l.nodeState.halting
	if h.halt == nil || !l.start.dispatching() || h.over && !l.hasNewToHalt() {
		return
	}
	h.over = false
	entries, pods := l.haltedPods()
	now := time.Now()
	d := h.halt.Order.Next(pods, &h.progress, now)
	for _, s := range d.Stops {
		e := entries[s.Pod]
		e.haltBegun, e.haltLimit = now, s.Limit
		l.queueUpdate(e, true)
		if e.last != nil && e.last.runs {
			grace := podview.GraceDuration(min(pods[s.Pod].Grace, s.Limit))
			l.log.Info("Stopping pod", "pod", e.key.String(), "reason", h.halt.Message, "grace", grace.String())
		}
	}
	h.again = nil
	if !d.Again.IsZero() {
		h.again = time.After(d.Again.Sub(now))
	}
	if d.Done {
		h.over = true
		for _, w := range h.waiters {
			close(w)
		}
		h.waiters = nil
		running := 0
		for _, e := range entries {
			if e.last != nil && e.last.runs {
				running++
			}
		}
		if running > 0 {
			l.log.Warn("Pods still run after their grace period", "pods", running)
		} else {
			l.log.Info("Finished stopping all pods")
		}
	}
}

// hasNewToHalt reports whether a finished halt has to continue: the loop has admitted a pod since,
// because the source of the pod answered only then.
func (l *loop) hasNewToHalt() bool {
	for _, e := range l.pods {
		if e.admitted && e.haltBegun.IsZero() {
			return true
		}
	}
	return false
}

// haltedPods returns the entries, and each of them as a pod of package shutdown. Orphaned pods
// whose source has not answered are not among them: they continue until it answers.
func (l *loop) haltedPods() ([]*entry, []shutdown.Pod) {
	entries := l.sorted()
	index := make(map[*entry]int, len(entries))
	for i, e := range entries {
		index[e] = i
	}
	pods := make([]shutdown.Pod, len(entries))
	for i, e := range entries {
		pods[i] = shutdown.Pod{Key: e.key, Grace: podview.Grace(e.counted(), nil, pod.Actual{}), Begun: e.haltBegun}
		if spec := e.counted(); spec != nil {
			pods[i].Priority = plan.Priority(spec)
		}
		pods[i].Ended = e.updates == nil && !e.admitted || // it never ran here
			!e.haltBegun.IsZero() && e.last != nil && e.last.gen == e.gen && !e.last.busy && !e.last.runs
		for _, d := range l.order.dependents[e.key] {
			if j, known := index[d]; known && l.maySee(d, e) {
				pods[i].Dependents = append(pods[i].Dependents, j)
			}
		}
	}
	return entries, pods
}

// noteHalt records that the halt stops the instance, once podHalt.stop is set. If a stop has
// already begun, the halt can only shorten it.
func (w *worker) noteHalt() {
	h := w.update.halt
	if !h.stop || !w.last.looked || w.rec.Terminal != "" || w.rec.Instance == 0 {
		return
	}
	if h.terminates(w.update.want) && w.rec.StopSince.IsZero() {
		w.noteShutdown()
		w.rec.StopGrace = new(min(h.limit, w.last.grace))
		w.save()
		return
	}
	if !w.last.runs {
		return
	}
	now := time.Now()
	grace := min(h.limit, w.last.grace)
	if w.rec.StopSince.IsZero() {
		w.rec.StopSince, w.rec.StopAsked, w.rec.StopReason = now, true, "the node was "+map[bool]string{true: "shut down", false: "drained"}[h.shutdown]
	} else {
		left := int64(math.MaxInt64)
		if spent := int64(now.Sub(w.rec.StopSince).Seconds()); h.limit < left-spent {
			left = spent + h.limit
		}
		grace = min(left, podview.StopGrace(w.rec.Record, pod.Actual{}))
		if had := w.rec.StopGrace; w.rec.StopAsked && had != nil && *had <= grace {
			return
		}
		w.rec.StopAsked = true
	}
	w.rec.StopGrace, w.rec.dirty = &grace, true
	w.save()
}

// noteShutdown records that the shutdown ends the instance of an API server's pod.
func (w *worker) noteShutdown() {
	w.rec.Terminal, w.rec.dirty = v1.PodFailed, true
	w.rec.TerminalReason, w.rec.TerminalMessage = status.TerminatedByShutdown, status.ShutdownMessage
}

// shutDownUnstarted records the end of an API server's pod that has not started here, so that no
// later agent starts it.
func (w *worker) shutDownUnstarted(ctx context.Context, want *pod.Spec) error {
	if err := w.beginInstance(ctx, want, 1); err != nil {
		return err
	}
	w.noteShutdown()
	return nil
}

// haltDeadline returns when a stop in progress has to end because of the halt; ok is false if the
// halt sets no limit.
func (h podHalt) haltDeadline(now time.Time) (at time.Time, ok bool) {
	if !h.stop || h.limit > podview.LongestGrace {
		return time.Time{}, false
	}
	return now.Add(podview.GraceDuration(h.limit)), true
}
