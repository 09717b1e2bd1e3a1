package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	podresource "k8s.io/component-helpers/resource"

	"github.com/nodectl/nodectl/pkg/pod"
)

// tree has the cgroups of one driver below the cgroup root.
type tree struct {
	host    *host
	systemd bool
	root    name              // the cgroup above kubepods
	pods    map[string]member // the pods with a cgroup of ours, by UID
	limited bool              // the limits of kubepods are set
	shared  *sums             // the sums that are set on the tiers; nil: none are set
}

// sums are the sums of the pods in each tier.
type sums struct {
	milli      int64 // CPU requests of burstable pods
	burstable  int64 // protected memory in bytes, by class
	guaranteed int64
}

// member is a pod's part in its tier.
type member struct {
	class  v1.PodQOSClass
	milli  int64 // CPU request
	memory int64 // memory request, if it is protected
	known  bool  // this agent has ensured the cgroup, not only a previous one
}

// memberOf returns a pod's part in its tier.
func (c *Cgroups) memberOf(p *v1.Pod) member {
	m := member{class: pod.QOS(&p.Spec), known: true}
	asks := podresource.PodRequests(p, podresource.PodResourcesOptions{})
	m.milli = asks.Cpu().MilliValue()
	if c.cfg.reserves() {
		m.memory = asks.Memory().Value()
	}
	return m
}

func (t *tree) all() name { return t.root.below(kubepods) }

func (t *tree) tier(class v1.PodQOSClass) name {
	switch class {
	case v1.PodQOSBurstable:
		return t.all().below(burstable)
	case v1.PodQOSBestEffort:
		return t.all().below(bestEffort)
	}
	return t.all()
}

// upper returns all cgroups above pods, from the top down.
func (t *tree) upper() (all []name) {
	for i := range t.root {
		all = append(all, t.root[:i+1])
	}
	return append(all, t.tiers()...)
}

func (t *tree) tiers() (all []name) {
	for _, class := range classes() {
		all = append(all, t.tier(class))
	}
	return all
}

func (t *tree) pod(class v1.PodQOSClass, uid string) name {
	return t.tier(class).below(podPrefix + uid)
}

// tree returns the tree of a driver, which it reads from the kernel once; the caller holds
// mu.
func (c *Cgroups) tree(systemd bool) (*tree, error) {
	if t := c.trees[systemd]; t != nil {
		return t, nil
	}
	h, err := c.host()
	if err != nil {
		return nil, err
	}
	root, err := parseRoot(c.cfg.Root, systemd)
	if err != nil {
		return nil, err
	}
	t := &tree{host: h, systemd: systemd, root: root, pods: map[string]member{}}
	for _, class := range classes() {
		for _, dir := range h.dirs(t.tier(class).path(systemd)) {
			if err := c.addPods(t, class, dir); err != nil {
				return nil, err
			}
		}
	}
	c.trees[systemd] = t
	return t, nil
}

// addPods adds our pods in one directory of a tier.
func (c *Cgroups) addPods(t *tree, class v1.PodQOSClass, dir string) error {
	children, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range children {
		uid, ok := uidOf(e.Name(), t.systemd)
		if !ok || !e.IsDir() {
			continue
		}
		o, milli, err := c.marks.owner(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		if o == ours {
			m := member{class: class, milli: max(milli, t.pods[uid].milli)}
			if c.cfg.reserves() && t.host.unified {
				m.memory = guarded(filepath.Join(dir, e.Name()))
			}
			t.pods[uid] = m
		}
	}
	return nil
}

// enter adds a pod to its tier, and makes all cgroups above the pod's. From then on prune does not remove
// them. Call undo if the pod's cgroup cannot be made.
func (c *Cgroups) enter(t *tree, uid string, m member) (undo func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.above(t); err != nil {
		return nil, err
	}
	was, known := t.pods[uid]
	back := func() {
		if t.pods[uid] = was; !known {
			delete(t.pods, uid)
		}
		_ = c.share(t) // after a failure, the next enter or drop sets the values
		c.prune(t)
	}
	t.pods[uid] = m
	if err := c.share(t); err != nil {
		back()
		return nil, err
	}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		back()
	}, nil
}

// leave removes a pod's cgroups from all tiers, and subtracts the pod from the sums of its tier.
func (c *Cgroups) leave(t *tree, uid string, wait time.Duration) error {
	if err := c.removeAll(t, uid, wait); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.drop(t, uid)
}

func (c *Cgroups) removeAll(t *tree, uid string, wait time.Duration) error {
	for _, class := range classes() {
		if err := c.remove(t, t.pod(class, uid), wait); err != nil {
			return err
		}
	}
	return nil
}

// drop forgets a pod whose cgroups are removed; the caller holds mu.
func (c *Cgroups) drop(t *tree, uid string) error {
	if _, ok := t.pods[uid]; !ok {
		return nil
	}
	delete(t.pods, uid)
	if len(t.pods) == 0 {
		c.prune(t)
		return nil
	}
	return c.share(t)
}

// above makes the missing cgroups above the pods' cgroups; the caller holds mu.
func (c *Cgroups) above(t *tree) error {
	for i := range t.root {
		if err := c.ancestor(t, t.root[:i+1]); err != nil {
			return err
		}
	}
	made, err := c.ensure(t, t.all())
	if err != nil {
		return err
	}
	if made || !t.limited {
		c.limit(t)
	}
	for _, n := range t.tiers()[1:] {
		made, err := c.ensure(t, n)
		if err != nil {
			return err
		}
		if made || t.shared == nil {
			if err := c.set(t, n, ofTier(0, t.host.sizes)); err != nil {
				return err
			}
			t.shared = nil
		}
	}
	return nil
}

// limit sets the limits of all pods together. If that fails, such as because the pods use more memory
// already, it sets the other limits, and the next Ensure tries again. A pod starts in any case.
func (c *Cgroups) limit(t *tree) {
	l := ofNode(c.cfg.Limits, t.host.sizes)
	if !t.host.pids {
		l.pids = 0
	}
	err := c.set(t, t.all(), l)
	t.limited = err == nil
	if err == nil {
		return
	}
	c.cfg.Log.Warn("Failed to limit pods to what is allocatable", "cgroup", t.all().path(t.systemd), "error", err)
	l.memory = 0
	_ = c.set(t, t.all(), l) // the first error was logged
}

// share sets the values of the tiers that follow from the sums of their pods. These are the CPU shares
// of the burstable tier (C-1.41.3) and, with memory QoS, the protected memory of both tiers
// (C-1.41.10). The caller holds mu.
func (c *Cgroups) share(t *tree) error {
	sum := sumOf(t.pods)
	if t.shared != nil && sum == *t.shared {
		return nil
	}
	burst, all := c.cfg.ofTiers(sum)
	if err := c.set(t, t.tier(v1.PodQOSBurstable), burst); err != nil {
		return err
	}
	if all.guard != nil && t.host.unified {
		if err := c.set(t, t.all(), all); err != nil {
			return err
		}
	}
	t.shared = &sum
	return nil
}

func sumOf(pods map[string]member) (sum sums) {
	for _, m := range pods {
		switch m.class {
		case v1.PodQOSBurstable:
			sum.milli += m.milli
			sum.burstable += m.memory
		case v1.PodQOSGuaranteed:
			sum.guaranteed += m.memory
		}
	}
	return sum
}

// ancestor makes a cgroup of the cgroup root's path if it does not exist. It changes no existing one.
func (c *Cgroups) ancestor(t *tree, n name) error {
	var fresh []string
	for _, dir := range t.host.dirs(n.path(t.systemd)) {
		if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
			fresh = append(fresh, dir)
		}
	}
	if len(fresh) == 0 {
		return nil
	}
	return c.create(t, n, fresh, 0)
}

// ensure makes one of the cgroups above the pods' cgroups. If another program has made it and it is
// empty, ensure takes it over. made says that it did one of the two.
func (c *Cgroups) ensure(t *tree, n name) (made bool, err error) {
	fresh, alien, err := c.sortUnused(t, n)
	if err != nil {
		return false, err
	}
	if len(alien) > 0 {
		c.cfg.Log.Info("Taking over empty cgroup", "cgroup", n.path(t.systemd))
		if err := c.marks.mark(alien, 0); err != nil {
			return false, err
		}
	}
	if len(fresh) > 0 {
		err = c.create(t, n, fresh, 0)
	}
	return len(fresh)+len(alien) > 0, err
}

// sortUnused is sort for a cgroup above the pods' cgroups. It returns a *ForeignError if another program
// uses the cgroup.
func (c *Cgroups) sortUnused(t *tree, n name) (fresh, alien []string, err error) {
	if fresh, alien, err = c.sort(t, n); err != nil {
		return nil, nil, err
	}
	for _, dir := range alien {
		if used, err := c.used(t, dir); err != nil {
			return nil, nil, err
		} else if used != "" {
			return nil, nil, &ForeignError{Dir: dir, Holds: used}
		}
	}
	return fresh, alien, nil
}

// make makes or repairs a pod's cgroup and sets its limits.
func (c *Cgroups) make(t *tree, n name, l limits, milli int64) error {
	fresh, alien, err := c.sort(t, n)
	if err != nil {
		return err
	}
	if len(alien) > 0 {
		return &ForeignError{Dir: alien[0], Pod: true}
	}
	if len(fresh) > 0 {
		if err := c.create(t, n, fresh, milli); err != nil {
			return err
		}
	}
	// Mark all of them: a half-made one needs its mark, and a resize changes the mark.
	if err := c.marks.mark(t.host.dirs(n.path(t.systemd)), milli); err != nil {
		return err
	}
	return c.set(t, n, l)
}

// sort finds the directories of a cgroup that do not exist (fresh), and those without a mark (alien). It
// returns a *ForeignError if one belongs to another nodectl.
func (c *Cgroups) sort(t *tree, n name) (fresh, alien []string, err error) {
	for _, dir := range t.host.dirs(n.path(t.systemd)) {
		o, _, err := c.marks.owner(dir)
		switch {
		case err != nil:
			return nil, nil, err
		case o == noCgroup:
			fresh = append(fresh, dir)
		case o == unmarked:
			alien = append(alien, dir)
		case o == theirs:
			return nil, nil, &ForeignError{Dir: dir, Theirs: true}
		}
	}
	return fresh, alien, nil
}

// used names a process or a cgroup in a cgroup above the pods' cgroups. It returns "" if there is nothing
// in it, or only the tiers and these are empty.
func (c *Cgroups) used(t *tree, dir string) (string, error) {
	if left, err := processes([]string{dir}); err != nil {
		return "", err
	} else if len(left) > 0 {
		return "process " + left[0], nil
	}
	children, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	for _, e := range children {
		if !e.IsDir() {
			continue
		}
		child := filepath.Join(dir, e.Name())
		ours := slices.ContainsFunc(t.tiers()[1:], func(n name) bool {
			return slices.Contains(t.host.dirs(n.path(t.systemd)), child)
		})
		if !ours {
			return e.Name(), nil
		}
		if used, err := c.used(t, child); used != "" || err != nil {
			return used, err
		}
	}
	return "", nil
}

// create makes a cgroup in all hierarchies, and marks its new directories.
func (c *Cgroups) create(t *tree, n name, fresh []string, milli int64) error {
	if err := c.marks.claim(fresh, milli); err != nil {
		return err
	}
	m, err := t.host.manager(n, t.systemd, nil)
	if err != nil {
		return err
	}
	if err := m.Apply(-1); err != nil { // -1: adds no process
		return fmt.Errorf("make cgroup %s: %w", n.path(t.systemd), err)
	}
	for _, dir := range fresh {
		// The library makes a directory only for a hierarchy with a setting. The runtime would make
		// the others later, without our mark.
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return c.marks.mark(fresh, milli)
}

// set writes limits.
func (c *Cgroups) set(t *tree, n name, l limits) error {
	if !t.host.pids && l.pids < 0 {
		l.pids = 0
	}
	m, err := t.host.manager(n, t.systemd, nil)
	if err != nil {
		return err
	}
	if err := m.Set(l.resources(t.host.unified)); err != nil {
		return fmt.Errorf("limit cgroup %s: %w", n.path(t.systemd), err)
	}
	return nil
}
