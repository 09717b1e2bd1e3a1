package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/cpuset"
	"github.com/nodectl/nodectl/pkg/pod"
)

// Node is the input of admission about this node.
type Node struct {
	// Name is compared with node affinity and, unless it is "", with spec.nodeName.
	Name string
	// Labels are compared with node selectors and node affinity.
	Labels map[string]string
	Taints []v1.Taint // only NoExecute counts, and not for static pods
	// OS is as in GOOS. If it is "", admission refuses no pod because of its operating system.
	OS string
	// Kernel is the kernel's release, as "6.1.0-13-amd64". Some sysctls are safe only in newer
	// kernels; with an unknown release, "", they count as unsafe.
	Kernel string
	// Sysctls are the unsafe sysctls that pods may set: names, and patterns that end in "*".
	Sysctls []string
	// Allocatable is the total that pods may request. If it is empty, nothing is limited. Else a
	// resource that it does not list is not limited (C-1.31.4a). Huge pages are an exception: a
	// size that it does not list is not available.
	Allocatable v1.ResourceList
	// UIDs has UIDs that are in use although no admitted spec has them, each with its pod. Such a
	// UID belongs to a terminated pod that is not removed yet, or to an instance whose pod now has
	// another UID. No other pod may use these UIDs. They take no capacity.
	UIDs map[string]pod.Key
	// Terminating holds the keys of admitted pods that are stopping. They keep their capacity
	// and ports until they are removed.
	Terminating map[pod.Key]bool
	// MaxPods is how many pods the node may have; 0 is no limit.
	MaxPods int
	// Devices is the supply of each extended resource of plugins. A pod waits for a resource
	// that it does not list. nil: extended resources are not limited.
	Devices map[v1.ResourceName]pod.DeviceSupply
	// NoAppArmor says that the kernel does not enforce AppArmor profiles.
	NoAppArmor bool
	// Halted is the reason why the node starts no pods: the machine shuts down, or the node is
	// drained. Zero: it starts pods.
	Halted HaltReason
	// Pressure holds the pressures that the node is under. InCluster says that an API server
	// assigns pods to this node: then static pods are admitted under pressure (C-1.35.8).
	Pressure  []v1.NodeConditionType
	InCluster bool
	// CPUs has the exclusive CPUs and NUMA memory of the admitted pods' containers; nil: no policy
	// allocates them. Admit, Edits.Place and Edits.Accept add allocations.
	CPUs *cpuset.State
	// Disabled names the features that are off: pods that need one are rejected.
	Disabled pod.Disabled
}

// HaltReason is the reason why a node starts no pods, with a message for users.
type HaltReason struct{ Reason, Message string }

// Refusal says that a pod may not start. Reason and Message are the kubelet's (C-1.31).
type Refusal struct {
	Spec            *pod.Spec
	Reason, Message string
	// Detail, for the log, names the obstacle on this node if Message does not.
	Detail string
	// Final says that the pod becomes Failed, and that admission does not judge it again. Only a
	// refusal of a pod of an API server is final, because a controller can replace the pod there
	// (C-1.15.1). It is final only if the pod would not fit without the terminating pods either.
	// Any other refused pod is Pending, and may start later.
	Final bool
}

// Admit returns the pods of want that may start beside the admitted ones, and refusals of the
// others. admitted has the specs of the pods on the node that have not terminated. They count, and
// Admit does not judge them again (C-1.31.5). When the set changes, the caller passes a pod again
// whose refusal was not Final (unlike the kubelet, C-1.31.4).
//
// After a deletion by force, a scheduler gives the capacity of the pod to a new one. The old pod may
// still stop on the node. The kubelet admits such a new pod at once. Admit refuses it,
// but not finally, if it fits only without the terminating pods (Node.Terminating). No pod that
// Admit judges later gets the capacity or the ports that this one waits for.
//
// Admit judges pods in the order in which they start (StartOrder); the first one gets the port
// or the capacity. Admission stops no pod for one of higher priority: there is no preemption
// (C-1.31.2), not even for static pods. The result does not depend on the order of the
// arguments, except for two pods of one key: then the first one stays.
func Admit(want, admitted []*pod.Spec, node Node) (ok []*pod.Spec, refused []Refusal) {
	now := newAdmission(node, admitted)
	later := now // the node without the terminating pods
	if len(node.Terminating) > 0 {
		if node.CPUs != nil {
			node.CPUs = node.CPUs.Without(terminating(admitted, node.Terminating))
		}
		later = newAdmission(node, slices.DeleteFunc(slices.Clone(admitted), func(s *pod.Spec) bool { return node.Terminating[s.Key] }))
	}
	want = slices.Clone(want)
	slices.SortStableFunc(want, StartOrder)
	owners := uidOwners(want)
	for _, spec := range want {
		if node.Halted.Reason != "" {
			refused = append(refused, refusal(spec, node.Halted.Reason, node.Halted.Message, spec.Origin.FromAPI()))
			continue
		}
		if owner, known := owners[spec.UID()]; known && owner != spec.Key && pod.HasChosenUID(spec) {
			refused = append(refused, refusal(spec, DuplicateUID, fmt.Sprintf("uid %s was generated for pod %s", spec.UID(), owner), false))
			continue
		}
		reason, detail := later.judge(spec)
		final := reason != "" && reason != pod.ReasonWaitsForDevices && spec.Origin.FromAPI()
		if !final && later != now {
			if r, d := now.judge(spec); r != "" && reason == "" {
				reason, detail = now.stopsFirst(spec, r, d)
			} else if r != "" {
				reason, detail = r, d
			}
		}
		if reason == "" {
			now.place(spec)
			now.add(spec)
			ok = append(ok, spec)
		} else {
			refused = append(refused, refusal(spec, reason, detail, final))
		}
		if later != now && !final && (reason == "" || spec.Origin.FromAPI()) {
			later.place(spec)
			later.add(spec) // it is admitted, or waits for the terminating pods
		}
	}
	return ok, refused
}

// stopsFirst returns the reason and detail for a pod that fits once the terminating pods are gone. A
// pod that lacks only their devices waits for them.
func (a *admission) stopsFirst(spec *pod.Spec, reason, detail string) (string, string) {
	if of, text := a.devices(spec); reason == pod.ReasonUnexpectedAdmission && of == reason && text == detail {
		return pod.ReasonWaitsForDevices, "waiting for the devices of pods that stop: " + detail
	}
	return reason, detail
}

// uidOwners returns the generated UIDs of desired pods, each with its pod. Admit refuses a pod
// whose manifest sets one of these UIDs, whatever its priority.
func uidOwners(want []*pod.Spec) map[string]pod.Key {
	owners := make(map[string]pod.Key, len(want))
	for _, spec := range want {
		if !pod.HasChosenUID(spec) {
			owners[spec.UID()] = spec.Key
		}
	}
	return owners
}

// DuplicateUID is the reason of a Refusal: the UID is another pod's.
const DuplicateUID = "DuplicateUID"

// messages has the kubelet's messages that do not depend on this node, by reason.
var messages = map[string]string{
	"PodOSSelectorNodeLabelDoesNotMatch": "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
	"PodOSNotSupported":                  "Failed to admit pod as the OS field doesn't match node OS",
	"NodeAffinity":                       "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
	"NodeName":                           "Predicate NodeName failed: node(s) didn't match the requested node name",
	"NodePorts":                          "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports",
	"TaintToleration":                    "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate",
	"AppArmor":                           "Cannot enforce AppArmor: AppArmor is not enabled on the host",
}

func refusal(spec *pod.Spec, reason, detail string, final bool) Refusal {
	if message, ok := messages[reason]; ok {
		return Refusal{Spec: spec, Reason: reason, Message: message, Detail: detail, Final: final}
	}
	return Refusal{Spec: spec, Reason: reason, Message: detail, Final: final}
}

// StartOrder is negative if a starts before b. Pods start by priority, highest first, then by
// creation time (C-1.15.1), file, line and key. Static pods have no creation time and come
// before others of their priority. StartOrder is 0 only for pods that agree in all of these.
func StartOrder(a, b *pod.Spec) int {
	return cmp.Or(
		-cmp.Compare(Priority(a), Priority(b)),
		a.Pod.CreationTimestamp.Time.Compare(b.Pod.CreationTimestamp.Time),
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

type admission struct {
	node  Node
	keys  map[pod.Key]int
	uids  map[string][]*pod.Spec
	ports map[portSlot]*portHolders
	used  v1.ResourceList // sum of all requests for the resources that the node limits
	// excluded is the admitted spec whose edit the caller judges: meanwhile it does not count.
	excluded *pod.Spec
	// replaced has the specs that an accepted edit has replaced. They do not count, even if
	// ports still has them.
	replaced map[*pod.Spec]bool
}

func newAdmission(node Node, admitted []*pod.Spec) *admission {
	a := &admission{
		node: node,
		keys: map[pod.Key]int{}, uids: map[string][]*pod.Spec{},
		ports: map[portSlot]*portHolders{}, used: v1.ResourceList{}, replaced: map[*pod.Spec]bool{},
	}
	for _, spec := range admitted {
		a.add(spec)
	}
	return a
}

type portSlot struct {
	protocol v1.Protocol
	port     int32
}

// portHolders has the pods that use a port of the node, by address. So the cost of finding a
// conflict does not depend on the number of addresses.
type portHolders struct {
	all   holders             // at any address
	every holders             // at every address (0.0.0.0)
	at    map[string]*holders // at one address
}

// holders has pods in the order of their admission. It usually has one.
type holders struct {
	first *pod.Spec
	more  []*pod.Spec
}

// add appends a pod, unless it is the last one.
func (h *holders) add(spec *pod.Spec) {
	switch n := len(h.more); {
	case h.first == nil:
		h.first = spec
	case n == 0 && h.first != spec, n > 0 && h.more[n-1] != spec:
		h.more = append(h.more, spec)
	}
}

// holder returns the first of the pods that is neither replaced nor excluded, nil for none. It
// drops replaced pods, so that no later call visits them.
func (a *admission) holder(h *holders) *pod.Spec {
	if h == nil {
		return nil
	}
	for len(h.more) > 0 && a.replaced[h.first] {
		h.first, h.more = h.more[0], h.more[1:]
	}
	if h.first != a.excluded && !a.replaced[h.first] {
		return h.first
	}
	for len(h.more) > 0 && a.replaced[h.more[0]] {
		h.more = h.more[1:]
	}
	if len(h.more) > 0 {
		return h.more[0]
	}
	return nil
}

func (a *admission) add(spec *pod.Spec) {
	a.count(spec)
	a.uids[spec.UID()] = append(a.uids[spec.UID()], spec)
	for _, p := range pod.HostPorts(spec.Pod) {
		slot := portSlot{p.Protocol, p.HostPort}
		h := a.ports[slot]
		if h == nil {
			h = &portHolders{}
			a.ports[slot] = h
		}
		h.all.add(spec)
		if pod.IsEveryAddress(p.HostIP) {
			h.every.add(spec)
			continue
		}
		at := h.at[p.HostIP]
		if at == nil {
			if h.at == nil {
				h.at = make(map[string]*holders)
			}
			at = &holders{}
			h.at[p.HostIP] = at
		}
		at.add(spec)
	}
}

// count adds a pod's key and requests.
func (a *admission) count(spec *pod.Spec) {
	a.keys[spec.Key]++
	for name, q := range a.requests(spec.Pod) {
		sum := a.used[name]
		sum.Add(q)
		a.used[name] = sum
	}
}

// discount reverts count.
func (a *admission) discount(spec *pod.Spec) {
	if a.keys[spec.Key]--; a.keys[spec.Key] == 0 {
		delete(a.keys, spec.Key)
	}
	for name, q := range a.requests(spec.Pod) {
		rest := a.used[name]
		rest.Sub(q)
		a.used[name] = rest
	}
}

// judge returns the first reason against spec (C-1.31.4a), "" for none, and the detail for
// the log. The order of the rules is the kubelet's. It has no rule duplicate: it never judges two
// pods of one name or UID.
func (a *admission) judge(spec *pod.Spec) (reason, detail string) {
	for _, rule := range []func(*pod.Spec) (reason, detail string){
		a.duplicate, a.pressure, a.sysctls, a.devices, a.placeable, a.system, a.fit, a.affinity, a.nodeName, a.portTaken, a.taints, a.appArmor, a.features,
	} {
		if reason, detail = rule(spec); reason != "" {
			return reason, detail
		}
	}
	return "", ""
}

// duplicate rejects a second pod of a name or a UID.
func (a *admission) duplicate(spec *pod.Spec) (reason, detail string) {
	if a.keys[spec.Key] > 0 {
		return "DuplicatePod", "another pod already has the name " + spec.Key.String()
	}
	if other, taken := a.uidHolder(spec.UID()); taken && spec.UID() != "" && other != spec.Key {
		return DuplicateUID, fmt.Sprintf("uid %s belongs to pod %s", spec.UID(), other)
	}
	return "", ""
}

// uidHolder returns the pod that has a UID: the last admitted one, else the pod in node.UIDs.
func (a *admission) uidHolder(uid string) (holder pod.Key, taken bool) {
	for _, spec := range slices.Backward(a.uids[uid]) {
		if spec != a.excluded {
			return spec.Key, true
		}
	}
	holder, taken = a.node.UIDs[uid]
	return holder, taken
}

func (a *admission) portTaken(spec *pod.Spec) (reason, detail string) {
	for _, p := range pod.HostPorts(spec.Pod) {
		if holder := a.portHolder(portSlot{p.Protocol, p.HostPort}, p.HostIP); holder != nil {
			return "NodePorts", fmt.Sprintf("host port %d/%s is taken by pod %s", p.HostPort, p.Protocol, holder.Key)
		}
	}
	return "", ""
}

// portHolder returns a pod that uses the port at an address in conflict with ip, nil for none.
// An address is in conflict with itself; one that means every address is in conflict with all.
func (a *admission) portHolder(slot portSlot, ip string) *pod.Spec {
	h := a.ports[slot]
	switch {
	case h == nil:
		return nil
	case pod.IsEveryAddress(ip):
		return a.holder(&h.all)
	}
	if holder := a.holder(&h.every); holder != nil {
		return holder
	}
	return a.holder(h.at[ip])
}
