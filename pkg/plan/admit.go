package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Node is what admission knows of this node. A field that is empty is not
// known, and nothing is refused for it, but for a pod that asks for labels.
type Node struct {
	Name   string
	Labels map[string]string // asked for by node selectors and node affinity
	Taints []v1.Taint        // only NoExecute counts, and not for static pods
	OS     string            // as GOOS
	// Kernel is its release, "6.1.0-13-amd64": it decides which sysctls are safe.
	Kernel string
	// Sysctls are allowed although they are unsafe: names, and beginnings of names
	// that end in "*".
	Sysctls []string
	// Allocatable is what pods may ask for in all. What it does not list is not
	// limited (C-1.31.4a), but for huge pages: a size that is missing is not there.
	Allocatable v1.ResourceList
	// Ended holds, by UID, the pods that have ended and are still here: they take no
	// room, and their UIDs are theirs.
	Ended map[string]pod.Key
	// MaxPods is how many pods may be here; 0 is no limit.
	MaxPods int
	// NoAppArmor says that the kernel confines nothing by AppArmor profiles.
	NoAppArmor bool
}

// Refusal is why a pod may not start. Reason is the kubelet's word (C-1.31).
type Refusal struct {
	Spec            *pod.Spec
	Reason, Message string
	// Final says that the pod is not to be judged again: its phase is Failed. So it
	// is with pods of an API server, whose controllers make another one (C-1.15.1).
	// Any other pod is Pending, and may start when what it lacked is there.
	Final bool
}

// Admit says which of the wanted pods may start beside the seated ones. Seated
// pods keep their seats, count, and are not judged again (C-1.31.5): they are the
// specs of what is on the node and has not ended for good. A refused pod that is
// not Final is to be asked for again when the set changes (unlike the kubelet,
// C-1.31.4).
//
// Pods are judged in the order in which they start; who is judged first gets
// the port or the seat. No pod is stopped for a more important one: there is no
// preemption (C-1.31.2), for static pods neither. The answer does not depend on
// the order of the arguments, but for two pods of one key, of which the first
// stays.
func Admit(want, seated []*pod.Spec, node Node) (ok []*pod.Spec, refused []Refusal) {
	a := newAdmission(node, seated)
	want = slices.Clone(want)
	slices.SortStableFunc(want, StartOrder)
	for _, spec := range want {
		if reason, message := a.judge(spec); reason != "" {
			refused = append(refused, Refusal{spec, reason, message, spec.Origin.Source == sourceAPI})
			continue
		}
		a.seat(spec)
		ok = append(ok, spec)
	}
	return ok, refused
}

// StartOrder compares two pods by who starts first: the one of higher priority
// (critical pods have the highest, from 2,000,000,000 on), then the one that
// stands earlier (file, line), then by key. It is 0 only for pods of one key and
// place.
func StartOrder(a, b *pod.Spec) int {
	return cmp.Or(
		-cmp.Compare(Priority(a), Priority(b)),
		strings.Compare(a.Origin.File, b.Origin.File),
		cmp.Compare(a.Origin.Line, b.Origin.Line),
		a.Key.Compare(b.Key),
	)
}

// Priority returns the pod's priority, 0 where it has none. Critical pods have
// 2,000,000,000 and more (C-1.4.2).
func Priority(s *pod.Spec) int32 {
	if s.Pod.Spec.Priority == nil {
		return 0
	}
	return *s.Pod.Spec.Priority
}

// sourceAPI is the kind of source whose pods are not static.
const sourceAPI = "api"

type admission struct {
	node  Node
	keys  map[pod.Key]bool
	uids  map[string]pod.Key
	ports map[portSlot][]portHolder
	used  v1.ResourceList // of what the node lists
}

func newAdmission(node Node, seated []*pod.Spec) *admission {
	a := &admission{
		node: node,
		keys: map[pod.Key]bool{}, uids: map[string]pod.Key{},
		ports: map[portSlot][]portHolder{}, used: v1.ResourceList{},
	}
	for _, spec := range seated {
		a.seat(spec)
	}
	for uid, key := range node.Ended {
		if _, held := a.uids[uid]; !held {
			a.uids[uid] = key
		}
	}
	return a
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
	for name, q := range a.requests(spec.Pod) {
		sum := a.used[name]
		sum.Add(q)
		a.used[name] = sum
	}
}

// judge returns the first reason that speaks against spec (C-1.31.4a), "" when
// none does. The order is the kubelet's, after what it never meets: one name or
// UID twice.
func (a *admission) judge(spec *pod.Spec) (reason, message string) {
	for _, rule := range []func(*pod.Spec) (reason, message string){
		a.twice, a.sysctls, a.system, a.fit, a.affinity, a.nodeName, a.portTaken, a.taints, a.appArmor,
	} {
		if reason, message = rule(spec); reason != "" {
			return reason, message
		}
	}
	return "", ""
}

func (a *admission) twice(spec *pod.Spec) (reason, message string) {
	if a.keys[spec.Key] {
		return "DuplicatePod", "another pod is already named " + spec.Key.String()
	}
	if other, taken := a.uids[spec.UID()]; taken && spec.UID() != "" && other != spec.Key {
		return "DuplicateUID", fmt.Sprintf("uid %s belongs to pod %s", spec.UID(), other)
	}
	return "", ""
}

func (a *admission) portTaken(spec *pod.Spec) (reason, message string) {
	for _, p := range hostPorts(spec.Pod) {
		for _, h := range a.ports[portSlot{p.Protocol, p.HostPort}] {
			if sameAddress(h.ip, p.HostIP) {
				return "NodePorts", fmt.Sprintf("host port %d/%s is taken by pod %s", p.HostPort, p.Protocol, h.key)
			}
		}
	}
	return "", ""
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
		if c := &p.Spec.InitContainers[i]; pod.Restartable(c) {
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
