// Package cgroup keeps one cgroup for each pod, in a tree like the kubelet's:
//
//	<root>/kubepods                        all pods: their limit on the node
//	<root>/kubepods/pod<uid>               a guaranteed pod
//	<root>/kubepods/burstable/pod<uid>     the tier has the sum of its pods' CPU requests
//	<root>/kubepods/besteffort/pod<uid>
//
// If the runtime's driver is systemd, the cgroups are slices in the same structure. With cgroup v1,
// each hierarchy has the tree. The engine ensures a pod's cgroup before it makes a sandbox, and
// removes it when nothing of the pod is left.
//
// The package changes and removes only cgroups with its mark, an extended attribute. It
// marks each cgroup that it makes. It also marks an empty cgroup above the pods' cgroups that another
// program has made. Only LimitReserved changes cgroups without a mark.
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

// endTimeout is how long Destroy waits for processes to end.
const endTimeout = time.Second

// Config is the configuration of Cgroups.
type Config struct {
	Root    string // the cgroup above kubepods, as --cgroup-root names it
	Node    string // the node's name; it is part of the mark, as RootDir is
	RootDir string // the agent's root directory
	// Driver reports whether the runtime's cgroup driver is systemd; else it is cgroupfs.
	// Most methods call it each time, so it should answer from memory if it can. Required.
	Driver func(context.Context) (systemd bool, err error)
	// Limits are the limits of all pods together: cpu, memory, pid and huge pages.
	Limits v1.ResourceList
	// Enforce is how the kernel enforces the limits of pods.
	Enforce pod.Enforcement
	// PodPIDs limits the processes of one pod; not positive: no limit (C-1.41.2).
	PodPIDs int64
	Log     *slog.Logger // nil discards
}

// Cgroups manages the pods' cgroups. Many goroutines may use it, each for different pods.
type Cgroups struct {
	cfg        Config
	host       func() (*host, error)
	marks      *marks
	endTimeout time.Duration // tests change it

	driver atomic.Pointer[bool] // the last answer of Config.Driver; nil: none yet

	asking     sync.Mutex // held by askBounded; guards unanswered
	unanswered time.Time  // when Config.Driver last failed in askBounded; zero: never

	mu    sync.Mutex      // guards trees with their contents, left, and the cgroups above the pods' cgroups
	trees map[bool]*tree  // by whether the driver is systemd
	left  map[string]bool // the UIDs of pods that had processes left at their last Destroy
}

// New returns Cgroups with this configuration. It does no I/O.
func New(c Config) *Cgroups {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Cgroups{cfg: c, host: sync.OnceValues(findHost), marks: newMarks(c.Node, c.RootDir), endTimeout: endTimeout, trees: map[bool]*tree{}, left: map[string]bool{}}
}

// Ensure makes the pod's cgroup, or sets its limits to those of want. It returns the cgroup's name in
// the form of the runtime's driver. When it returns, the pod counts in the shares of its tier. It may
// be repeated, and completes the work of a killed agent. If another program has a cgroup of this name,
// or uses one above it, the error wraps a *ForeignError.
func (c *Cgroups) Ensure(want *pod.Spec) (parent string, err error) {
	t, err := c.ask()
	if err == nil {
		err = checkUID(want.UID())
	}
	if err != nil {
		return "", fmt.Errorf("make the cgroup of pod %s: %w", want.Key, err)
	}
	uid, m := want.UID(), c.memberOf(want.Pod)
	if was, ok := c.member(t, uid); ok && was.class != m.class { // of an earlier instance
		if err := c.remove(t, t.pod(was.class, uid), c.endTimeout); err != nil {
			return "", fmt.Errorf("make the cgroup of pod %s: %w", want.Key, err)
		}
	}
	undo, err := c.enter(t, uid, m)
	if err != nil {
		return "", fmt.Errorf("make the cgroup of pod %s: %w", want.Key, err)
	}
	n := t.pod(m.class, uid)
	if err := c.make(t, n, c.cfg.ofSpec(want, t.host.sizes), m.milli); err != nil {
		undo()
		return "", fmt.Errorf("make the cgroup of pod %s: %w", want.Key, err)
	}
	return n.path(t.systemd), nil
}

// Raise raises the limits of the pod's cgroup to those of want, and lowers none. Call it before
// containers get more resources (C-1.34.5). It ignores a pod without a cgroup of ours.
func (c *Cgroups) Raise(want *pod.Spec) error { return c.resize(want, true) }

// Lower sets the limits of the pod's cgroup to those of want. Call it after containers got less
// resources (C-1.34.5). It ignores a pod without a cgroup of ours. It fails if the pod uses as much
// memory as the new limit or more, because the kernel would kill a process (C-1.34.4).
func (c *Cgroups) Lower(want *pod.Spec) error { return c.resize(want, false) }

func (c *Cgroups) resize(want *pod.Spec, raise bool) error {
	t, err := c.ask()
	if err != nil {
		return fmt.Errorf("resize the cgroup of pod %s: %w", want.Key, err)
	}
	was, ok := c.member(t, want.UID())
	m := c.memberOf(want.Pod)
	if !ok || was.class != m.class { // another class is another instance
		return nil
	}
	n := t.pod(m.class, want.UID())
	l := c.cfg.ofSpec(want, t.host.sizes)
	has, err := t.host.has(n.path(t.systemd))
	if err != nil {
		return fmt.Errorf("resize the cgroup of pod %s: %w", want.Key, err)
	}
	if !raise && l.memory > 0 && (has.memory == unlimited || l.memory < has.memory) {
		if err := t.host.fits(n.path(t.systemd), l.memory); err != nil {
			return err
		}
	}
	if raise {
		l = l.beyond(has)
		m.milli, m.memory = max(m.milli, was.milli), max(m.memory, was.memory)
	}
	if _, err := c.enter(t, want.UID(), m); err != nil {
		return fmt.Errorf("resize the cgroup of pod %s: %w", want.Key, err)
	}
	if err := c.make(t, n, l, m.milli); err != nil {
		return fmt.Errorf("resize the cgroup of pod %s: %w", want.Key, err)
	}
	return nil
}

// Parent returns the name of the pod's cgroup in the form of the runtime's driver. It returns "" if the
// pod has no cgroup of ours, or the runtime does not answer. It changes nothing.
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

// Destroy removes the cgroups of the pod with uid, of each QoS class and driver, and all cgroups in
// them. Call it only if the runtime shows that nothing of the pod runs. If processes are still there
// after a second, the error names them, and the caller has to read the runtime again. The next Destroy
// kills them (C-1.18.4).
func (c *Cgroups) Destroy(uid string) error {
	if checkUID(uid) != nil {
		return nil // it never had one
	}
	trees, err := c.all()
	if err != nil {
		return fmt.Errorf("remove the cgroup of pod %s: %w", uid, err)
	}
	for _, t := range trees {
		err := c.leave(t, uid, c.endTimeout)
		if left := (*occupiedError)(nil); errors.As(err, &left) && c.again(uid) {
			c.cfg.Log.Warn("Killing processes that a pod left behind", "podUID", uid, "processes", strings.Join(left.processes, ", "))
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

// again records that a pod has processes left, and reports whether it also had some at the last Destroy.
func (c *Cgroups) again(uid string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.left[uid]
	c.left[uid] = true
	return before
}

// Sweep removes the cgroups of pods whose UIDs are not in keep, and returns these UIDs. It removes only
// cgroups of previous agents, none that this agent has ensured. Cgroups with processes stay, and the
// error names them.
func (c *Cgroups) Sweep(keep map[string]bool) (removed []string, err error) {
	trees, err := c.all()
	if err != nil {
		return nil, fmt.Errorf("look for cgroups of pods: %w", err)
	}
	c.mu.Lock() // Ensure of a new pod waits
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

// all returns the trees of both drivers, because the runtime's driver may have changed. On
// a machine without cgroups there are none.
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
