// Package controller maintains the pods of workloads. It calls workload.Next for each workload of the
// merged sources: when the workload or the status of one of its pods has changed, and at the time
// that the last decision names. It stores the state of each workload, and gives the pods to
// podconfig.
//
// A Controller is podconfig's Expander and a sink of the engine. The goroutine that ranges over the
// batches of podconfig calls Expand. The sync loop of the engine calls Report, which never waits
// for Expand. A goroutine of the Controller writes states, while there are any to write. Other
// goroutines copy the logs of failed versions.
//
// A state is on the disk before the pods that follow from it are desired. Expand waits at most
// saveWait for a write. If the disk takes longer, the pods of the workload stay unchanged, and the
// Controller becomes due when the write has ended.
package controller

import (
	"cmp"
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/wakeup"
	"github.com/nodectl/nodectl/pkg/workload"
)

// Store keeps the states of workloads, as JSON, with the layer of each workload.
type Store interface {
	// Load calls each for every readable state. The error names the unreadable ones.
	Load(each func(of pod.ObjectKey, layer string, state []byte)) error
	Save(of pod.ObjectKey, layer string, state []byte) error
	Remove(of pod.ObjectKey) error
}

// Config configures a Controller.
type Config struct {
	Node string
	// Kept are the pods in the records of the previous agent, with their last statuses. Their field
	// Leaving means that the stop of the pod had begun. New ignores pods that no workload can have
	// made.
	Recorded []workload.Pod
	// Store keeps the states; nil: every workload starts without one.
	Store Store
	// Live means that an engine runs the pods, and reports their statuses. Without it, the
	// statuses of Kept do not change, and the Controller is never due.
	Live bool
	// NoSchedules means that no decision is made about CronJobs: they start no Jobs, and their pods
	// stay unchanged.
	NoSchedules bool
	// Event receives the events of workloads; nil drops them.
	Event func(o *pod.Object, e workload.Event)
	Log   *slog.Logger // nil discards

	// Judge returns the reason if the source policy forbids a workload with the changes of a command,
	// an override or a rollback, else "". nil forbids nothing.
	Judge func(o *pod.Object) string
	// Keep copies the logs of a version that is rolled back, before its pods leave. The Controller
	// calls it in a goroutine, and the rollback waits for it for a limited time. With nil, or if
	// Live is false, no logs are kept.
	Keep func(o *pod.Object, failed workload.FailedVersion)

	// Next decides; nil is workload.Next.
	Next func(workload.Input) workload.Decision
}

// longestWait limits each wait of the timer. The wall clock decides when a step is due, and an
// administrator may set it meanwhile.
const longestWait = time.Minute

// adoptTimeout is how long a decision that removes pods waits for the engine's first reports of the
// previous agent's pods. The statuses in Recorded may be out of date: a pod that was ready may have
// terminated. Its workload may then need the pod that the decision would remove.
const adoptTimeout = time.Minute

// saveWait is how long Expand waits for its writes of states. Usually they end in that time. Then the
// batch in which a source adds a workload contains the pods of the workload, too. A slower disk must
// not delay the readings of sources.
const saveWait = 100 * time.Millisecond

// Controller keeps the pods of workloads. Make one with New.
type Controller struct {
	cfg    Config
	due    wakeup.Signal // Report, a timer and the writer send, podconfig receives; nil if not Live
	writer *writer
	copies atomic.Int32 // running calls of Config.Keep

	// Only Expand uses these.
	workloads map[pod.ObjectKey]*entry
	found     map[pod.ObjectKey]storedState // of workloads that no source has listed yet
	kept      map[pod.Key]workload.Pod      // the pods of Config.Kept that no workload owns yet
	since     time.Time                     // the first call of Expand
	timer     *time.Timer
	releases  map[workload.ReleaseKey]*release // of the workloads that sources have

	mu       sync.Mutex
	pods     map[pod.Key][]*podStatus // of the pods that a workload has, or may have
	reported map[pod.Key]bool         // the pods that were reported since the last Expand
	synced   bool                     // every source has answered
	view     []Workload
	requests []*request // from Do, in order
}

// storedState is a state that the previous agent stored.
type storedState struct {
	layer string
	state []byte
}

// Workload is a workload with its newest decision and its pods.
type Workload struct {
	Object *pod.Object
	// Decision is the newest decision that took effect. Its steps do not include those of earlier
	// decisions. Before the first decision, its Object is nil.
	Decision workload.Decision
	// Pods are all pods of the workload with their statuses, by key.
	Pods []workload.Pod
}

// New reads the stored states and returns a Controller.
func New(cfg Config) *Controller {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Next == nil {
		cfg.Next = workload.Next
	}
	c := &Controller{
		cfg: cfg, workloads: make(map[pod.ObjectKey]*entry), found: make(map[pod.ObjectKey]storedState),
		kept: make(map[pod.Key]workload.Pod), pods: make(map[pod.Key][]*podStatus), reported: make(map[pod.Key]bool),
	}
	if cfg.Live {
		c.due = wakeup.New()
		c.timer = time.AfterFunc(longestWait, c.due.Send)
		c.timer.Stop()
	}
	c.writer = &writer{store: cfg.Store, wake: c.due.Send}
	for _, p := range cfg.Recorded {
		if workload.MayOwn(p.Spec) {
			have := newPodStatus(p.Spec)
			have.seen, have.kept, have.used, have.status = true, cfg.Live, true, p.Status
			c.kept[p.Spec.Key], c.pods[p.Spec.Key] = p, []*podStatus{have}
		}
	}
	if cfg.Store != nil {
		err := cfg.Store.Load(func(of pod.ObjectKey, layer string, state []byte) { c.found[of] = storedState{layer, state} })
		if err != nil {
			cfg.Log.Warn("Failed to read the states of some workloads; their pods stay, and their revisions and counts begin again", "error", err)
		}
	}
	return c
}

// Due implements podconfig.Expander.
func (c *Controller) Due() <-chan struct{} { return c.due }

// Close stops the timer. After that, the Controller becomes due only by changes.
func (c *Controller) Close() {
	if c.timer != nil {
		c.timer.Stop()
	}
}

// Synced tells the Controller that every source has answered. From then on, it removes the state of
// a workload that no source has, once the pods of the workload are gone. Synced never waits.
func (c *Controller) Synced() {
	c.mu.Lock()
	c.synced = true
	c.mu.Unlock()
	c.due.Send()
}

// Report implements engine.Sink. It neither waits nor fails.
func (c *Controller) Report(r pod.StatusReport) error {
	key := pod.KeyOf(r.Pod)
	c.mu.Lock()
	known := len(c.pods[key]) > 0
	for _, p := range c.pods[key] {
		p.note(r)
		c.reported[key] = true
	}
	c.mu.Unlock()
	if known {
		c.due.Send()
	}
	return nil
}

// Workloads returns the newest state of each workload that a source has, sorted by kind and key.
func (c *Controller) Workloads() []Workload {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.view
}

// Has reports whether the pod belongs to a workload. leaves says that the pod has left the set of
// the workload, so that the node stops it.
func (c *Controller) Has(key pod.Key) (has, leaves bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.pods[key] {
		if p.of == (pod.ObjectKey{}) {
			continue
		}
		if p.current {
			return true, false
		}
		has, leaves = true, true
	}
	return has, leaves
}

// Expand implements podconfig.Expander.
func (c *Controller) Expand(workloads []*pod.Object) (pods []*pod.Spec, claims []*pod.Object) {
	now := time.Now().Round(0) // schedules and conditions are times of the wall clock
	if c.since.IsZero() {
		c.since = now
	}
	synced := c.takeReports()
	stuck := !c.writer.isIdle() // a write of an earlier Expand has not ended
	desired := make([]*entry, 0, len(workloads))
	present := make(map[pod.ObjectKey]bool, len(workloads))
	var writes []*write
	for _, o := range workloads {
		e := c.entry(o)
		desired, present[e.id] = append(desired, e), true
		c.settle(e, now)
	}
	for id, e := range c.workloads {
		if !present[id] {
			c.leave(e)
			c.settle(e, now)
		}
	}
	c.group()
	defer c.answer(c.execute(present, stuck, now))
	for _, e := range desired {
		if c.isDue(e, now) {
			c.decide(e, now)
		}
		if e.saving != nil {
			writes = append(writes, e.saving.write)
		}
	}
	if synced {
		writes = append(writes, c.forget(now)...)
	}
	c.await(writes, stuck)
	for _, e := range desired {
		c.settle(e, now)
		pods, claims = append(pods, e.pods...), append(claims, e.claims...)
	}
	c.dropForgotten(now)
	c.publish()
	c.setTimer(now)
	slices.SortStableFunc(pods, func(a, b *pod.Spec) int { return a.Key.Compare(b.Key) })
	slices.SortStableFunc(claims, func(a, b *pod.Object) int { return a.Key.Compare(b.Key) })
	return pods, claims
}

// await waits for writes, at most saveWait. It does not wait if stuck is set. It waits without a limit
// if the Controller is not Live, because then nothing calls Expand again.
func (c *Controller) await(writes []*write, stuck bool) {
	switch {
	case len(writes) == 0:
	case !c.cfg.Live:
		for _, w := range writes {
			<-w.done
		}
	case stuck:
		c.writer.await(writes, 0)
	default:
		c.writer.await(writes, saveWait)
	}
}

// takeReports makes the workloads due whose pods were reported since the last call, and forgets the
// pods that are gone. It reports whether every source has answered.
func (c *Controller) takeReports() (synced bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key := range c.reported {
		all := c.pods[key]
		for _, p := range all {
			e := c.workloads[p.of]
			if e != nil {
				e.due = true
			}
			if !p.gone {
				continue
			}
			p.used = false
			if e != nil {
				delete(e.leaving, key)
			}
			if k, kept := c.kept[key]; kept && c.statusOf(k.Spec) == p {
				delete(c.kept, key)
			}
		}
	}
	c.dropUnused()
	clear(c.reported)
	return c.synced
}

// publish sets the view of workloads and their pods, and drops the statuses of other pods.
func (c *Controller) publish() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, all := range c.pods {
		for _, p := range all {
			p.current, p.used = false, false
		}
	}
	use := func(p *podStatus, of pod.ObjectKey) {
		if p != nil {
			p.used, p.of = true, of
		}
	}
	for _, p := range c.kept {
		use(c.statusOf(p.Spec), pod.ObjectKey{})
	}
	c.view = make([]Workload, 0, len(c.workloads))
	for _, id := range slices.SortedFunc(maps.Keys(c.workloads), compareIDs) {
		e := c.workloads[id]
		for _, s := range e.leaving {
			use(c.statusOf(s), id)
		}
		for _, s := range e.pods {
			p := c.ensureStatus(s)
			p.current = true
			use(p, id)
		}
		if e.object != nil {
			c.view = append(c.view, Workload{Object: e.object, Decision: e.decision, Pods: c.podsOf(e)})
		}
	}
	c.dropUnused()
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

// forget begins to remove the states of workloads that no source has and whose pods are gone.
func (c *Controller) forget(now time.Time) (writes []*write) {
	if len(c.kept) == 0 {
		for id, f := range c.found {
			if c.workloads[id] == nil { // otherwise the state of another layer has replaced it
				e := newEntry(id, f.layer)
				e.stored, c.workloads[id] = nil, e
			}
			delete(c.found, id)
		}
	}
	for id, e := range c.workloads {
		if e.object != nil || len(e.leaving) > 0 || e.saving != nil || e.change != nil || e.removal != nil || now.Before(e.wake) {
			continue
		}
		if c.cfg.Store == nil {
			delete(c.workloads, id)
			continue
		}
		e.removal = c.writer.add(id, "", nil)
		writes = append(writes, e.removal)
	}
	return writes
}

// dropForgotten drops the workloads whose states are removed.
func (c *Controller) dropForgotten(now time.Time) {
	for id, e := range c.workloads {
		if e.removal == nil || !e.removal.isDone() {
			continue
		}
		err := e.removal.err
		if e.removal = nil; err != nil {
			c.retry(e, now, err)
			continue
		}
		delete(c.workloads, id)
	}
}

// entry returns the entry of a workload that a source has. A new one gets the stored state and the
// pods of the previous agent. A workload of another layer is another workload: it must not get the
// revisions and pods of the earlier one. A stored state of another layer stays until every source
// has answered: the source of that layer may still answer, and its workload then wins.
func (c *Controller) entry(o *pod.Object) *entry {
	id, layer := pod.ObjectKey{Kind: o.Kind, Key: o.Key}, o.Origin.Layer()
	e, before := c.workloads[id], c.workloads[id]
	if e == nil || e.layer != layer {
		e = newEntry(id, layer)
		c.workloads[id] = e
		if before != nil {
			c.wakeRelease(before)
		}
		if before != nil && before.change != nil {
			before.change.fail(ErrNoWorkload)
			c.answer(before.change.requests)
		}
		f, stored := c.found[id]
		if stored && f.layer == layer {
			c.restore(e, f.state)
			delete(c.found, id)
		}
		if before != nil || stored && f.layer != layer {
			e.stored = nil // the Store has, or will have, the state of another layer
		}
		c.adopt(e, o)
	}
	if e.removal != nil { // the next write comes after the removal
		e.removal, e.stored = nil, nil
	}
	switch {
	case !e.left:
	case id.Kind == pod.KindJob: // the Job was removed and added again: it is another Job, and runs again
		e.state, e.stored = workload.State{}, nil
	default: // a workload that was removed and added again keeps its revisions only
		e.state.Override, e.state.Trial, e.state.Release = nil, nil, nil
	}
	e.left = false
	if e.object != o {
		c.wakeRelease(e) // the release of the earlier object
		e.object, e.due = o, true
		c.wakeRelease(e)
		c.checkOverride(e)
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

// adopt gives a workload the pods that it had under the previous agent.
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
