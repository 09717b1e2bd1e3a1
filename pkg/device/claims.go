package device

import (
	"slices"

	"github.com/nodectl/nodectl/pkg/pod"
)

// claims are the devices that containers have, by the UID of their pod: the devices in the
// runtime's annotations, and the devices of containers that are being created.
type claims map[string]*podClaims

// podClaims are the devices of the containers of one pod, by container name.
type podClaims struct {
	key        pod.Key
	containers map[string][]pod.DeviceAllocation
	others     []pod.DeviceAllocation // see pod.DeviceHolder
}

// of returns the claims of a pod. It adds an empty entry if there is none.
func (c claims) of(uid string, key pod.Key) *podClaims {
	if c[uid] == nil {
		c[uid] = &podClaims{key: key, containers: make(map[string][]pod.DeviceAllocation)}
	}
	return c[uid]
}

// adopt adds the devices of a pod. A container that has claims already keeps them.
func (c claims) adopt(h pod.DeviceHolder) {
	p := c.of(h.UID, h.Key)
	for name, list := range h.Containers {
		if _, known := p.containers[name]; !known {
			p.containers[name] = list
		}
	}
	p.others = h.Others
}

// keep drops the claims of a pod's containers except these, and reports whether it dropped any.
// Without a container to keep, it drops all claims of the pod.
func (c claims) keep(uid string, containers map[string]bool) (dropped bool) {
	p := c[uid]
	if p == nil {
		return false
	}
	for name, list := range p.containers {
		if !containers[name] {
			dropped = dropped || len(list) > 0
			delete(p.containers, name)
		}
	}
	if len(containers) == 0 {
		dropped = dropped || len(p.others) > 0
		delete(c, uid)
	}
	return dropped
}

// set replaces the claim of a container for one resource.
func (p *podClaims) set(container string, a pod.DeviceAllocation) {
	p.drop(container, func(resource string) bool { return resource == a.Resource })
	p.containers[container] = append(p.containers[container], a)
}

// drop removes the claims of a container for the resources that these selects.
func (p *podClaims) drop(container string, these func(resource string) bool) {
	p.containers[container] = slices.DeleteFunc(slices.Clone(p.containers[container]), func(a pod.DeviceAllocation) bool { return these(a.Resource) })
}

// inUse returns the devices of a resource that containers have.
func (c claims) inUse(resource string) map[string]bool {
	used := make(map[string]bool)
	c.each(resource, func(_ *podClaims, _, id string) { used[id] = true })
	return used
}

// taken reports whether containers of other pods have some of these devices. That happens if the
// pod had terminated, and now starts again.
func (c claims) taken(uid string, list []pod.DeviceAllocation) bool {
	for _, a := range list {
		found := false
		c.each(a.Resource, func(p *podClaims, _, id string) {
			found = found || p != c[uid] && slices.Contains(a.Devices, id)
		})
		if found {
			return true
		}
	}
	return false
}

// each calls f for each device of a resource that a container has. The name of the container is ""
// for the devices in podClaims.others.
func (c claims) each(resource string, f func(p *podClaims, container, id string)) {
	for _, p := range c {
		visit := func(container string, list []pod.DeviceAllocation) {
			for _, a := range list {
				if a.Resource == resource {
					for _, id := range a.Devices {
						f(p, container, id)
					}
				}
			}
		}
		for name, list := range p.containers {
			visit(name, list)
		}
		visit("", p.others)
	}
}

// find returns the allocation of a resource in a list.
func find(list []pod.DeviceAllocation, resource string) (pod.DeviceAllocation, bool) {
	i := slices.IndexFunc(list, func(a pod.DeviceAllocation) bool { return a.Resource == resource })
	if i < 0 {
		return pod.DeviceAllocation{}, false
	}
	return list[i], true
}

// reusable returns the devices that init containers before this container had, and that no
// sidecar or regular container of the pod has (the kubelet's rule). Sidecars keep theirs.
func (p *podClaims) reusable(want *pod.Spec, container, resource string) []string {
	var list []string
	for i := range want.Pod.Spec.InitContainers {
		c := &want.Pod.Spec.InitContainers[i]
		if c.Name == container {
			break
		}
		if !pod.Restartable(c) {
			a, _ := find(p.containers[c.Name], resource)
			list = append(list, a.Devices...)
		}
	}
	taken := func(id string) bool {
		for name, all := range p.containers {
			c, init := want.Container(name)
			if c == nil || init && !pod.Restartable(c) {
				continue
			}
			if a, ok := find(all, resource); ok && slices.Contains(a.Devices, id) {
				return true
			}
		}
		return false
	}
	slices.Sort(list)
	return slices.DeleteFunc(slices.Compact(list), taken)
}
