// Package cgroup keeps one cgroup for each pod, in a tree like the kubelet's:
//
//	<root>/kubepods                        all pods: what the node has for them
//	<root>/kubepods/pod<uid>               a guaranteed pod
//	<root>/kubepods/burstable/pod<uid>     shares of the tier: what its pods ask for in all
//	<root>/kubepods/besteffort/pod<uid>
//
// or in slices of the same meaning where the runtime's driver is systemd; cgroup v1
// has the tree once in each hierarchy. The engine asks for a pod's cgroup before it
// makes a sandbox, and takes it away when nothing of the pod is left.
//
// The one rule: a cgroup without our mark is never changed and never removed. Every
// cgroup made here carries it; what somebody else made and left empty, of the part
// above the pods, is taken over.
package cgroup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opencontainers/cgroups/systemd"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// patience is how long Take waits for processes that are about to end.
const patience = time.Second

// Config is what Cgroups are made of.
type Config struct {
	Root    string // the cgroup above kubepods, as --cgroup-root names it
	Node    string // with RootDir what the mark says
	RootDir string // the agent's directory
	// Driver says whether the runtime's cgroup driver is systemd; else it is
	// cgroupfs. It is asked each time, and answers from memory where it can.
	Driver func(context.Context) (systemd bool, err error)
	// Limits are what all pods together may have: cpu, memory, pid and huge pages.
	Limits v1.ResourceList
	// PodPIDs is the most processes one pod may have; no limit where it is not
	// positive (C-1.41.2).
	PodPIDs int64
	Log     *slog.Logger // nil is silent
}

// Cgroups keeps the pods' cgroups. It may be used by many goroutines, each for pods
// of its own.
type Cgroups struct {
	cfg      Config
	host     func() (*host, error)
	marks    *marks
	patience time.Duration // a test has another

	driver atomic.Pointer[bool] // whether it is systemd, as last heard; nil: never

	mu    sync.Mutex // guards trees and all in them, and the part above the pods
	trees map[bool]*tree
	left  map[string]bool // pods, by UID, of which processes were left the last time
}

// New returns Cgroups as c has them. It touches nothing.
func New(c Config) *Cgroups {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Cgroups{cfg: c, host: sync.OnceValues(findHost), marks: newMarks(c.Node, c.RootDir), patience: patience, trees: map[bool]*tree{}, left: map[string]bool{}}
}

// Put makes the pod's cgroup, or gives it the limits that want asks for, and returns
// its name as the runtime takes it. The tiers above know of it when it returns. It
// may be repeated, and mends what an agent that died left half done.
func (c *Cgroups) Put(want *pod.Spec) (parent string, err error) {
	t, err := c.ask()
	if err == nil {
		err = checkUID(want.UID())
	}
	if err != nil {
		return "", fmt.Errorf("make the cgroup of pod %s: %w", want.Key, err)
	}
	uid, m := want.UID(), memberOf(want.Pod)
	if was, ok := c.member(t, uid); ok && was.class != m.class { // of an instance that is gone
		if err := c.remove(t, t.pod(was.class, uid), c.patience); err != nil {
			return "", fmt.Errorf("make the cgroup of pod %s: %w", want.Key, err)
		}
	}
	undo, err := c.enter(t, uid, m)
	if err != nil {
		return "", fmt.Errorf("make the cgroup of pod %s: %w", want.Key, err)
	}
	n := t.pod(m.class, uid)
	if err := c.make(t, n, ofPod(want.Pod, c.cfg.PodPIDs, t.host.sizes), m.milli); err != nil {
		undo()
		return "", fmt.Errorf("make the cgroup of pod %s: %w", want.Key, err)
	}
	return n.path(t.systemd), nil
}

// Raise gives the pod's cgroup what want asks for beyond what it has, and takes
// nothing away: before its containers are given more (C-1.34.5). A pod without a
// cgroup of ours is left alone.
func (c *Cgroups) Raise(want *pod.Spec) error { return c.resize(want, true) }

// Lower gives the pod's cgroup the limits that want asks for, and no more: after
// its containers were given less (C-1.34.5). A pod without a cgroup of ours is left
// alone.
func (c *Cgroups) Lower(want *pod.Spec) error { return c.resize(want, false) }

func (c *Cgroups) resize(want *pod.Spec, raise bool) error {
	t, err := c.ask()
	if err != nil {
		return fmt.Errorf("resize the cgroup of pod %s: %w", want.Key, err)
	}
	was, ok := c.member(t, want.UID())
	m := memberOf(want.Pod)
	if !ok || was.class != m.class { // another class is another instance
		return nil
	}
	n := t.pod(m.class, want.UID())
	l := ofPod(want.Pod, c.cfg.PodPIDs, t.host.sizes)
	if raise {
		has, err := t.host.has(n.path(t.systemd))
		if err != nil {
			return fmt.Errorf("resize the cgroup of pod %s: %w", want.Key, err)
		}
		l = l.beyond(has)
		m.milli = max(m.milli, was.milli)
	}
	if _, err := c.enter(t, want.UID(), m); err != nil {
		return fmt.Errorf("resize the cgroup of pod %s: %w", want.Key, err)
	}
	if err := c.make(t, n, l, m.milli); err != nil {
		return fmt.Errorf("resize the cgroup of pod %s: %w", want.Key, err)
	}
	return nil
}

// Parent returns the name of the pod's cgroup as the runtime takes it, "" where the
// pod has none of ours. It changes nothing.
func (c *Cgroups) Parent(want *pod.Spec) string {
	t, err := c.ask()
	if err != nil {
		return ""
	}
	m, ok := c.member(t, want.UID())
	if !ok {
		return ""
	}
	return t.pod(m.class, want.UID()).path(t.systemd)
}

// Take removes the cgroups of the pod with uid, of whatever class and driver, and
// what containers left in them. It is called when by the runtime's word
// nothing of the pod runs any more. Processes that are still there a little later are
// named in an error, so that the runtime is looked at again; where Take is called
// again all the same, they were left by it, and are killed (C-1.18.4).
func (c *Cgroups) Take(uid string) error {
	if checkUID(uid) != nil {
		return nil // it never had one
	}
	trees, err := c.all()
	if err != nil {
		return fmt.Errorf("remove the cgroup of pod %s: %w", uid, err)
	}
	for _, t := range trees {
		err := c.leave(t, uid, c.patience)
		if left := (*occupiedError)(nil); errors.As(err, &left) && c.again(uid) {
			c.cfg.Log.Warn("Processes that a pod left are killed", "uid", uid, "processes", strings.Join(left.processes, ", "))
			err = c.killAll(t, uid)
		}
		if err != nil {
			return fmt.Errorf("remove the cgroup of pod %s: %w", uid, err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.left, uid)
	return nil
}

// again notes that processes were left of a pod, and reports whether that was so the
// last time.
func (c *Cgroups) again(uid string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.left[uid]
	c.left[uid] = true
	return before
}

// Sweep removes the pod cgroups of ours, of an agent before this one, whose UIDs
// keep does not name, and returns those UIDs. What this one has put is no stray. One
// with processes in it stays, and is named in the error.
func (c *Cgroups) Sweep(keep map[string]bool) (removed []string, err error) {
	trees, err := c.all()
	if err != nil {
		return nil, fmt.Errorf("look for cgroups of pods: %w", err)
	}
	c.mu.Lock() // a pod that is put meanwhile comes before or after
	defer c.mu.Unlock()
	for _, t := range trees {
		for _, n := range t.upper() {
			for _, dir := range t.host.dirs(n.path(t.systemd)) {
				c.marks.settle(dir)
			}
		}
		for _, uid := range slices.Sorted(maps.Keys(t.pods)) {
			if keep[uid] || t.pods[uid].known {
				continue
			}
			failed := c.removeAll(t, uid, 0)
			if failed == nil {
				failed = c.drop(t, uid)
			}
			if failed != nil {
				err = errors.Join(err, fmt.Errorf("remove the cgroup of unknown pod %s: %w", uid, failed))
				continue
			}
			removed = append(removed, uid)
		}
		c.prune(t)
	}
	slices.Sort(removed)
	return slices.Compact(removed), err
}

// ask returns the tree of the runtime's driver.
func (c *Cgroups) ask() (*tree, error) {
	isSystemd, err := c.cfg.Driver(context.Background())
	if err != nil {
		return nil, err
	}
	c.driver.Store(&isSystemd)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tree(isSystemd)
}

// all returns the trees of both drivers: a runtime's may change. Where a machine has
// no cgroups to make, there are none to remove.
func (c *Cgroups) all() ([]*tree, error) {
	if _, err := c.host(); err != nil {
		return nil, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	drivers := []bool{false}
	if systemd.IsRunningSystemd() {
		drivers = append(drivers, true)
	}
	var trees []*tree
	for _, driver := range drivers {
		t, err := c.tree(driver)
		if err != nil {
			return nil, err
		}
		trees = append(trees, t)
	}
	return trees, nil
}

func (c *Cgroups) member(t *tree, uid string) (member, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m, ok := t.pods[uid]
	return m, ok
}
