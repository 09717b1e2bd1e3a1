// Package upkeep keeps a node from running out of disk, memory and process IDs. In rounds it
// observes the node, has package reclaim plan what to remove, and carries the plan out.
//
// A round begins every 10 seconds, earlier while memory is used up fast, and at once when the
// kernel notifies of short memory. It
// reads only levels: the runtime is asked, and the disk usage of pods measured, once a
// threshold is met. Conditions of the node follow from the same rounds.
//
// One goroutine, that of Run, plans and acts. What others read (conditions, the memory of
// rounds for a dry run) is behind a lock that is held for an assignment.
//
// The one rule: it carries out what reclaim has planned, and decides nothing itself.
package upkeep

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/reclaim"
)

// Observer observes a node.
type Observer interface {
	// Levels measures the file systems, the memory and the process IDs. It writes nothing, and
	// does not ask the runtime once that has said where its images are. An error names what
	// could not be measured; the other levels are returned.
	Levels(ctx context.Context) (reclaim.Node, error)
	// Observe returns all of the node except levels. With disks false it leaves out images,
	// exited containers, sandboxes and the disk usage of pods. An error names what could not be
	// read, which the node then lacks; see ErrNoVictim and Config.PodsUnknown. An evicted pod is
	// among the pods, as Stopping, until its volumes are removed.
	Observe(ctx context.Context, disks bool) (reclaim.Node, error)
}

// ErrNoVictim is an error of Observe for pods of which none can be chosen: not all were observed,
// or the usage of none was read.
var ErrNoVictim = errors.New("no pod can be chosen for an eviction")

// Actor carries out steps. It checks each step again: what is in use by now stays.
type Actor interface {
	// RemoveImages removes images in this order, and returns the steps that it has carried
	// out. It continues after a failure.
	RemoveImages(ctx context.Context, steps []reclaim.Step) ([]reclaim.Step, error)
	// RemoveContainer removes an exited container. removed is false if its pod needs it.
	RemoveContainer(ctx context.Context, of pod.Key, id string) (removed bool, err error)
	// RemoveSandbox removes a sandbox that is not ready and has no container. removed is false
	// if its pod needs it.
	RemoveSandbox(ctx context.Context, of pod.Key, id string) (removed bool, err error)
	// Evict has a pod end.
	Evict(ctx context.Context, key pod.Key, e Eviction) error
}

// Eviction is the end of a pod for a pressure.
type Eviction struct {
	UID     string
	Grace   int64  // in seconds
	Message string // of the pod's status
	// Condition is that of the node that the pod is evicted for.
	Condition v1.NodeConditionType
}

// Config is the configuration of an Upkeep. Observer and Actor are required.
type Config struct {
	Policy   reclaim.EvictPolicy
	Observer Observer
	Actor    Actor
	// Pressure is called with the conditions of the node, in the order of their names, at the
	// first round and whenever they change, before the round acts; may be nil.
	Pressure func(ctx context.Context, now []v1.NodeConditionType)
	// Event reports an event of the node; may be nil.
	Event func(reason, kind, message string)
	// Wake begins a round at once; may be nil.
	Wake <-chan struct{}
	// PodsUnknown is the error of Observe while not all pods of the node are known: until then, no
	// pod is evicted for a disk. Other errors have this effect for unreadFor.
	PodsUnknown error
	Log         *slog.Logger // nil discards
}

// Upkeep runs the rounds of a node. Make one with New. Its methods may be called from any
// goroutine.
type Upkeep struct {
	cfg    Config
	left   map[string]time.Time // by ID: until when rounds leave it out; of Run's goroutine
	logged map[string]string    // the last error of each kind; of Run's goroutine
	waits  string               // what the last round waited for, to log it once
	trend  trend                // of Run's goroutine
	unread time.Time            // since when Observe fails for disks, zero if it does not; of Run's goroutine

	mu         sync.Mutex
	pressure   reclaim.Pressure // its maps are never changed
	starved    []string
	conditions []v1.NodeConditionType
}

const (
	roundEvery = 10 * time.Second // C-1.35.1
	// soon is when the next round follows one that had steps or waits for an evicted pod.
	soon = time.Second
	// least is the least time between the beginnings of two rounds, however often the kernel
	// notifies.
	least = 250 * time.Millisecond
	// actFor bounds how long a round begins further steps: the next round plans what is left,
	// from newer levels.
	actFor = 10 * time.Second
	// retryAfter is for how long what a round could not remove counts as needed: another step
	// may help meanwhile, a pod's eviction as the last.
	retryAfter = time.Minute
	// stopsFor is for how long an evicted pod counts as one that stops, if its containers do
	// not exit.
	stopsFor = 5 * time.Minute
	// cleanup is how long rounds follow each other closely after an eviction (C-1.35.5).
	cleanup = 30 * time.Second
	// unreadFor is for how long a failed observation keeps pods from being evicted for a disk: data
	// that was not read may be unused, but one broken container must not fill the disk.
	unreadFor = 2 * time.Minute
	// observeFor bounds an observation.
	observeFor = 30 * time.Second
)

// New returns an Upkeep. It does no I/O.
func New(cfg Config) *Upkeep {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Event == nil {
		cfg.Event = func(string, string, string) {}
	}
	return &Upkeep{cfg: cfg, left: map[string]time.Time{}, logged: map[string]string{}}
}

// Run runs rounds until ctx ends.
func (u *Upkeep) Run(ctx context.Context) {
	for first := true; ctx.Err() == nil; first = false {
		began := time.Now()
		next := time.NewTimer(u.round(ctx, first))
		select {
		case <-next.C:
		case <-u.cfg.Wake:
			pause(ctx, least-time.Since(began))
		case <-ctx.Done():
		}
		next.Stop()
	}
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// round observes, plans and acts once, and returns when the next round is due.
func (u *Upkeep) round(ctx context.Context, first bool) time.Duration {
	levels, err := u.cfg.Observer.Levels(ctx)
	u.report("levels", err)
	before := u.memory()
	plan, after := reclaim.Evict(levels, u.cfg.Policy, before)
	u.publish(ctx, plan, after, first)
	if !slices.ContainsFunc(plan.Starved, onDisk) {
		u.unread = time.Time{}
	}
	if len(plan.Starved) > 0 {
		plan, after = u.plan(ctx, plan.Starved, before)
		u.publish(ctx, plan, after, false)
	}
	if ctx.Err() != nil {
		return 0
	}
	if plan.WaitFor != u.waits {
		if u.waits = plan.WaitFor; u.waits != "" {
			u.cfg.Log.Info("Node is short of a resource", "waiting", plan.WaitFor)
		}
	}
	next := u.trend.next(levels, u.cfg.Policy)
	if plan.Wait > 0 {
		next = min(next, plan.Wait)
	}
	if len(plan.Steps) > 0 || len(plan.Starved) > 0 && after.Evicted != "" && levels.Now.Sub(after.EvictedAt) < cleanup {
		next = soon
	}
	u.act(ctx, plan, &after)
	u.mu.Lock()
	defer u.mu.Unlock()
	u.pressure = after
	return next
}

// plan observes the node and plans what starved resources require. Memory does not wait for a
// disk that is slow: if an eviction for memory is due, it is the plan.
func (u *Upkeep) plan(ctx context.Context, starved []string, before reclaim.Pressure) (plan reclaim.EvictPlan, after reclaim.Pressure) {
	disks := slices.ContainsFunc(starved, onDisk)
	if disks && slices.Contains(starved, string(v1.ResourceMemory)) {
		n, err := u.observe(ctx, false)
		plan, after = reclaim.Evict(n, u.cfg.Policy, before)
		plan.Steps = slices.DeleteFunc(plan.Steps, func(s reclaim.Step) bool { return pod.ConditionOf(s.Signal) != v1.NodeMemoryPressure })
		if len(plan.Steps) > 0 && !errors.Is(err, ErrNoVictim) {
			return plan, after
		}
	}
	n, err := u.observe(ctx, disks)
	plan, after = reclaim.Evict(n, u.cfg.Policy, before)
	switch {
	case errors.Is(err, ErrNoVictim):
		withoutEvictions(&plan, &after, before, "no pod can be chosen", func(v1.NodeConditionType) bool { return true })
	case disks && err != nil && (u.cfg.PodsUnknown != nil && errors.Is(err, u.cfg.PodsUnknown) || u.unreadLately(n.Now)):
		withoutEvictions(&plan, &after, before, "not everything on the node's disks is known", func(c v1.NodeConditionType) bool { return c == v1.NodeDiskPressure })
	case disks && err == nil:
		u.unread = time.Time{}
	}
	return plan, after
}

// unreadLately reports whether observations of disks fail for less than unreadFor.
func (u *Upkeep) unreadLately(now time.Time) bool {
	if u.unread.IsZero() || u.unread.After(now) {
		u.unread = now
	}
	return now.Sub(u.unread) < unreadFor
}

// trend is how much memory was available in the last round.
type trend struct {
	at        time.Time
	available int64
}

// next returns when the next round is due: at half of the time until memory meets a threshold, if
// it is used up as fast as since the last round, and after roundEvery at most.
func (t *trend) next(n reclaim.Node, policy reclaim.EvictPolicy) time.Duration {
	before := *t
	level, measured := n.Level(pod.SignalMemory)
	*t = trend{n.Now, level.Available}
	used, took := before.available-level.Available, n.Now.Sub(before.at)
	if !measured || before.at.IsZero() || used <= 0 || took <= 0 {
		return roundEvery
	}
	next := roundEvery
	for _, limit := range policy.Thresholds {
		left := level.Available - limit.Of(level.Capacity)
		if limit.Signal != pod.SignalMemory || left <= 0 {
			continue
		}
		if seconds := float64(left) / float64(used) * took.Seconds() / 2; seconds < roundEvery.Seconds() {
			next = min(next, max(soon, time.Duration(seconds*float64(time.Second))))
		}
	}
	return next
}

// onDisk reports whether a starved resource is one of a disk.
func onDisk(resource string) bool {
	return resource == string(v1.ResourceEphemeralStorage) || resource == "inodes"
}

func (u *Upkeep) memory() reclaim.Pressure {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.pressure
}

// observe returns the whole node, with levels that are newer than the rest. An error says that
// the rest is not whole.
func (u *Upkeep) observe(ctx context.Context, disks bool) (reclaim.Node, error) {
	within, stop := context.WithTimeout(ctx, observeFor)
	defer stop()
	n, err := u.cfg.Observer.Observe(within, disks)
	u.report("node", err)
	levels, unmeasured := u.cfg.Observer.Levels(ctx)
	u.report("levels", unmeasured)
	n.Now, n.Filesystems, n.Levels = levels.Now, levels.Filesystems, levels.Levels
	return u.withoutLeft(n), err
}

// withoutEvictions removes the eviction of a pod for some conditions from a plan, and says why.
func withoutEvictions(plan *reclaim.EvictPlan, after *reclaim.Pressure, before reclaim.Pressure, why string, of func(v1.NodeConditionType) bool) {
	plan.Steps = slices.DeleteFunc(plan.Steps, func(s reclaim.Step) bool {
		drop := s.Action == reclaim.EvictPod && of(pod.ConditionOf(s.Signal))
		if drop {
			after.Evicted, after.EvictedAt = before.Evicted, before.EvictedAt
			plan.WaitFor = why + ", so no pod is evicted"
		}
		return drop
	})
}

// withoutLeft marks what could not be removed lately as needed, and evicted pods as stopping.
func (u *Upkeep) withoutLeft(n reclaim.Node) reclaim.Node {
	for id, until := range u.left {
		if !n.Now.Before(until) {
			delete(u.left, id)
		}
	}
	left := func(id string) bool { _, is := u.left[id]; return is }
	for i := range n.Images {
		if left(n.Images[i].ID) {
			n.Images[i].Users = append(slices.Clone(n.Images[i].Users), "a removal that failed")
		}
	}
	for i := range n.Containers {
		n.Containers[i].Needed = n.Containers[i].Needed || left(n.Containers[i].ID)
	}
	for i := range n.Sandboxes {
		n.Sandboxes[i].Needed = n.Sandboxes[i].Needed || left(n.Sandboxes[i].ID)
	}
	for i := range n.Pods {
		n.Pods[i].Stopping = n.Pods[i].Stopping || left(n.Pods[i].UID)
	}
	return n
}

// publish makes the conditions of a plan known, and reports an event for each resource that has
// become short.
func (u *Upkeep) publish(ctx context.Context, plan reclaim.EvictPlan, after reclaim.Pressure, first bool) {
	u.mu.Lock()
	changed := first || !slices.Equal(plan.Conditions, u.conditions)
	began := slices.DeleteFunc(slices.Clone(plan.Starved), func(r string) bool { return slices.Contains(u.starved, r) })
	u.conditions, u.starved, u.pressure = plan.Conditions, plan.Starved, after
	u.mu.Unlock()
	if changed && u.cfg.Pressure != nil {
		u.cfg.Pressure(ctx, slices.Clone(plan.Conditions))
	}
	for _, resource := range began {
		u.cfg.Log.Warn("Eviction threshold met", "resource", resource)
		u.cfg.Event("EvictionThresholdMet", pod.EventWarning, fmt.Sprintf("Attempting to reclaim %s", resource))
	}
}

// act carries out a plan. It corrects after if the pod was not evicted.
func (u *Upkeep) act(ctx context.Context, plan reclaim.EvictPlan, after *reclaim.Pressure) {
	began := time.Now()
	for i := 0; i < len(plan.Steps) && time.Since(began) < actFor; {
		n := 1
		for plan.Steps[i].Action == reclaim.RemoveImage && i+n < len(plan.Steps) && plan.Steps[i+n].Action == reclaim.RemoveImage {
			n++
		}
		steps := plan.Steps[i : i+n]
		done, err := u.do(ctx, steps)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			u.cfg.Log.Warn("Failed to reclaim", "step", steps[0].String(), "error", err)
		}
		for _, s := range steps {
			switch was := slices.ContainsFunc(done, func(d reclaim.Step) bool { return d.ID == s.ID }); {
			case !was && s.Action == reclaim.EvictPod:
				after.Evicted, after.EvictedAt = "", time.Time{}
				fallthrough
			case !was:
				u.left[s.ID] = time.Now().Add(retryAfter)
			case s.Action == reclaim.EvictPod:
				u.left[s.ID] = time.Now().Add(stopsFor)
			}
		}
		i += n
	}
}

// do carries out one step, or several that remove images, and returns those carried out.
func (u *Upkeep) do(ctx context.Context, steps []reclaim.Step) (done []reclaim.Step, err error) {
	s, removed := steps[0], true
	switch s.Action {
	case reclaim.RemoveImage:
		return u.cfg.Actor.RemoveImages(ctx, steps)
	case reclaim.RemoveContainer:
		removed, err = u.cfg.Actor.RemoveContainer(ctx, s.Pod, s.ID)
	case reclaim.RemoveSandbox:
		removed, err = u.cfg.Actor.RemoveSandbox(ctx, s.Pod, s.ID)
	case reclaim.EvictPod:
		err = u.cfg.Actor.Evict(ctx, s.Pod, Eviction{UID: s.ID, Grace: s.Grace, Message: s.Message, Condition: pod.ConditionOf(s.Signal)})
	default:
		err = fmt.Errorf("unknown step %q", s.Action)
	}
	if err != nil || !removed {
		return nil, err
	}
	u.cfg.Log.Info("Reclaimed", "step", s.String())
	return steps, nil
}

// report logs an error once, until it changes.
func (u *Upkeep) report(what string, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != u.logged[what] && !errors.Is(err, context.Canceled) {
		u.cfg.Log.Warn("Failed to observe the node", "what", what, "error", err)
	}
	u.logged[what] = text
}
