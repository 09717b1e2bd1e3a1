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

// Eviction is why a pod has to end, and how.
type Eviction struct {
	UID string
	// Grace is the most seconds that its containers get to stop; the pod's own grace is the
	// limit, too.
	Grace   int64
	Message string // of its status
	// Condition is the pressure of the node that it is evicted for; "" is a limit of its own
	// storage. A static pod that was evicted for pressure starts again some time after the
	// pressure has ended; any other evicted pod stays Failed.
	Condition v1.NodeConditionType

	instance int // the instance that was measured; 0: the current one
}

// Evict ends the current instance of a pod with the phase Failed and the reason Evicted
// (C-1.35.7). It returns when the eviction has been recorded: this agent, or the next one, stops
// the containers. If the disk takes no record, only this agent does. An error is ErrNoPod, a
// *RefusedError, or a timeout at the end of ctx, or after a minute. After the end of ctx the pod
// is not evicted any more: the caller may have chosen another one.
func (e *Engine) Evict(ctx context.Context, key pod.Key, ev Eviction) error {
	until, _ := ctx.Deadline()
	return e.request(ctx, &operation{kind: opEvict, key: key, uid: ev.UID, eviction: &ev, until: until})
}

// SetPressure sets the pressures that the node is under. Admission refuses pods for them
// (C-1.31), and pods that were evicted for a pressure start again after it. It returns when
// the sync loop has them, or ctx has ended. Before the first call the pressures are not known:
// admission refuses no pod for them, and no evicted pod starts again.
func (e *Engine) SetPressure(ctx context.Context, now []v1.NodeConditionType) {
	select {
	case e.pressures <- slices.Clone(now):
	case <-ctx.Done():
	}
}

// pressures are those of the node, as the sync loop knows them, and what they have evicted.
type pressures struct {
	evicted map[pod.Key]bool // static pods that start again after a pressure
	known   bool
	now     []v1.NodeConditionType
	ended   map[v1.NodeConditionType]time.Time // since when one that this agent has seen is over
	since   time.Time                          // when they became known
}

// handlePressure notes the pressures of the node. A change lets admission judge again.
func (l *loop) handlePressure(ctx context.Context, now []v1.NodeConditionType) {
	p := &l.view.pressure
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

// The delay before an evicted pod starts again doubles with each eviction in a row, as a
// crash's back-off does. An instance that ran for evictionReset ends the row.
const (
	evictionBackoff    = 10 * time.Second
	evictionBackoffMax = 5 * time.Minute
	evictionReset      = 10 * time.Minute
)

// revive starts static pods again that were evicted for a pressure of the node, once that has
// ended and the back-off is over.
func (l *loop) revive(ctx context.Context) {
	if !l.view.pressure.known {
		return
	}
	for _, key := range sortedKeys(l.view.pressure.evicted) {
		e := l.pods[key]
		if e == nil || e.last == nil || e.last.eviction == nil {
			delete(l.view.pressure.evicted, key)
			continue
		}
		of := e.last.eviction
		if of.Over || e.want == nil || deleting(e.want) || e.last.busy || slices.Contains(l.view.pressure.now, of.Condition) {
			continue
		}
		since := of.At
		for _, t := range []time.Time{l.view.pressure.since, l.view.pressure.ended[of.Condition]} {
			if t.After(since) {
				since = t
			}
		}
		if time.Since(since) < backoff.After(of.Count, evictionBackoff, evictionBackoffMax) {
			continue
		}
		delete(l.view.pressure.evicted, key) // the worker's next report adds it again if it is still due
		l.handleOperation(ctx, &operation{kind: opRevive, key: key, answer: make(chan error, 1)})
	}
}

// noteEvicted keeps pressures.evicted current: the pods that revive looks at.
func (l *loop) noteEvicted(r *report) {
	if e := r.eviction; e != nil && e.Condition != "" && !e.Over && !r.origin.FromAPI() {
		l.view.pressure.evicted[r.key] = true
	} else {
		delete(l.view.pressure.evicted, r.key)
	}
}

// mayEvict returns why a pod cannot be evicted, nil when it can.
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

// noteEviction records that the instance has Failed. The plan then stops what runs of it.
func (w *worker) noteEviction(o *Eviction) error {
	switch {
	case w.rec.Instance == 0 || w.last.empty, o.instance > 0 && o.instance != w.rec.Instance, o.UID != w.rec.UID:
		return &RefusedError{fmt.Sprintf("pod %s has another instance by now", w.key)}
	case w.rec.Terminal != "":
		return &RefusedError{fmt.Sprintf("pod %s has terminated", w.key)}
	case !w.rec.StopSince.IsZero():
		return &RefusedError{fmt.Sprintf("pod %s is being stopped", w.key)}
	}
	now := time.Now()
	count := 0
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
		w.event(w.update.want, "", pod.EventWarning, eventEvicted, "%s", o.Message)
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
