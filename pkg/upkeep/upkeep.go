// Package upkeep keeps a node from running out of disk, memory and process IDs. In rounds it
// observes the node, gets a plan of removals from package reclaim, and carries the plan out.
//
// A round begins every 10 seconds, earlier while memory is used up fast, and at once when the
// kernel notifies that memory is short. It measures levels. Only if a threshold is due, it also
// asks the runtime and measures the usage of pods. The rounds also set the node's pressure
// conditions.
//
// Only the goroutine of Run plans and acts. A dry run reads the state of the last round from
// another goroutine, under a mutex.
//
// Only package reclaim chooses steps. This package may leave steps out: while it cannot observe enough,
// or after a step has failed.
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
	// Levels measures the file systems, the memory and the process IDs. It writes nothing. It asks
	// the runtime only until it knows where the images are. An error names the failed measurements;
	// the other levels are returned.
	Levels(ctx context.Context) (reclaim.Node, error)
	// Observe returns the node without levels. If disks is false, it also leaves out images, exited
	// containers, sandboxes and the disk usage of pods. An error names the parts that could not be
	// read, which the result lacks; see ErrNoVictim and Config.PodsUnknown. The pods include evicted
	// ones, as Stopping, until their volumes are removed.
	Observe(ctx context.Context, disks bool) (reclaim.Node, error)
}

// ErrNoVictim is the error of Observe if no pod can be chosen for an eviction: not all running
// pods were observed, or no pod's usage could be read. The round then evicts no pod.
var ErrNoVictim = errors.New("no pod can be chosen for an eviction")

// Actor carries out steps. Before it removes an object, it checks again that nothing uses the object.
type Actor interface {
	// RemoveImages removes images in this order. It returns the steps that it has carried out, and
	// continues after a failure.
	RemoveImages(ctx context.Context, steps []reclaim.Step) ([]reclaim.Step, error)
	// RemoveContainer removes an exited container. removed is false if its pod needs it.
	RemoveContainer(ctx context.Context, of pod.Key, id string) (removed bool, err error)
	// RemoveSandbox removes a sandbox that is not ready and has no container. removed is false
	// if its pod needs it.
	RemoveSandbox(ctx context.Context, of pod.Key, id string) (removed bool, err error)
	// Evict begins the eviction of a pod. After an error the pod is not evicted.
	Evict(ctx context.Context, key pod.Key, e Eviction) error
}

// Eviction says how a pod is evicted.
type Eviction struct {
	UID     string // of the pod
	Grace   int64  // in seconds
	Message string // the message of the pod's status
	// Cause has the facts for the annotations of the pod's event; zero if they are unknown.
	Cause pod.EvictionCause
	// Condition is the node's pressure condition for which the pod is evicted.
	Condition v1.NodeConditionType
}

// Config is the configuration of an Upkeep. Observer and Actor are required.
type Config struct {
	Policy   reclaim.EvictPolicy
	Observer Observer
	Actor    Actor
	// SetConditions is called with the node's pressure conditions, sorted by name: in the first
	// round, and when they change. The round acts only after that. nil: not called.
	SetConditions func(ctx context.Context, now []v1.NodeConditionType)
	// Event receives events of the node; nil: they are dropped.
	Event func(reason, kind, message string)
	// Wake begins a round early when it can be received from; may be nil.
	Wake <-chan struct{}
	// PodsUnknown is the error of Observe while not all desired pods are known, because a source
	// has not answered and has no last good set. As long as Observe returns it, no pod is evicted
	// for a disk. Other errors except ErrNoVictim have this effect for two minutes (unreadFor).
	PodsUnknown error
	Log         *slog.Logger // nil discards
}

// Upkeep runs the rounds of a node. Make one with New. Its methods may be called from any
// goroutine.
type Upkeep struct {
	cfg Config

	// Only Run's goroutine uses these.
	skipUntil   map[string]time.Time // by ID of a step: until when rounds plan no step for it
	logged      map[string]string    // the last error of each part of an observation
	waitFor     string               // WaitFor of the last plan, to log each reason once
	trend       trend
	unreadSince time.Time // since when Observe fails for disks; zero if it does not

	mu         sync.Mutex
	state      reclaim.EvictState // its maps are never changed
	starved    []string           // EvictPlan.Starved of the last round
	conditions []v1.NodeConditionType
}

const (
	roundEvery = 10 * time.Second // C-1.35.1
	// busyRoundEvery is the time between rounds while rounds have steps or wait for an evicted pod.
	busyRoundEvery = time.Second
	// minRoundTime is the least time between the beginnings of two rounds, also if the kernel
	// notifies more often.
	minRoundTime = 250 * time.Millisecond
	// actFor is how long a round begins steps. After that time the next round plans again, from
	// newer levels.
	actFor = 10 * time.Second
	// retryAfter is how long rounds skip an image, container, sandbox or pod after its step has
	// failed. They plan other steps instead, such as the eviction of a pod.
	retryAfter = time.Minute
	// stopsFor is how long an evicted pod counts as stopping while its containers do not exit.
	// Then it may be evicted again.
	stopsFor = 5 * time.Minute
	// unreadFor is how long no pod is evicted for a disk while observations of disks fail: the data
	// that could not be read may be unused. After this time pods are evicted all the same: the
	// disk must not fill up only because one container cannot be read.
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
	return &Upkeep{cfg: cfg, skipUntil: map[string]time.Time{}, logged: map[string]string{}}
}

// Run runs rounds until ctx ends.
func (u *Upkeep) Run(ctx context.Context) {
	for first := true; ctx.Err() == nil; first = false {
		began := time.Now()
		next := time.NewTimer(u.round(ctx, first))
		select {
		case <-next.C:
		case <-u.cfg.Wake:
			pause(ctx, minRoundTime-time.Since(began))
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
	before := u.lastState()
	plan, after := reclaim.Evict(levels, u.cfg.Policy, before)
	u.publish(ctx, plan, after, first)
	if !slices.ContainsFunc(plan.Starved, onDisk) {
		u.unreadSince = time.Time{}
	}
	if len(plan.Starved) > 0 {
		plan, after = u.plan(ctx, plan.Starved, before)
		u.publish(ctx, plan, after, false)
	}
	if ctx.Err() != nil {
		return 0
	}
	if plan.WaitFor != u.waitFor {
		if u.waitFor = plan.WaitFor; u.waitFor != "" {
			u.cfg.Log.Info("Node is short of a resource", "reason", plan.WaitFor)
		}
	}
	next := u.trend.next(levels, u.cfg.Policy)
	if plan.Wait > 0 {
		next = min(next, plan.Wait)
	}
	if len(plan.Steps) > 0 || len(plan.Starved) > 0 && after.Evicted != "" && levels.Now.Sub(after.EvictedAt) < reclaim.EvictWait {
		next = busyRoundEvery
	}
	u.act(ctx, plan, &after)
	u.mu.Lock()
	defer u.mu.Unlock()
	u.state = after
	return next
}

// plan observes the node and plans a round for the starved resources. If memory and a disk are
// short, it first plans without an observation of disks, which may be slow. If that plan evicts a pod
// for memory, it is the result.
func (u *Upkeep) plan(ctx context.Context, starved []string, before reclaim.EvictState) (plan reclaim.EvictPlan, after reclaim.EvictState) {
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
	case disks && err != nil && (u.cfg.PodsUnknown != nil && errors.Is(err, u.cfg.PodsUnknown) || u.unreadBriefly(n.Now)):
		withoutEvictions(&plan, &after, before, "not everything on the node's disks is known", func(c v1.NodeConditionType) bool { return c == v1.NodeDiskPressure })
	case disks && err == nil:
		u.unreadSince = time.Time{}
	}
	return plan, after
}

// unreadBriefly reports whether observations of disks have failed for less than unreadFor. Its caller
// has just seen one fail.
func (u *Upkeep) unreadBriefly(now time.Time) bool {
	if u.unreadSince.IsZero() || u.unreadSince.After(now) {
		u.unreadSince = now
	}
	return now.Sub(u.unreadSince) < unreadFor
}

// trend is how much memory was available in the last round.
type trend struct {
	at        time.Time
	available int64
}

// next returns the time until the next round, at most roundEvery. It assumes that the usage of memory
// grows as fast as since the last round. It takes half of the time until memory meets a threshold.
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
			next = min(next, max(busyRoundEvery, time.Duration(seconds*float64(time.Second))))
		}
	}
	return next
}

// onDisk reports whether a starved resource is on a disk.
func onDisk(resource string) bool {
	return resource == string(v1.ResourceEphemeralStorage) || resource == "inodes"
}

// lastState returns the state after the last round.
func (u *Upkeep) lastState() reclaim.EvictState {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.state
}

// observe observes the node, and measures the levels last. An error says that something other
// than levels could not be read.
func (u *Upkeep) observe(ctx context.Context, disks bool) (reclaim.Node, error) {
	within, stop := context.WithTimeout(ctx, observeFor)
	defer stop()
	n, err := u.cfg.Observer.Observe(within, disks)
	u.report("node", err)
	levels, unmeasured := u.cfg.Observer.Levels(ctx)
	u.report("levels", unmeasured)
	n.Now, n.Filesystems, n.Levels = levels.Now, levels.Filesystems, levels.Levels
	return u.markSkipped(n), err
}

// withoutEvictions removes the eviction of a pod from a plan if selects returns true for its
// condition. WaitFor then has the reason.
func withoutEvictions(plan *reclaim.EvictPlan, after *reclaim.EvictState, before reclaim.EvictState, why string, selects func(v1.NodeConditionType) bool) {
	plan.Steps = slices.DeleteFunc(plan.Steps, func(s reclaim.Step) bool {
		drop := s.Action == reclaim.EvictPod && selects(pod.ConditionOf(s.Signal))
		if drop {
			after.Evicted, after.EvictedAt = before.Evicted, before.EvictedAt
			plan.WaitFor = why + ", so no pod is evicted"
		}
		return drop
	})
}

// markSkipped marks the objects that rounds skip, so that no step is planned for them. Pods are marked
// as stopping, images as used, and containers and sandboxes as needed.
func (u *Upkeep) markSkipped(n reclaim.Node) reclaim.Node {
	for id, until := range u.skipUntil {
		if !n.Now.Before(until) {
			delete(u.skipUntil, id)
		}
	}
	skipped := func(id string) bool { _, is := u.skipUntil[id]; return is }
	for i := range n.Images {
		if skipped(n.Images[i].ID) {
			n.Images[i].Users = append(slices.Clone(n.Images[i].Users), "a removal that failed")
		}
	}
	for i := range n.Containers {
		n.Containers[i].Needed = n.Containers[i].Needed || skipped(n.Containers[i].ID)
	}
	for i := range n.Sandboxes {
		n.Sandboxes[i].Needed = n.Sandboxes[i].Needed || skipped(n.Sandboxes[i].ID)
	}
	for i := range n.Pods {
		n.Pods[i].Stopping = n.Pods[i].Stopping || skipped(n.Pods[i].UID)
	}
	return n
}

// publish sets the node's conditions, and reports an event for each resource that has become
// short.
func (u *Upkeep) publish(ctx context.Context, plan reclaim.EvictPlan, after reclaim.EvictState, first bool) {
	u.mu.Lock()
	changed := first || !slices.Equal(plan.Conditions, u.conditions)
	began := slices.DeleteFunc(slices.Clone(plan.Starved), func(r string) bool { return slices.Contains(u.starved, r) })
	u.conditions, u.starved, u.state = plan.Conditions, plan.Starved, after
	u.mu.Unlock()
	if changed && u.cfg.SetConditions != nil {
		u.cfg.SetConditions(ctx, slices.Clone(plan.Conditions))
	}
	for _, resource := range began {
		u.cfg.Log.Warn("Eviction threshold met", "resource", resource)
		u.cfg.Event("EvictionThresholdMet", pod.EventWarning, fmt.Sprintf("Attempting to reclaim %s", resource))
	}
}

// act carries out a plan. If an eviction fails, act clears after.Evicted, so that the next round
// may evict another pod.
func (u *Upkeep) act(ctx context.Context, plan reclaim.EvictPlan, after *reclaim.EvictState) {
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
		var missing []string
		for _, s := range steps {
			switch carriedOut := slices.ContainsFunc(done, func(d reclaim.Step) bool { return d.ID == s.ID }); {
			case !carriedOut:
				missing = append(missing, s.String())
				u.skipUntil[s.ID] = time.Now().Add(retryAfter)
				if s.Action == reclaim.EvictPod {
					after.Evicted, after.EvictedAt = "", time.Time{}
				}
			case s.Action == reclaim.EvictPod:
				u.skipUntil[s.ID] = time.Now().Add(stopsFor)
			}
		}
		if err != nil {
			u.cfg.Log.Warn("Failed to reclaim", "steps", missing, "error", err)
		}
		i += n
	}
}

// do carries out one step, or several that remove images. It returns those that it has carried
// out.
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
		err = u.cfg.Actor.Evict(ctx, s.Pod, Eviction{UID: s.ID, Grace: s.Grace, Message: s.Message, Cause: s.Cause, Condition: pod.ConditionOf(s.Signal)})
	default:
		err = fmt.Errorf("unknown step %q", s.Action)
	}
	if err != nil || !removed {
		return nil, err
	}
	u.cfg.Log.Info("Reclaimed", "step", s.String())
	return steps, nil
}

// report logs an error of an observation, unless it is the same as the last one of this part.
func (u *Upkeep) report(part string, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != u.logged[part] && !errors.Is(err, context.Canceled) {
		u.cfg.Log.Warn("Failed to observe the node", "part", part, "error", err)
	}
	u.logged[part] = text
}
