package reclaim

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodectl/nodectl/pkg/pod"
)

// critical is the priority from which on a pod is never evicted (C-1.35.8).
const critical = pod.PriorityClusterCritical

// evictable reports whether pressure may end a pod.
func (p EvictPolicy) evictable(it Pod) bool {
	return it.Priority < critical && (!p.Cluster || !it.Static)
}

// evict adds the eviction of the pod that ranks first for a threshold. It evicts none while
// the pod that was evicted last still stops.
func (r *round) evict(t Threshold, level Level, why string) {
	if i := slices.IndexFunc(r.node.Pods, func(p Pod) bool { return p.UID == r.after.Evicted }); i >= 0 {
		if left := cleanup - r.node.Now.Sub(r.after.EvictedAt); left > 0 {
			r.plan.wait(left, fmt.Sprintf("%s; pod %s, which was evicted, still stops", why, r.node.Pods[i].Key))
			return
		}
	}
	ranked := r.node.rank(t.Signal, slices.DeleteFunc(slices.Clone(r.node.Pods), func(p Pod) bool {
		return p.Stopping || !r.policy.evictable(p)
	}))
	if len(ranked) == 0 {
		if r.plan.WaitFor == "" {
			r.plan.WaitFor = why + "; no unused data and no pod that may be evicted is left"
		}
		return
	}
	it := ranked[0]
	step := Step{Action: EvictPod, ID: it.UID, Pod: it.Key, Signal: t.Signal, Grace: hardGrace, Message: message(t, level, it)}
	if !t.hard() {
		step.Grace = min(r.policy.MaxGrace, it.Grace)
	}
	step.Why = why + "; " + r.node.use(t.Signal, it).String()
	for _, f := range r.node.Filesystems {
		step.Bytes += it.on(f).Bytes
	}
	r.evicts, r.after.Evicted, r.after.EvictedAt = true, it.UID, r.node.Now
	r.plan.Steps = append(r.plan.Steps, step)
}

// hardGrace is the grace period of a pod that a hard threshold evicts (C-1.35.7).
const hardGrace = 1

// use is what a pod has of the resource that is short.
type use struct {
	signal        string
	measured      bool
	has, requests int64
	priority      int32
}

// use returns what a pod has of what a signal is about.
func (n Node) use(signal string, p Pod) use {
	u := use{signal: signal, measured: p.Measured, priority: p.Priority}
	fs := n.disk(signal)
	u.measured = u.measured && (fs == nil || !p.DiskUnknown)
	switch {
	case fs != nil && inodesOf(signal):
		u.has = p.on(*fs).Inodes
	case fs != nil:
		u.has, u.requests = p.on(*fs).Bytes, p.DiskRequest
	case signal == pod.SignalPIDs:
		u.has = p.PIDs
	default:
		u.has, u.requests = p.Memory, p.MemoryRequest
	}
	return u
}

// String says, for a person, why a pod ranks where it does.
func (u use) String() string {
	if !u.measured {
		return fmt.Sprintf("what the pod uses is not known, its priority is %d", u.priority)
	}
	text := "the pod uses " + amount(u.signal, u.has)
	if u.signal != pod.SignalPIDs && !inodesOf(u.signal) {
		text += ", requests " + amount(u.signal, u.requests)
	}
	return fmt.Sprintf("%s, its priority is %d", text, u.priority)
}

// rank orders pods by which is evicted first, as the kubelet does (C-1.35.6): those whose use
// is not known, those that use more than they request, those of lower priority, those that
// use the most beyond their request. For process IDs it starts with the priority.
func (n Node) rank(signal string, pods []Pod) []Pod {
	return slices.SortedFunc(slices.Values(pods), func(a, b Pod) int {
		x, y := n.use(signal, a), n.use(signal, b)
		exceeds := func(u use) bool { return u.has > u.requests }
		order := cmp.Or(first(!x.measured, !y.measured), first(exceeds(x), exceeds(y)))
		if signal == pod.SignalPIDs {
			order = 0
		}
		return cmp.Or(
			order,
			cmp.Compare(x.priority, y.priority),
			first(!x.measured, !y.measured),
			cmp.Compare(y.has-y.requests, x.has-x.requests),
			a.Key.Compare(b.Key),
			strings.Compare(a.UID, b.UID),
		)
	})
}

// first compares two pods by whether they have a property: the one that has it comes first.
func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// message returns the message of an evicted pod's status, the kubelet's.
func message(t Threshold, level Level, p Pod) string {
	name := resourceOf(t.Signal)
	format := resource.BinarySI
	if t.Signal == pod.SignalPIDs || inodesOf(t.Signal) {
		format = resource.DecimalSI
	}
	least := resource.NewQuantity(t.Of(level.Capacity), resource.BinarySI)
	if t.Quantity != nil {
		least = t.Quantity
	}
	text := fmt.Sprintf("The node was low on resource: %v. ", name) +
		fmt.Sprintf("Threshold quantity: %v, available: %v. ", least, resource.NewQuantity(level.Available, format))
	if !p.Measured {
		return text
	}
	binary := func(n int64) *resource.Quantity { return resource.NewQuantity(n, resource.BinarySI) }
	if own, ok := p.Requests[v1.ResourceMemory]; ok && name == string(v1.ResourceMemory) {
		text += fmt.Sprintf("Pod %s was using %s, request is %s, has larger consumption of %v. ", p.Key.Name, binary(p.Memory), &own, name)
	}
	for _, c := range p.Containers {
		var has int64
		switch v1.ResourceName(name) {
		case v1.ResourceMemory:
			has = c.Memory
		case v1.ResourceEphemeralStorage:
			has = c.Layer.Bytes + c.Logs.Bytes
		default:
			continue
		}
		if request := c.Requests[v1.ResourceName(name)]; has > request.Value() {
			text += fmt.Sprintf("Container %s was using %s, request is %s, has larger consumption of %v. ", c.Name, binary(has), &request, name)
		}
	}
	return text
}
