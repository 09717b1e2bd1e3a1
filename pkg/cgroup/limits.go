package cgroup

import (
	"strconv"

	cgroups "github.com/opencontainers/cgroups"
	v1 "k8s.io/api/core/v1"
	podresource "k8s.io/component-helpers/resource"

	"github.com/nodectl/nodectl/pkg/pod"
)

// The kernel's limits and the kubelet's defaults (C-1.22.14).
const (
	minShares = 2
	maxShares = 262144
	maxWeight = 10000

	unlimited = -1
	// unbounded is the kubelet's value for huge pages without a limit.
	unbounded = 1 << 62
)

// resourcePID is the kubelet's name for process IDs.
const resourcePID v1.ResourceName = "pid"

// limits are the values for one cgroup. Zero values are not written.
type limits struct {
	shares uint64 // of CPU time, in cgroup v1's units
	quota  int64  // µs of CPU time in each period; unlimited means none
	period int64  // µs, if there is a quota
	memory int64  // bytes
	pids   int64
	pages  []pages           // of huge pages
	guard  map[string]string // files of cgroup v2 that protect memory
}

// Files of cgroup v2.
const (
	memoryMin = "memory.min"
	memoryLow = "memory.low"
)

// pages is the limit of one size of huge pages, in bytes.
type pages struct {
	size  string // as the kernel names it: "2MB"
	limit uint64
}

// weight converts shares to cgroup v2's weight: [2, 262144] to [1, 10000].
func weight(shares uint64) uint64 {
	if shares == 0 {
		return 0
	}
	return 1 + (min(max(shares, minShares), maxShares)-minShares)*(maxWeight-1)/(maxShares-minShares)
}

// ofSpec is ofPod, but a pod with exclusive CPUs has no quota of CPU time (C-1.46.6).
func (c Config) ofSpec(want *pod.Spec, sizes []string) limits {
	c.Enforce.NoCPUQuota = c.Enforce.NoCPUQuota || want.HasOwnCPUs() && !c.Enforce.OwnCPUQuota
	return c.ofPod(want.Pod, sizes)
}

// ofPod returns the limits of a pod's cgroup (C-1.41.2). CPU and memory are limited if each container
// of the pod has such a limit, or the pod as a whole. Each size of huge pages is limited to the
// pod's request, or to zero. The configuration says how many processes the pod may have, how CPU
// limits are enforced, and whether its memory is protected (C-1.41.10).
func (c Config) ofPod(p *v1.Pod, sizes []string) limits {
	l := limits{shares: minShares, quota: unlimited, memory: unlimited, pids: unlimited}
	if c.PodPIDs > 0 {
		l.pids = c.PodPIDs
	}
	asks := podresource.PodRequests(p, podresource.PodResourcesOptions{})
	l.pages = pagesOf(asks, sizes, 0)
	if pod.QOS(&p.Spec) == v1.PodQOSBestEffort {
		return l
	}
	cpu, memory := true, true
	most := podresource.PodLimits(p, podresource.PodResourcesOptions{ContainerFn: func(list v1.ResourceList, _ podresource.ContainerType) {
		cpu = cpu && !list.Cpu().IsZero()
		memory = memory && !list.Memory().IsZero()
	}})
	if r := p.Spec.Resources; r != nil {
		cpu = cpu || !r.Limits.Cpu().IsZero()
		memory = memory || !r.Limits.Memory().IsZero()
	}
	l.shares = uint64(pod.CPUShares(asks.Cpu().MilliValue()))
	if quota, period := c.Enforce.CPUQuota(most.Cpu().MilliValue()); cpu && quota > 0 {
		l.quota, l.period = quota, period
	}
	if bytes := most.Memory().Value(); memory && bytes > 0 {
		l.memory = bytes
	}
	if bytes := asks.Memory().Value(); c.reserves() && bytes > 0 {
		file := memoryLow
		if pod.QOS(&p.Spec) == v1.PodQOSGuaranteed {
			file = memoryMin
		}
		l.guard = guard(file, bytes)
	}
	return l
}

// reserves reports whether the memory that pods request is protected.
func (c Config) reserves() bool { return c.Enforce.MemoryQoS != nil && c.Enforce.MemoryQoS.Reserve }

func guard(file string, bytes int64) map[string]string {
	return map[string]string{file: strconv.FormatInt(bytes, 10)}
}

// ofNode returns the limits of all pods together (C-1.41.6).
func ofNode(list v1.ResourceList, sizes []string) limits {
	l := limits{pages: pagesOf(list, sizes, 0)}
	if q, ok := list[v1.ResourceCPU]; ok {
		l.shares = uint64(pod.CPUShares(q.MilliValue()))
	}
	if q, ok := list[v1.ResourceMemory]; ok {
		l.memory = q.Value()
	}
	if q, ok := list[resourcePID]; ok {
		l.pids = q.Value()
	}
	return l
}

// ofTier returns the limits of a tier whose pods request milli CPU together (C-1.41.3).
func ofTier(milli int64, sizes []string) limits {
	return limits{shares: uint64(pod.CPUShares(milli)), pages: pagesOf(nil, sizes, unbounded)}
}

// ofTiers returns the limits of the burstable tier and of kubepods that follow from the sums of
// their pods. The protected memory of kubepods is the sum over all pods, since it is above the burstable
// tier and the guaranteed pods.
func (c Config) ofTiers(sum sums) (burst, all limits) {
	burst.shares = uint64(pod.CPUShares(sum.milli))
	if c.Enforce.MemoryQoS != nil {
		burst.guard = guard(memoryLow, sum.burstable)
		all.guard = guard(memoryMin, sum.guaranteed+sum.burstable)
	}
	return burst, all
}

// pagesOf returns the amount in list for each size of huge pages, and rest for sizes that are not in
// list.
func pagesOf(list v1.ResourceList, sizes []string, rest uint64) []pages {
	var all []pages
	listed := pod.HugePages(list)
	for _, size := range sizes {
		p := pages{size, rest}
		if bytes, ok := listed[size]; ok {
			p.limit = uint64(bytes)
		}
		all = append(all, p)
	}
	return all
}

// beyond returns l with only the fields that are greater than those of have; the others are zero.
func (l limits) beyond(have limits) limits {
	if l.period > 0 && have.period > 0 && have.quota > 0 { // the configured period may have changed
		have.quota = have.quota * l.period / have.period
	}
	more := func(a, b int64) int64 {
		if a != 0 && b != unlimited && (a == unlimited || a > b) {
			return a
		}
		return 0
	}
	out := limits{quota: more(l.quota, have.quota), period: l.period, memory: more(l.memory, have.memory)}
	if l.shares > have.shares {
		out.shares = l.shares
	}
	return out
}

// resources converts l to the library's type.
func (l limits) resources(unified bool) *cgroups.Resources {
	r := &cgroups.Resources{SkipDevices: true, SkipFreezeOnSet: true, Memory: l.memory, CpuQuota: l.quota}
	if unified {
		r.CpuWeight = weight(l.shares)
		r.Unified = l.guard
	} else {
		r.CpuShares = l.shares
	}
	if l.quota > 0 {
		r.CpuPeriod = uint64(l.period)
	}
	if l.pids != 0 {
		r.PidsLimit = &l.pids
	}
	for _, p := range l.pages {
		r.HugetlbLimit = append(r.HugetlbLimit, &cgroups.HugepageLimit{Pagesize: p.size, Limit: p.limit})
	}
	return r
}
