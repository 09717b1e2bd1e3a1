package plan

import (
	"cmp"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Node is what admission knows of this node.
type Node struct {
	// MaxPods is how many pods may be here; 0 is no limit.
	MaxPods int
}

// Refusal is why a pod may not start. Reason is the kubelet's word (C-1.31).
type Refusal struct {
	Spec            *pod.Spec
	Reason, Message string
}

// Admit says which of the wanted pods may start beside the seated ones. Seated
// pods keep their seats and are not judged again (C-1.31.5): they are the specs
// of what is on the node and has not ended for good. A refused pod is to be
// asked for again when the set changes (unlike the kubelet, C-1.31.4).
//
// Pods are judged in the order in which they start; who is judged first gets
// the port or the seat. The answer does not depend on the order of the
// arguments, but for two pods of one key, of which the first stays.
func Admit(want, seated []*pod.Spec, node Node) (ok []*pod.Spec, refused []Refusal) {
	a := admission{node: node, keys: map[pod.Key]bool{}, uids: map[string]pod.Key{}, ports: map[portSlot][]portHolder{}}
	for _, spec := range seated {
		a.seat(spec)
	}
	want = slices.Clone(want)
	slices.SortStableFunc(want, StartOrder)
	for _, spec := range want {
		if r, refuse := a.judge(spec); refuse {
			refused = append(refused, r)
			continue
		}
		a.seat(spec)
		ok = append(ok, spec)
	}
	return ok, refused
}

type admission struct {
	node  Node
	keys  map[pod.Key]bool
	uids  map[string]pod.Key
	ports map[portSlot][]portHolder
}

type portSlot struct {
	protocol v1.Protocol
	port     int32
}

type portHolder struct {
	ip  string
	key pod.Key
}

func (a *admission) seat(spec *pod.Spec) {
	a.keys[spec.Key] = true
	a.uids[spec.UID()] = spec.Key
	for _, p := range hostPorts(spec.Pod) {
		slot := portSlot{p.Protocol, p.HostPort}
		a.ports[slot] = append(a.ports[slot], portHolder{p.HostIP, spec.Key})
	}
}

// judge returns the first reason that speaks against spec (C-1.31.4a).
func (a *admission) judge(spec *pod.Spec) (Refusal, bool) {
	if a.keys[spec.Key] {
		return Refusal{spec, "DuplicatePod", "another pod is already named " + spec.Key.String()}, true
	}
	if other, taken := a.uids[spec.UID()]; taken && spec.UID() != "" {
		return Refusal{spec, "DuplicateUID", fmt.Sprintf("uid %s belongs to pod %s", spec.UID(), other)}, true
	}
	if a.node.MaxPods > 0 && len(a.keys) >= a.node.MaxPods {
		return Refusal{spec, "OutOfpods", fmt.Sprintf("%d of at most %d pods are on this node", len(a.keys), a.node.MaxPods)}, true
	}
	for _, p := range hostPorts(spec.Pod) {
		for _, h := range a.ports[portSlot{p.Protocol, p.HostPort}] {
			if sameAddress(h.ip, p.HostIP) {
				return Refusal{spec, "NodePorts", fmt.Sprintf("host port %d/%s is taken by pod %s", p.HostPort, p.Protocol, h.key)}, true
			}
		}
	}
	return Refusal{}, false
}

// hostPorts lists the ports that a pod takes on the node: those of containers
// that stay, and on the host network every container port.
func hostPorts(p *v1.Pod) []v1.ContainerPort {
	var list []v1.ContainerPort
	collect := func(c *v1.Container) {
		for _, port := range c.Ports {
			if port.HostPort == 0 && p.Spec.HostNetwork {
				port.HostPort = port.ContainerPort
			}
			if port.HostPort > 0 {
				port.Protocol = cmp.Or(port.Protocol, v1.ProtocolTCP)
				list = append(list, port)
			}
		}
	}
	for i := range p.Spec.InitContainers {
		if c := &p.Spec.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways {
			collect(c)
		}
	}
	for i := range p.Spec.Containers {
		collect(&p.Spec.Containers[i])
	}
	return list
}

// sameAddress reports whether two host addresses meet; none is all of them.
func sameAddress(a, b string) bool {
	all := func(ip string) bool { return ip == "" || ip == "0.0.0.0" || ip == "::" }
	return a == b || all(a) || all(b)
}
