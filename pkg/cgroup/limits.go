package cgroup

import (
	cgroups "github.com/opencontainers/cgroups"
	v1 "k8s.io/api/core/v1"
	podresource "k8s.io/component-helpers/resource"

	"github.com/nodectl/nodectl/pkg/pod"
)

// The kernel's bounds and the kubelet's choices (C-1.22.14).
const (
	minShares = 2
	maxShares = 262144
	maxWeight = 10000
	period    = 100_000 // µs
	minQuota  = 1000    // µs

	unlimited = -1
	// unbounded is what the kubelet writes where huge pages are not limited.
	unbounded = 1 << 62
)

// resourcePID is the kubelet's name for process IDs.
const resourcePID v1.ResourceName = "pid"

// limits are what is written to one cgroup. A field that is zero is left as it is.
type limits struct {
	shares uint64 // of CPU time, as cgroup v1 counts them
	quota  int64  // µs of CPU time in each period; unlimited for none
	memory int64  // bytes
	pids   int64
	pages  []pages // of huge pages
}

// pages is how much of one size of huge pages there may be, in bytes.
type pages struct {
	size  string // as the kernel names it: "2MB"
	limit uint64
}

// weight is what cgroup v2 has for shares: [2, 262144] onto [1, 10000].
func weight(shares uint64) uint64 {
	if shares == 0 {
		return 0
	}
	return 1 + (min(max(shares, minShares), maxShares)-minShares)*(maxWeight-1)/(maxShares-minShares)
}

// milliRequest is the CPU time the pod asks for, overhead and sidecars included.
func milliRequest(p *v1.Pod) int64 {
	q := podresource.PodRequests(p, podresource.PodResourcesOptions{})[v1.ResourceCPU]
	return q.MilliValue()
}

// ofPod is C-1.41.2: time and memory are limited where every container of the pod
// is, or the pod as a whole; each size of huge pages is, to none where it is not
// asked for. pids is the most processes a pod may have, none where it is not
// positive.
func ofPod(p *v1.Pod, pids int64, sizes []string) limits {
	l := limits{shares: minShares, quota: unlimited, memory: unlimited, pids: unlimited}
	if pids > 0 {
		l.pids = pids
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
	if milli := most.Cpu().MilliValue(); cpu && milli > 0 {
		l.quota = max(milli*period/1000, minQuota)
	}
	if bytes := most.Memory().Value(); memory && bytes > 0 {
		l.memory = bytes
	}
	return l
}

// ofNode is what all pods together may have (C-1.41.6).
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

// ofTier is a QoS class whose pods ask for so much CPU time in all (C-1.41.3).
func ofTier(milli int64, sizes []string) limits {
	return limits{shares: uint64(pod.CPUShares(milli)), pages: pagesOf(nil, sizes, unbounded)}
}

// pagesOf is list's amount of each size, rest of those that it does not name.
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

// beyond is what of l is more than have has; the rest is left as it is.
func (l limits) beyond(have limits) limits {
	more := func(a, b int64) int64 {
		if a != 0 && b != unlimited && (a == unlimited || a > b) {
			return a
		}
		return 0
	}
	out := limits{quota: more(l.quota, have.quota), memory: more(l.memory, have.memory)}
	if l.shares > have.shares {
		out.shares = l.shares
	}
	return out
}

// resources is l as the library takes it.
func (l limits) resources(unified bool) *cgroups.Resources {
	r := &cgroups.Resources{SkipDevices: true, SkipFreezeOnSet: true, Memory: l.memory, CpuQuota: l.quota}
	if unified {
		r.CpuWeight = weight(l.shares)
	} else {
		r.CpuShares = l.shares
	}
	if l.quota > 0 {
		r.CpuPeriod = period
	}
	if l.pids != 0 {
		r.PidsLimit = &l.pids
	}
	for _, p := range l.pages {
		r.HugetlbLimit = append(r.HugetlbLimit, &cgroups.HugepageLimit{Pagesize: p.size, Limit: p.limit})
	}
	return r
}
