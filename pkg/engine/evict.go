package engine

import (
	"context"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/backoff"
	"github.com/nodectl/nodectl/pkg/pod"
)

// Eviction says which pod to evict, why, and with which grace.
type Eviction struct {
	UID     string // the UID that the pod must have
	Grace   int64  // in seconds; if the pod's own grace is shorter, that one applies
	Message string // the message of the pod's status
	// Cause has the facts for the annotations of the event.
	Cause pod.EvictionCause
	// Condition is the pressure of the node that is the cause. It is "" if the pod exceeds a
	// limit of its own storage. A static pod that was evicted for a pressure starts again after
	// that pressure and a back-off; any other evicted pod stays Failed.
	Condition v1.NodeConditionType

	instance int // the instance that was measured; 0: the current one
}

// Evict ends the current instance of a pod with the phase Failed and the reason Evicted
// (C-1.35.7). It returns as Restart does, with one difference. If ctx ends after a worker has begun
// the eviction, Evict returns nil. So after an error no worker begins the eviction, and the caller
// may evict another pod instead.
func (e *Engine) Evict(ctx context.Context, key pod.Key, ev Eviction) error {
	return e.request(ctx, &operation{kind: opEvict, key: key, uid: ev.UID, eviction: &ev})
}

// SetPressure sets the pressure conditions of the node. Admission refuses pods because of them
// (C-1.31). A static pod that was evicted for a pressure starts again after that pressure has ended.
// SetPressure returns when the sync loop has the conditions, or ctx has ended. Before the first call
// admission refuses no pod because of a pressure, and no evicted pod starts again.
func (e *Engine) SetPressure(ctx context.Context, now []v1.NodeConditionType) {
	select {
	case e.pressures <- slices.Clone(now):
	case <-ctx.Done():
	}
}

// pressures are the pressures of the node, as the sync loop knows them, and the pods that were
// evicted for them.
type pressures struct {
	evicted map[pod.Key]bool // static pods that start again after a pressure
	known   bool             // SetPressure was called
	now     []v1.NodeConditionType
	ended   map[v1.NodeConditionType]time.Time // when each ended last, while this agent ran
	since   time.Time                          // when SetPressure was first called
}

// handlePressure notes the pressures of the node. If they have changed, admission judges again.
func (l *loop) handlePressure(ctx context.Context, now []v1.NodeConditionType) {
	p := &l.nodeState.pressure
	if !p.known {
		p.since, p.ended = time.Now(), make(map[v1.NodeConditionType]time.Time)
	}
	for _, c := range p.now {
		if !slices.Contains(now, c) {
			p.ended[c] = time.Now()
		}
	}
	changed := !slices.Equal(p.now, now)
	p.known, p.now = true, now
	if changed {
		l.admit(ctx)
	}
}

// The back-off of an evicted pod begins at evictionBackoff and doubles with each eviction, up to
// evictionBackoffMax. After an instance that ran for evictionReset, it begins again.
const (
	evictionBackoff    = 10 * time.Second
	evictionBackoffMax = 5 * time.Minute
	evictionReset      = 10 * time.Minute
)

// revive starts evicted static pods again, once the pressure that they were evicted for has ended
// and the back-off is over.
func (l *loop) revive(ctx context.Context) {
	if !l.nodeState.pressure.known {
		return
	}
	for _, key := range sortedKeys(l.nodeState.pressure.evicted) {
		e := l.pods[key]
		if e == nil || e.last == nil || e.last.eviction == nil {
			delete(l.nodeState.pressure.evicted, key)
			continue
		}
		eviction := e.last.eviction
		if eviction.Over || e.want == nil || deleting(e.want) || e.last.busy || slices.Contains(l.nodeState.pressure.now, eviction.Condition) {
			continue
		}
		since := eviction.At
		for _, t := range []time.Time{l.nodeState.pressure.since, l.nodeState.pressure.ended[eviction.Condition]} {
			if t.After(since) {
				since = t
			}
		}
		if time.Since(since) < backoff.After(eviction.Count, evictionBackoff, evictionBackoffMax) {
			continue
		}
		delete(l.nodeState.pressure.evicted, key) // the worker's next report adds it again if it is still due
		l.handleOperation(ctx, &operation{kind: opRevive, key: key, answer: make(chan error, 1)})
	}
}

// noteEvicted updates pressures.evicted by a report.
func (l *loop) noteEvicted(r *report) {
	if e := r.eviction; e != nil && e.Condition != "" && !e.Over && !r.origin.FromAPI() {
		l.nodeState.pressure.evicted[r.key] = true
	} else {
		delete(l.nodeState.pressure.evicted, r.key)
	}
}

// mayEvict returns a *RefusedError if the pod cannot be evicted.
func (e *entry) mayEvict(o *operation) error {
	switch {
	case !e.has(o.uid):
		return otherUID(o.key)
	case e.want == nil, deleting(e.want):
		return &RefusedError{fmt.Sprintf("pod %s is being deleted", o.key)}
	case e.ended:
		return &RefusedError{fmt.Sprintf("pod %s has terminated", o.key)}
	}
	return nil
}

// noteEviction records that the instance has Failed. The plan then stops its running containers.
func (w *worker) noteEviction(asked *operation) error {
	o := asked.eviction
	switch {
	case w.rec.Instance == 0 || w.last.empty, o.instance > 0 && o.instance != w.rec.Instance, o.UID != w.rec.UID:
		return &RefusedError{fmt.Sprintf("pod %s has another instance by now", w.key)}
	case w.rec.Terminal != "":
		return &RefusedError{fmt.Sprintf("pod %s has terminated", w.key)}
	case !w.rec.StopSince.IsZero():
		return &RefusedError{fmt.Sprintf("pod %s is being stopped", w.key)}
	case !asked.begin():
		return &RefusedError{fmt.Sprintf("the eviction of pod %s was withdrawn", w.key)}
	}
	now := time.Now()
	count := 0 // of evictions for a pressure, see evictionBackoff
	if o.Condition != "" {
		count = 1
		if last := w.rec.Eviction; last != nil && now.Sub(w.rec.StartTime) < evictionReset {
			count += last.Count
		}
	}
	w.rec.Terminal, w.rec.TerminalReason, w.rec.TerminalMessage = v1.PodFailed, eventEvicted, o.Message
	w.rec.Eviction = &pod.Eviction{Instance: w.rec.Instance, At: now, Grace: o.Grace, Condition: o.Condition, Count: count}
	w.rec.dirty = true
	w.log.Warn("Evicting pod", "message", o.Message)
	if w.update.want != nil {
		w.env.recorder.annotated(w.key, w.update.want.UID(), "", pod.EventWarning, eventEvicted, o.Message, o.Cause.Annotations())
	}
	return nil
}

// noteRevived records that the pressure that the pod was evicted for is over.
func (w *worker) noteRevived() {
	if e := w.rec.Evicted(); e != nil {
		over := *e // reports share the old one
		over.Over = true
		w.rec.Eviction, w.rec.dirty = &over, true
	}
}
