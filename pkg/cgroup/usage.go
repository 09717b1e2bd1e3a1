package cgroup

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// PodCgroup returns the path of a pod's cgroup, by its class and UID only: the cgroup may not
// exist (a pod of an earlier agent). ok is false if no pod can have one. It changes
// nothing.
func (c *Cgroups) PodCgroup(p *v1.Pod) (at pod.Cgroup, ok bool) {
	if checkUID(string(p.UID)) != nil {
		return pod.Cgroup{}, false
	}
	return c.placeAt(func(t *tree) name { return t.pod(pod.QOS(&p.Spec), string(p.UID)) })
}

// AllPodsCgroup returns the path of the cgroup of all pods. ok is false if pods have no
// cgroups.
func (c *Cgroups) AllPodsCgroup() (at pod.Cgroup, ok bool) { return c.placeAt((*tree).all) }

func (c *Cgroups) placeAt(of func(*tree) name) (pod.Cgroup, bool) {
	isSystemd, known := c.askBounded()
	if !known {
		return pod.Cgroup{}, false
	}
	h, err := c.host()
	if err != nil {
		return pod.Cgroup{}, false
	}
	root, err := parseRoot(c.cfg.Root, isSystemd)
	if err != nil {
		return pod.Cgroup{}, false
	}
	at := of(&tree{root: root}).path(isSystemd)
	return h.at(at), true
}

// driverWithin is how long askBounded waits for the runtime, and driverAgain how long after that it
// does not ask again: it is called for each pod.
const driverWithin, driverAgain = time.Second, 10 * time.Second

// askBounded returns the runtime's driver, as far as it is known or the runtime answers in time.
func (c *Cgroups) askBounded() (isSystemd, known bool) {
	if is := c.driver.Load(); is != nil {
		return *is, true
	}
	c.asking.Lock()
	defer c.asking.Unlock()
	if !c.unanswered.IsZero() && time.Since(c.unanswered) < driverAgain {
		return false, false
	}
	ctx, stop := context.WithTimeout(context.Background(), driverWithin)
	defer stop()
	isSystemd, err := c.cfg.Driver(ctx)
	if err != nil {
		c.unanswered = time.Now()
		return false, false
	}
	c.driver.Store(&isSystemd)
	return isSystemd, true
}

// HostCgroup returns the roots of this machine's hierarchies. ok is false on a machine
// without cgroups.
func (c *Cgroups) HostCgroup() (at pod.Cgroup, ok bool) {
	h, err := c.host()
	if err != nil {
		return pod.Cgroup{}, false
	}
	return h.at("/"), true
}

// at leaves out the hierarchy of cgroup v2 if it has no controllers: it has no usage data.
func (h *host) at(path string) pod.Cgroup {
	c := pod.Cgroup{Path: path, Dirs: h.paths(path)}
	if !h.unified {
		delete(c.Dirs, "")
	}
	return c
}
