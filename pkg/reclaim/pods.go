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

// critical is the lowest priority of pods that are never evicted (C-1.35.8).
const critical = pod.PriorityClusterCritical

// evictable reports whether a pod may be evicted.
func (p EvictPolicy) evictable(it Pod) bool {
	return it.Priority < critical && (!p.Cluster || !it.Static)
}

// evict adds the eviction of the pod that ranks first for a threshold. While the last evicted pod is
// still stopping, but for at most EvictWait, it evicts no other pod.
func (r *round) evict(t Threshold, level Level, why string) {
	if i := slices.IndexFunc(r.node.Pods, func(p Pod) bool { return p.UID == r.after.Evicted }); i >= 0 {
		if left := EvictWait - r.node.Now.Sub(r.after.EvictedAt); left > 0 {
			r.plan.wait(left, fmt.Sprintf("%s; the evicted pod %s is still stopping", why, r.node.Pods[i].Key))
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
	step := Step{Action: EvictPod, ID: it.UID, Pod: it.Key, Signal: t.Signal, Grace: hardGrace}
	step.Message, step.Cause = explain(t, level, it)
	if !t.isHard() {
		step.Grace = min(r.policy.MaxGrace, it.Grace)
	}
	step.Why = why + "; " + r.node.consumption(t.Signal, it).String()
	for _, f := range r.node.Filesystems {
		step.Bytes += it.on(f).Bytes
	}
	r.evicts, r.after.Evicted, r.after.EvictedAt = true, it.UID, r.node.Now
	r.plan.Steps = append(r.plan.Steps, step)
}

// hardGrace is the grace period of a pod that a hard threshold evicts (C-1.35.7).
const hardGrace = 1

// consumption has the values that rank compares: a pod's usage and request of a signal's resource,
// and its priority.
type consumption struct {
	signal          string
	measured        bool
	used, requested int64
	priority        int32
}

func (n Node) consumption(signal string, p Pod) consumption {
	u := consumption{signal: signal, measured: p.Measured, priority: p.Priority}
	fs := n.disk(signal)
	u.measured = u.measured && (fs == nil || !p.DiskUnknown)
	switch {
	case fs != nil && inodesOf(signal):
		u.used = p.on(*fs).Inodes
	case fs != nil:
		u.used, u.requested = p.on(*fs).Bytes, p.DiskRequest
	case signal == pod.SignalPIDs:
		u.used = p.PIDs
	default:
		u.used, u.requested = p.Memory, p.MemoryRequest
	}
	return u
}

// String returns the usage, request and priority as text for the reason of a step.
func (u consumption) String() string {
	if !u.measured {
		return fmt.Sprintf("the usage of the pod is unknown, its priority is %d", u.priority)
	}
	text := "the pod uses " + amount(u.signal, u.used)
	if u.signal != pod.SignalPIDs && !inodesOf(u.signal) {
		text += ", requests " + amount(u.signal, u.requested)
	}
	return fmt.Sprintf("%s, its priority is %d", text, u.priority)
}

// rank returns pods in the kubelet's order of evictions (C-1.35.6). Pods whose usage is unknown come
// first, then those that use more than they request. Among equals the lower priority comes first, then
// the pod that exceeds its request the most. For process IDs it compares the priority first, then
// whether the usage is unknown, then the number of processes.
func (n Node) rank(signal string, pods []Pod) []Pod {
	return slices.SortedFunc(slices.Values(pods), func(a, b Pod) int {
		x, y := n.consumption(signal, a), n.consumption(signal, b)
		exceeds := func(u consumption) bool { return u.used > u.requested }
		order := cmp.Or(first(!x.measured, !y.measured), first(exceeds(x), exceeds(y)))
		if signal == pod.SignalPIDs {
			order = 0
		}
		return cmp.Or(
			order,
			cmp.Compare(x.priority, y.priority),
			first(!x.measured, !y.measured),
			cmp.Compare(y.used-y.requested, x.used-x.requested),
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

// explain returns the kubelet's message for the status of an evicted pod, and the cause for its event.
func explain(t Threshold, level Level, p Pod) (text string, cause pod.EvictionCause) {
	name := resourceOf(t.Signal)
	format := resource.BinarySI
	if t.Signal == pod.SignalPIDs || inodesOf(t.Signal) {
		format = resource.DecimalSI
	}
	least := resource.NewQuantity(t.Of(level.Capacity), resource.BinarySI)
	if t.Quantity != nil {
		least = t.Quantity
	}
	text = fmt.Sprintf("The node was low on resource: %v. ", name) +
		fmt.Sprintf("Threshold quantity: %v, available: %v. ", least, resource.NewQuantity(level.Available, format))
	if !p.Measured {
		return text, cause
	}
	cause.Resource = name
	binary := func(n int64) *resource.Quantity { return resource.NewQuantity(n, resource.BinarySI) }
	if own, ok := p.Requests[v1.ResourceMemory]; ok && name == string(v1.ResourceMemory) {
		text += fmt.Sprintf("Pod %s was using %s, request is %s, has larger consumption of %v. ", p.Key.Name, binary(p.Memory), &own, name)
		cause.Pod, cause.PodUsage = p.Key.Name, binary(p.Memory).String()
	}
	var names, usage []string
	for _, c := range p.Containers {
		var used int64
		switch v1.ResourceName(name) {
		case v1.ResourceMemory:
			used = c.Memory
		case v1.ResourceEphemeralStorage:
			used = c.Writable.Bytes + c.Logs.Bytes
		default:
			continue
		}
		if request := c.Requests[v1.ResourceName(name)]; used > request.Value() {
			text += fmt.Sprintf("Container %s was using %s, request is %s, has larger consumption of %v. ", c.Name, binary(used), &request, name)
			names, usage = append(names, c.Name), append(usage, binary(used).String())
		}
	}
	cause.Containers, cause.Usage = strings.Join(names, ","), strings.Join(usage, ",")
	return text, cause
}
