package controller

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/nodectl/nodectl/pkg/backoff"
	"github.com/nodectl/nodectl/pkg/panics"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/workload"
)

// entry is the Controller's state of one workload.
type entry struct {
	id     pod.ObjectKey
	layer  string
	object *pod.Object // nil: no source has it any more
	left   bool        // a source had it and removed it

	state   workload.State
	stored  []byte                // the state in the Store; nil: not known
	saving  *saving               // the newest decision while its state is being stored; else nil
	change  *change               // the commands in progress, until their state is stored; nil for none
	logs    *logCopy              // of the newest version that failed; nil for none
	removal *write                // of the state, until it has ended; nil for none
	pods    []*pod.Spec           // the set, by key
	claims  []*pod.Object         // by key
	leaving map[pod.Key]*pod.Spec // the pods that have left the set, and that the node still stops

	unconfirmed      *workload.State // a state that the Store may have, and that has not taken effect; nil for none
	unconfirmedSince time.Time       // when the first write of an unconfirmed state began

	decision     workload.Decision // the newest one that took effect
	due          bool              // something has changed since then
	dueByRelease bool              // wakeRelease has made it due since then
	wake         time.Time         // when to decide again in any case; zero: not before a change
	failures     int               // in a row
}

// newEntry returns a workload without a state and without pods.
func newEntry(id pod.ObjectKey, layer string) *entry {
	return &entry{id: id, layer: layer, leaving: make(map[pod.Key]*pod.Spec), stored: []byte("{}")}
}

// saving is a decision whose state is being written.
type saving struct {
	*write
	object   *pod.Object // the workload of the decision; nil: the decision does not take effect
	decision workload.Decision
}

// name returns the name of the workload in logs.
func (e *entry) name() string { return strings.ToLower(e.id.Kind) + "/" + e.id.Key.String() }

// leave handles that no source has the workload any more: all its pods leave.
func (c *Controller) leave(e *entry) {
	if e.object == nil {
		return
	}
	for _, s := range e.pods {
		c.noteStop(e, s)
	}
	if e.saving != nil {
		e.saving.object = nil
	}
	if e.change != nil {
		e.change.object = nil
	}
	c.wakeRelease(e)
	e.object, e.pods, e.claims, e.decision, e.wake, e.left = nil, nil, nil, workload.Decision{}, time.Time{}, true
}

// noteStop adds a pod that has left the set to leaving, until the node has stopped it. It ignores a pod
// that the engine has never reported: that pod is not on the node, for example because its ConfigMap
// is missing.
func (c *Controller) noteStop(e *entry, s *pod.Spec) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.statusOf(s); p != nil && p.seen {
		e.leaving[s.Key] = s
	}
}

// The wait after a state could not be written, or a decision failed.
const (
	firstRetry = time.Second
	lastRetry  = time.Minute
)

// retry schedules another decision about a workload after a failure. Of consecutive failures, it logs
// only the first.
func (c *Controller) retry(e *entry, now time.Time, err error) {
	e.failures++
	e.wake = now.Add(backoff.After(e.failures, firstRetry, lastRetry))
	if e.failures > 1 {
		return
	}
	log := c.cfg.Log.With("workload", e.name())
	if p, ok := panics.Of(err); ok {
		log = log.With("stack", string(p.Stack))
	}
	log.Error("Failed to update a workload; its pods stay as they are", "error", err)
}

// decide calls workload.Next for a workload. The decision takes effect once its state is stored;
// until then, and after an error, the set stays unchanged.
func (c *Controller) decide(e *entry, now time.Time) {
	e.due, e.dueByRelease, e.wake = false, false, time.Time{}
	if e.logs != nil {
		e.logs.waits = false
	}
	if c.cfg.NoSchedules && e.id.Kind == pod.KindCronJob {
		return
	}
	c.mu.Lock()
	pods := c.podsOf(e)
	c.mu.Unlock()
	d, err := c.next(workload.Input{Object: e.object, Node: c.cfg.Node, Pods: pods, State: e.state, Now: now, Release: c.others(e), Allowed: c.allows})
	if err != nil {
		c.retry(e, now, err)
		return
	}
	e.addClaims(d.Claims)
	if until := c.since.Add(adoptTimeout); removes(e.pods, d.Pods) && now.Before(until) && c.isUnreported(e) {
		e.wake = until
		return
	}
	if d.Failed != nil && !c.copyLogs(e, *d.Failed, now) {
		return
	}
	state, err := json.Marshal(d.State)
	switch {
	case err != nil:
		c.retry(e, now, err)
	case c.cfg.Store == nil || bytes.Equal(state, e.stored):
		c.apply(e, d, now)
	default:
		e.saving = &saving{c.writer.add(e.id, e.layer, state), e.object, d}
		e.noteUnconfirmed(&d.State, now)
	}
}

// noteUnconfirmed records a state that the Store may have, and that has not taken effect. The wall
// clock may have been set back since the first such write.
func (e *entry) noteUnconfirmed(state *workload.State, now time.Time) {
	if e.unconfirmed = state; e.unconfirmedSince.IsZero() || e.unconfirmedSince.After(now) {
		e.unconfirmedSince = now
	}
}

// settle handles the end of the write of a decision's state. The decision takes effect if the write
// succeeded and nothing has changed since. After a change, the next decision follows at once.
func (c *Controller) settle(e *entry, now time.Time) {
	s := e.saving
	if s == nil || !s.isDone() {
		return
	}
	e.saving = nil
	switch {
	case s.err != nil && e.object != nil:
		c.retry(e, now, s.err)
	case s.err != nil:
	case e.object == nil, e.object != s.object, e.due:
		e.stored, e.due, e.unconfirmedSince = s.state, true, time.Time{}
	default:
		e.stored = s.state
		c.apply(e, s.decision, now)
	}
}

// next calls workload.Next, and returns a panic as an error.
func (c *Controller) next(in workload.Input) (d workload.Decision, err error) {
	err = panics.ToError(func() error {
		d = c.cfg.Next(in)
		return nil
	})
	return d, err
}

// apply puts a decision into effect: it replaces the set, and reports the steps and events.
func (c *Controller) apply(e *entry, d workload.Decision, now time.Time) {
	if e.failures = 0; e.unconfirmed != nil || affectsRelease(&e.state, &d.State) {
		c.wakeRelease(e)
	}
	e.unconfirmed, e.unconfirmedSince = nil, time.Time{}
	for _, s := range d.Steps {
		c.cfg.Log.Info("Changing pods of workload", "workload", e.name(), "action", string(s.Action), "pod", s.Key.String(), "reason", s.Reason)
	}
	if c.cfg.Event != nil {
		for _, event := range d.Events {
			c.cfg.Event(e.object, event)
		}
	}
	c.replace(e, d)
	if !d.Wake.IsZero() {
		e.wake = d.Wake
		if !d.Wake.After(now) {
			e.wake = now.Add(time.Second) // a decision that is always due again must not keep a CPU busy
		}
	}
}

// replace replaces the set by the set of a decision.
func (c *Controller) replace(e *entry, d workload.Decision) {
	pods := slices.Clone(d.Pods)
	for i, s := range pods {
		if s.Origin != e.object.Origin { // the workload was moved
			moved := *s
			moved.Origin = e.object.Origin
			pods[i] = &moved
		}
	}
	for _, s := range e.pods {
		if find(pods, s.Key) == nil {
			c.noteStop(e, s)
		}
	}
	for _, s := range pods {
		delete(e.leaving, s.Key)
	}
	e.pods, e.state, e.decision = pods, d.State, d
	e.claims = e.sameClaims(d.Claims)
}

// addClaims adds the claims of a decision that has not taken effect yet, because the pods of the
// previous agent need them. Claims of the set stay.
func (e *entry) addClaims(claims []*pod.Object) {
	claims = e.sameClaims(claims)
	for _, o := range e.claims {
		if !slices.ContainsFunc(claims, func(now *pod.Object) bool { return now.Key == o.Key }) {
			claims = append(claims, o)
		}
	}
	e.claims = claims
}

// sameClaims returns claims. It replaces a claim that the set has already by the pointer of the set.
func (e *entry) sameClaims(claims []*pod.Object) []*pod.Object {
	claims = slices.Clone(claims)
	for i, o := range claims {
		j := slices.IndexFunc(e.claims, func(old *pod.Object) bool {
			return old.Key == o.Key && old.Origin == o.Origin && old.Hash == o.Hash && o.Hash != ""
		})
		if j >= 0 {
			claims[i] = e.claims[j]
		}
	}
	return claims
}

// podsOf returns the pods of a workload with their statuses, by key. The caller holds the mutex.
func (c *Controller) podsOf(e *entry) []workload.Pod {
	pods := make([]workload.Pod, 0, len(e.pods)+len(e.leaving))
	add := func(s *pod.Spec, leaving bool) {
		p := workload.Pod{Spec: s, Leaving: leaving}
		if have := c.statusOf(s); have != nil {
			p.Status, p.Earlier = have.status, have.kept && have.status != nil
		}
		pods = append(pods, p)
	}
	for _, s := range e.pods {
		add(s, false)
	}
	for _, s := range e.leaving {
		add(s, true)
	}
	slices.SortFunc(pods, func(a, b workload.Pod) int { return a.Spec.Key.Compare(b.Spec.Key) })
	return pods
}

// isUnreported reports whether the set has a pod of the previous agent that the engine has not
// reported yet.
func (c *Controller) isUnreported(e *entry) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(e.pods, func(s *pod.Spec) bool {
		p := c.statusOf(s)
		return p != nil && p.kept
	})
}

// removes reports whether after lacks a pod of before, or has another instance of it.
func removes(before, after []*pod.Spec) bool {
	return slices.ContainsFunc(before, func(s *pod.Spec) bool {
		now := find(after, s.Key)
		return now == nil || now.UID() != s.UID()
	})
}

func find(pods []*pod.Spec, key pod.Key) *pod.Spec {
	if i, found := slices.BinarySearchFunc(pods, key, func(s *pod.Spec, key pod.Key) int { return s.Key.Compare(key) }); found {
		return pods[i]
	}
	return nil
}
