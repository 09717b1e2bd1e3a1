package cri

import (
	"maps"
	"math"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	podresource "k8s.io/component-helpers/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// The kubelet's values of oom_score_adj (C-1.22.13).
const (
	oomGuaranteed = -997
	oomBestEffort = 1000
)

// machine is the node's part in the resources of containers.
type machine struct {
	memory    int64    // bytes, 0 if the kernel does not report it
	unified   bool     // cgroup v2
	swap      bool     // the kernel limits swap
	swapBytes int64    // the machine's swap
	pageSize  int64    // bytes
	hugePages []string // the kernel's sizes, as it names them: "2MB"
	enforce   pod.Enforcement
}

// resources are those of one container of want.
func (r *Runtime) resources(want *pod.Spec, c *v1.Container) *runtimeapi.LinuxContainerResources {
	m := r.machine
	if m.enforce.Cluster && !want.Origin.FromAPI() {
		m.enforce.LimitedSwap = false // a static pod of a cluster's node is critical (C-1.41.9)
	}
	res := m.resources(want.Pod, c)
	placed := want.Placed[c.Name]
	if placed.CPUs != "" {
		res.CpusetCpus = placed.CPUs
		if res.CpuQuota > 0 && !m.enforce.OwnCPUQuota { // it has all of their time (C-1.46.6)
			res.CpuQuota = unlimited
		}
	}
	res.CpusetMems = placed.Mems()
	return res
}

// resources are the limits the kernel enforces on one container, as the kubelet sends them.
// If the container has no limit of its own, the pod's counts.
func (m machine) resources(p *v1.Pod, c *v1.Container) *runtimeapi.LinuxContainerResources {
	limit := func(name v1.ResourceName) resource.Quantity {
		q := c.Resources.Limits[name]
		if q.IsZero() && p.Spec.Resources != nil {
			q = p.Spec.Resources.Limits[name]
		}
		return q
	}
	ask, ok := c.Resources.Requests[v1.ResourceCPU]
	if !ok {
		ask = limit(v1.ResourceCPU)
	}
	res := m.limits(ask, limit(v1.ResourceCPU), limit(v1.ResourceMemory))
	res.OomScoreAdj = oomScore(p, c, m.memory)
	res.HugepageLimits = m.hugepageLimits(p, c)
	switch {
	case !m.swap:
	case m.unified:
		unify(res, swapMax, m.swapOf(p, c))
	default:
		res.MemorySwapLimitInBytes = res.MemoryLimitInBytes // the limit of memory and swap together
	}
	if m.unified && m.enforce.MemoryQoS != nil {
		m.memoryQoS(res, p, c)
	}
	return res
}

// limits converts amounts to the kernel's units (C-1.22.14). Without a CPU limit it sets the
// period and no quota. If CPU limits are not enforced, it sets neither.
func (m machine) limits(ask, cpu, memory resource.Quantity) *runtimeapi.LinuxContainerResources {
	res := &runtimeapi.LinuxContainerResources{
		CpuShares:          pod.CPUShares(ask.MilliValue()),
		MemoryLimitInBytes: memory.Value(),
	}
	if !m.enforce.NoCPUQuota {
		res.CpuQuota, res.CpuPeriod = m.enforce.CPUQuota(cpu.MilliValue())
	}
	if m.unified && !m.enforce.OOMKillsOne {
		unify(res, "memory.oom.group", 1) // C-1.41.8
	}
	return res
}

// sandboxResources are the resources of the whole pod, for runtimes that size a virtual
// machine by them: the pod's overhead, and those of its containers without the overhead.
func (m machine) sandboxResources(p *v1.Pod) (overhead, resources *runtimeapi.LinuxContainerResources) {
	opts := podresource.PodResourcesOptions{ExcludeOverhead: true}
	asks, limits := podresource.PodRequests(p, opts), podresource.PodLimits(p, opts)
	ask, ok := asks[v1.ResourceCPU]
	if !ok {
		ask = limits[v1.ResourceCPU]
	}
	overhead = &runtimeapi.LinuxContainerResources{}
	if o := p.Spec.Overhead; o != nil {
		overhead = m.limits(o[v1.ResourceCPU], o[v1.ResourceCPU], o[v1.ResourceMemory])
	}
	return overhead, m.limits(ask, limits[v1.ResourceCPU], limits[v1.ResourceMemory])
}

// hugepageLimits has an entry for every size of the kernel; it is zero if neither the
// container nor its pod has a limit.
func (m machine) hugepageLimits(p *v1.Pod, c *v1.Container) []*runtimeapi.HugepageLimit {
	limits := map[string]int64{}
	if p.Spec.Resources != nil {
		limits = pod.HugePages(p.Spec.Resources.Limits)
	}
	maps.Copy(limits, pod.HugePages(c.Resources.Limits))
	var out []*runtimeapi.HugepageLimit
	for _, size := range m.hugePages {
		out = append(out, &runtimeapi.HugepageLimit{PageSize: size, Limit: uint64(limits[size])})
	}
	return out
}

// memoryRequest is the container's memory request; it defaults to the limit.
func memoryRequest(c *v1.Container) int64 {
	q, ok := c.Resources.Requests[v1.ResourceMemory]
	if !ok {
		q = c.Resources.Limits[v1.ResourceMemory]
	}
	return q.Value()
}

// oomScore is the container's oom_score_adj (C-1.22.13).
func oomScore(p *v1.Pod, c *v1.Container, memory int64) int64 {
	if p.Spec.PriorityClassName == "system-node-critical" {
		return oomGuaranteed
	}
	switch pod.QOS(&p.Spec) {
	case v1.PodQOSGuaranteed:
		return oomGuaranteed
	case v1.PodQOSBestEffort:
		return oomBestEffort
	}
	if memory <= 0 {
		return oomBestEffort - 1
	}
	asked := memoryRequest(c)
	for i := range p.Spec.InitContainers {
		if ic := &p.Spec.InitContainers[i]; ic.Name == c.Name && pod.Restartable(ic) {
			// A sidecar is not killed before the containers that it serves.
			asked = max(asked, leastRequest(p))
		}
	}
	score := oomBestEffort - 1000*(asked+unassigned(p))/memory
	return min(max(score, 1000+oomGuaranteed), oomBestEffort-1)
}

// leastRequest is the smallest memory request of the pod's containers.
func leastRequest(p *v1.Pod) int64 {
	least := int64(math.MaxInt64)
	for i := range p.Spec.Containers {
		least = min(least, memoryRequest(&p.Spec.Containers[i]))
	}
	return least
}

// unassigned is each container's equal part of the pod-level memory request minus the
// requests of all containers.
func unassigned(p *v1.Pod) int64 {
	if p.Spec.Resources == nil {
		return 0
	}
	whole, ok := p.Spec.Resources.Requests[v1.ResourceMemory]
	if !ok || whole.IsZero() {
		return 0
	}
	sum := podresource.AggregateContainerRequests(p, podresource.PodResourcesOptions{})[v1.ResourceMemory]
	return (whole.Value() - sum.Value()) / int64(len(p.Spec.Containers)+len(p.Spec.InitContainers))
}
