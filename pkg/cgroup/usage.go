package cgroup

import (
	"context"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// PlaceOf returns where the cgroup of a pod is, by its class and UID alone: it may
// not be there (a pod of an agent before). ok is false where no pod can have one.
// It touches nothing.
func (c *Cgroups) PlaceOf(p *v1.Pod) (at pod.Cgroup, ok bool) {
	if checkUID(string(p.UID)) != nil {
		return pod.Cgroup{}, false
	}
	return c.placeAt(func(t *tree) name { return t.pod(pod.QOS(&p.Spec), string(p.UID)) })
}

// PlaceOfAll returns where the cgroup of all pods is. ok is false where pods have no
// cgroups.
func (c *Cgroups) PlaceOfAll() (at pod.Cgroup, ok bool) { return c.placeAt((*tree).all) }

func (c *Cgroups) placeAt(of func(*tree) name) (pod.Cgroup, bool) {
	known := c.driver.Load()
	if known == nil { // nothing was put yet; a runtime that hangs is not asked for each pod
		isSystemd, err := c.cfg.Driver(context.Background())
		if err != nil {
			return pod.Cgroup{}, false
		}
		c.driver.Store(&isSystemd)
		known = &isSystemd
	}
	isSystemd := *known
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

// PlaceOfHost returns where the cgroup of this machine is: the roots of its
// hierarchies. ok is false on a machine without cgroups.
func (c *Cgroups) PlaceOfHost() (at pod.Cgroup, ok bool) {
	h, err := c.host()
	if err != nil {
		return pod.Cgroup{}, false
	}
	return h.at("/"), true
}

// at leaves out the hierarchy of cgroup v2 where it only names: nothing is counted
// there.
func (h *host) at(path string) pod.Cgroup {
	c := pod.Cgroup{Path: path, Dirs: h.paths(path)}
	if !h.unified {
		delete(c.Dirs, "")
	}
	return c
}
