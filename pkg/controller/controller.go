// Package controller keeps the pods of workloads. It calls workload.Next for each workload of
// the merged sources: when the workload or the status of one of its pods has changed, and at the
// time that the last decision names. It stores the state of each workload, and gives the pods to
// podconfig.
//
// A Controller is podconfig's Expander and a listener of the engine. It has no goroutine: the
// goroutine that ranges over the batches of podconfig calls Expand, and the sync loop of the
// engine calls Report, which never waits for Expand.
//
// The one rule: a state is on the disk before the pods that follow from it are desired.
package controller

import (
	"cmp"
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/workload"
)

// Store keeps the states of workloads, as JSON, with the layer of each workload.
type Store interface {
	// Load calls each for every state that can be read. The error names the other ones.
	Load(each func(of pod.ObjectKey, layer string, state []byte)) error
	Save(of pod.ObjectKey, layer string, state []byte) error
	Remove(of pod.ObjectKey) error
}

// Config configures a Controller.
type Config struct {
	Node string
	// Kept are the pods in the records of the previous agent, with their last statuses. Leaving
	// are those whose stop had begun. Pods that no workload can have made are ignored.
	Kept []workload.Pod
	// Store keeps the states; nil: every workload starts without one.
	Store Store
	// Live says that an engine runs the pods, and reports their statuses. Without it, the
	// statuses of Kept do not change, and the Controller is never due.
	Live bool
	// NoSchedules says that CronJobs start no Jobs; those that they have started go on.
	NoSchedules bool
	// Event is called with the events of workloads; nil: they are dropped.
	Event func(o *pod.Object, e workload.Event)
	Log   *slog.Logger // nil discards

	// Next decides; nil is workload.Next.
	Next func(workload.Input) workload.Decision
}

// longestWait is the longest time between two looks at the clock of the machine, which may have
// been set.
const longestWait = time.Minute

// adoptTimeout is how long a decision that removes pods waits for the engine's first reports of
// the pods of the previous agent. The statuses in Kept may be out of date: a pod that was ready
// may have ended since, and its workload may need the pod that the decision would remove.
const adoptTimeout = time.Minute

// Controller keeps the pods of workloads. Make one with New.
type Controller struct {
	cfg Config
	due chan struct{} // capacity 1: Report and a timer send, podconfig receives; nil: never due

	// Only Expand uses these.
	workloads map[pod.ObjectKey]*entry
	found     map[pod.ObjectKey]found   // the states of workloads that no source has had yet
	kept      map[pod.Key]workload.Pod  // the pods of Config.Kept that no workload owns yet
	owners    map[pod.Key]pod.ObjectKey // the workloads of pods
	since     time.Time                 // the first call of Expand
	timer     *time.Timer

	mu       sync.Mutex
	pods     map[pod.Key]*podStatus // of all pods that workloads have, or may have
	reported map[pod.Key]bool       // the pods that were reported since the last Expand
	synced   bool                   // every source has answered
	view     []Workload
}

// found is a state that the previous agent stored.
type found struct {
	layer string
	state []byte
}

// podStatus has the newest report of a pod.
type podStatus struct {
	uid     string
	layer   string        // of its workload: reports of another layer's pod with this name do not count
	seen    bool          // the previous agent had it, or this engine has reported it
	current bool          // in the set that Expand returned last
	kept    bool          // of the previous agent, and this engine has not reported it yet
	gone    bool          // nothing is left of it
	status  *v1.PodStatus // nil: unknown
}

// Workload is the newest state of one workload.
type Workload struct {
	Object *pod.Object
	// Decision is the newest one. Its steps are those of that decision alone.
	Decision workload.Decision
	// Pods are all pods of the workload with their statuses, by key.
	Pods []workload.Pod
}

// New returns a Controller, and reads the states.
func New(cfg Config) *Controller {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Next == nil {
		cfg.Next = workload.Next
	}
	c := &Controller{
		cfg: cfg, workloads: make(map[pod.ObjectKey]*entry), found: make(map[pod.ObjectKey]found), owners: make(map[pod.Key]pod.ObjectKey),
		kept: make(map[pod.Key]workload.Pod), pods: make(map[pod.Key]*podStatus), reported: make(map[pod.Key]bool),
	}
	if cfg.Live {
		c.due = make(chan struct{}, 1)
		c.timer = time.AfterFunc(longestWait, c.wake)
		c.timer.Stop()
	}
	for _, p := range cfg.Kept {
		if workload.MayOwn(p.Spec) {
			c.kept[p.Spec.Key] = p
			c.pods[p.Spec.Key] = &podStatus{uid: p.Spec.UID(), layer: p.Spec.Origin.Layer(), seen: true, kept: cfg.Live, status: p.Status}
		}
	}
	if cfg.Store != nil {
		err := cfg.Store.Load(func(of pod.ObjectKey, layer string, state []byte) { c.found[of] = found{layer, state} })
		if err != nil {
			cfg.Log.Warn("Failed to read some states of workloads; their pods stay, and their revisions and counts begin again", "error", err)
		}
	}
	return c
}

// Due implements podconfig.Expander.
func (c *Controller) Due() <-chan struct{} { return c.due }

func (c *Controller) wake() {
	select {
	case c.due <- struct{}{}:
	default:
	}
}

// Close ends the timer: the Controller is not due any more by the time alone.
func (c *Controller) Close() {
	if c.timer != nil {
		c.timer.Stop()
	}
}

// Synced says that every source has answered: states of workloads that no source has are removed
// when the pods of the workload are gone. It never waits.
func (c *Controller) Synced() {
	c.mu.Lock()
	c.synced = true
	c.mu.Unlock()
	c.wake()
}

// Report implements engine.Sink. It neither waits nor fails.
func (c *Controller) Report(r pod.StatusReport) error {
	key := pod.KeyOf(r.Pod)
	c.mu.Lock()
	p := c.pods[key]
	if p != nil {
		p.note(r)
		c.reported[key] = true
	}
	c.mu.Unlock()
	if p != nil {
		c.wake()
	}
	return nil
}

// note takes a report. While the node shows another instance under the pod's name, still stops the
// pod that had the name before, or has a pod of another layer, nothing is known of the pod.
func (p *podStatus) note(r pod.StatusReport) {
	p.kept = false
	switch uid := string(r.Pod.UID); {
	case r.Gone:
		p.gone, p.status = !p.current, nil
	case uid != p.uid, r.Origin.Layer() != p.layer, r.Here != "" && r.Here != uid, p.current && r.Unwanted:
		p.status = nil
	default:
		p.status, p.seen = &r.Pod.Status, true
	}
}

// Workloads returns the newest state of each workload that a source has, by kind and key.
func (c *Controller) Workloads() []Workload {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.view
}

// Expand implements podconfig.Expander.
func (c *Controller) Expand(workloads []*pod.Object) (pods []*pod.Spec, claims []*pod.Object) {
	now := time.Now().Round(0) // schedules and conditions are times of the wall clock
	if c.since.IsZero() {
		c.since = now
	}
	synced := c.takeReports()
	there := make(map[pod.ObjectKey]bool, len(workloads))
	for _, o := range workloads {
		e := c.entry(o)
		there[e.id] = true
		if e.due || !e.wake.IsZero() && !now.Before(e.wake) {
			c.decide(e, now)
		}
		pods, claims = append(pods, e.pods...), append(claims, e.claims...)
	}
	for id, e := range c.workloads {
		if !there[id] {
			c.leave(e)
		}
	}
	if synced {
		c.forget(now)
	}
	c.show()
	c.setTimer(now)
	slices.SortStableFunc(pods, func(a, b *pod.Spec) int { return a.Key.Compare(b.Key) })
	slices.SortStableFunc(claims, func(a, b *pod.Object) int { return a.Key.Compare(b.Key) })
	return pods, claims
}

// takeReports marks the workloads whose pods were reported since the last call, and forgets the
// pods that are gone. It reports whether every source has answered.
func (c *Controller) takeReports() (synced bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key := range c.reported {
		gone := c.pods[key] == nil || c.pods[key].gone
		if e := c.workloads[c.owners[key]]; e != nil {
			e.due = true
			if gone {
				delete(e.leaving, key)
			}
		}
		if gone {
			delete(c.kept, key)
			delete(c.owners, key)
			delete(c.pods, key)
		}
	}
	clear(c.reported)
	return c.synced
}

// show publishes the states of workloads and of their pods, and keeps the statuses of pods that
// workloads have.
func (c *Controller) show() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.pods {
		p.current = false
	}
	c.view = make([]Workload, 0, len(c.workloads))
	used := make(map[pod.Key]bool, len(c.pods))
	for key := range c.kept {
		used[key] = true
	}
	clear(c.owners)
	for _, id := range slices.SortedFunc(maps.Keys(c.workloads), compareIDs) {
		e := c.workloads[id]
		for key := range e.leaving {
			c.owners[key], used[key] = id, true
		}
		for _, s := range e.pods {
			c.owners[s.Key], used[s.Key] = id, true
			p := c.pods[s.Key]
			if p == nil || p.uid != s.UID() {
				p = &podStatus{uid: s.UID()}
				c.pods[s.Key] = p
			}
			p.current, p.layer = true, s.Origin.Layer()
		}
		if e.object != nil {
			c.view = append(c.view, Workload{Object: e.object, Decision: e.decision, Pods: c.podsOf(e)})
		}
	}
	maps.DeleteFunc(c.pods, func(key pod.Key, _ *podStatus) bool { return !used[key] })
}

func compareIDs(a, b pod.ObjectKey) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), a.Key.Compare(b.Key))
}

// setTimer makes the Controller due at the earliest time that a workload waits for.
func (c *Controller) setTimer(now time.Time) {
	if c.timer == nil {
		return
	}
	var first time.Time
	for _, e := range c.workloads {
		if !e.wake.IsZero() && (first.IsZero() || e.wake.Before(first)) {
			first = e.wake
		}
	}
	c.timer.Stop()
	if !first.IsZero() {
		c.timer.Reset(min(max(first.Sub(now), 0), longestWait))
	}
}

// forget removes the states of workloads that no source has, once their pods are gone.
func (c *Controller) forget(now time.Time) {
	for id, e := range c.workloads {
		if e.object != nil || len(e.leaving) > 0 || now.Before(e.wake) {
			continue
		}
		if err := c.remove(id); err != nil {
			c.retry(e, now, err)
			continue
		}
		delete(c.workloads, id)
	}
	if len(c.kept) > 0 {
		return
	}
	for id := range c.found { // tried once: the next agent tries again
		if err := c.remove(id); err != nil {
			c.cfg.Log.Warn("Failed to remove the state of a workload that no source has", "error", err)
		}
		delete(c.found, id)
	}
}

func (c *Controller) remove(id pod.ObjectKey) error {
	if c.cfg.Store == nil {
		return nil
	}
	return c.cfg.Store.Remove(id)
}

// entry returns the entry of a workload that a source has. A new one gets the stored state and the
// pods of the previous agent. A workload of another layer is another workload: it must not get
// the revisions and pods of the one before.
func (c *Controller) entry(o *pod.Object) *entry {
	id, layer := pod.ObjectKey{Kind: o.Kind, Key: o.Key}, o.Origin.Layer()
	e := c.workloads[id]
	if e == nil || e.layer != layer {
		e = &entry{id: id, layer: layer, leaving: make(map[pod.Key]*pod.Spec), stored: []byte("{}")}
		c.workloads[id] = e
		if f, known := c.found[id]; known && f.layer == layer {
			c.restore(e, f.state)
		}
		delete(c.found, id)
		c.adopt(e, o)
	}
	if e.left && id.Kind == pod.KindJob { // removed and added again: another Job, which runs again
		e.state, e.stored = workload.State{}, []byte("{}")
	}
	e.left = false
	if e.object != o {
		e.object, e.due = o, true
	}
	return e
}

func (c *Controller) restore(e *entry, state []byte) {
	var s workload.State
	if err := json.Unmarshal(state, &s); err != nil {
		c.cfg.Log.Warn("Failed to read the state of a workload; its pods stay, and its revisions and counts begin again", "workload", e.name(), "error", err)
		return
	}
	e.state, e.stored = s, state
}

// adopt gives a workload its pods of the previous agent.
func (c *Controller) adopt(e *entry, o *pod.Object) {
	for key, p := range c.kept {
		if !workload.Owns(o, c.cfg.Node, p.Spec) {
			continue
		}
		delete(c.kept, key)
		if p.Leaving {
			e.leaving[key] = p.Spec
		} else {
			e.pods = append(e.pods, p.Spec)
		}
	}
	slices.SortFunc(e.pods, func(a, b *pod.Spec) int { return a.Key.Compare(b.Key) })
}
