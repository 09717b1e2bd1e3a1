package cgroup

import (
	"context"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// PlaceOf returns the path of a pod's cgroup, by its class and UID only: the cgroup may not
// exist (a pod of an earlier agent). ok is false if no pod can have one. It changes
// nothing.
func (c *Cgroups) PlaceOf(p *v1.Pod) (at pod.Cgroup, ok bool) {
	if checkUID(string(p.UID)) != nil {
		return pod.Cgroup{}, false
	}
	return c.placeAt(func(t *tree) name { return t.pod(pod.QOS(&p.Spec), string(p.UID)) })
}

// PlaceOfAll returns the path of the cgroup of all pods. ok is false if pods have no
// cgroups.
func (c *Cgroups) PlaceOfAll() (at pod.Cgroup, ok bool) { return c.placeAt((*tree).all) }

func (c *Cgroups) placeAt(of func(*tree) name) (pod.Cgroup, bool) {
	known := c.driver.Load()
	if known == nil { // not known from a Put; asked once, as a runtime may hang
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

// PlaceOfHost returns the roots of this machine's hierarchies. ok is false on a machine
// without cgroups.
func (c *Cgroups) PlaceOfHost() (at pod.Cgroup, ok bool) {
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
