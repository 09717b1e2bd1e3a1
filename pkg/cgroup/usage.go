package cgroup

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// PlaceOf returns the path of a pod's cgroup, which follows from its QoS class and UID. The cgroup may not
// exist, for example if an agent without cgroups has started the pod. ok is false if the pod cannot have
// one, or the runtime does not answer. PlaceOf changes nothing.
func (c *Cgroups) PodCgroup(p *v1.Pod) (at pod.Cgroup, ok bool) {
	if checkUID(string(p.UID)) != nil {
		return pod.Cgroup{}, false
	}
	return c.placeAt(func(t *tree) name { return t.pod(pod.QOS(&p.Spec), string(p.UID)) })
}

// PlaceOfAll returns the path of the cgroup of all pods. ok is false if pods have no cgroups, or the
// runtime does not answer.
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

// askTimeout is how long askBounded waits for the runtime. askAgain is how long it does not ask again
// after a failure, since it is called for each pod.
const askTimeout, askAgain = time.Second, 10 * time.Second

// askBounded returns the runtime's last known driver. If none is known, it asks the runtime; known is
// false if that does not answer in time.
func (c *Cgroups) askBounded() (isSystemd, known bool) {
	if is := c.driver.Load(); is != nil {
		return *is, true
	}
	c.asking.Lock()
	defer c.asking.Unlock()
	if !c.unanswered.IsZero() && time.Since(c.unanswered) < askAgain {
		return false, false
	}
	ctx, stop := context.WithTimeout(context.Background(), askTimeout)
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

// at returns the directories of a cgroup. On a machine with cgroup v1 it leaves out the hierarchy of
// cgroup v2, which has no usage data.
func (h *host) at(path string) pod.Cgroup {
	c := pod.Cgroup{Path: path, Dirs: h.paths(path)}
	if !h.unified {
		delete(c.Dirs, "")
	}
	return c
}
