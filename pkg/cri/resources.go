package cri

import (
	"bufio"
	"os"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// The kernel's bounds and the kubelet's choices (C-1.22.13, C-1.22.14).
const (
	minShares     = 2
	maxShares     = 262144
	sharesPerCPU  = 1024
	period        = 100_000 // µs
	minQuota      = 1000    // µs
	oomGuaranteed = -997
	oomBestEffort = 1000
	milliPerCPU   = 1000
)

// resources are the limits the kernel enforces on one container. memory is the
// machine's, in bytes.
func resources(p *v1.Pod, c *v1.Container, memory int64) *runtimeapi.LinuxContainerResources {
	res := &runtimeapi.LinuxContainerResources{
		CpuShares:   shares(request(c, v1.ResourceCPU).MilliValue()),
		OomScoreAdj: oomScore(p, c, memory),
	}
	if limit, ok := c.Resources.Limits[v1.ResourceCPU]; ok && !limit.IsZero() {
		res.CpuPeriod = period
		res.CpuQuota = max(limit.MilliValue()*period/milliPerCPU, minQuota)
	}
	if limit, ok := c.Resources.Limits[v1.ResourceMemory]; ok {
		res.MemoryLimitInBytes = limit.Value()
	}
	return res
}

func shares(milli int64) int64 {
	return min(max(milli*sharesPerCPU/milliPerCPU, minShares), maxShares)
}

// request is what the container asks for; a limit alone asks for itself.
func request(c *v1.Container, name v1.ResourceName) *resource.Quantity {
	if q, ok := c.Resources.Requests[name]; ok {
		return &q
	}
	q := c.Resources.Limits[name]
	return &q
}

// oomScore is the container's oom_score_adj (C-1.22.13).
func oomScore(p *v1.Pod, c *v1.Container, memory int64) int64 {
	if p.Spec.PriorityClassName == "system-node-critical" {
		return oomGuaranteed
	}
	switch qos(p) {
	case v1.PodQOSGuaranteed:
		return oomGuaranteed
	case v1.PodQOSBestEffort:
		return oomBestEffort
	}
	score := burstableScore(c, memory)
	for i := range p.Spec.InitContainers {
		if ic := &p.Spec.InitContainers[i]; ic.Name == c.Name && pod.Restartable(ic) {
			// A sidecar is not killed before the container it serves.
			for j := range p.Spec.Containers {
				score = min(score, burstableScore(&p.Spec.Containers[j], memory))
			}
		}
	}
	return score
}

func burstableScore(c *v1.Container, memory int64) int64 {
	if memory <= 0 {
		return oomBestEffort - 1
	}
	score := oomBestEffort - 1000*request(c, v1.ResourceMemory).Value()/memory
	return min(max(score, 1000+oomGuaranteed), oomBestEffort-1)
}

// qos is the pod's class by cpu and memory alone: none asks for anything, all
// are limited to just what they ask for, or something between.
func qos(p *v1.Pod) v1.PodQOSClass {
	asks, exact := false, true
	for _, list := range [][]v1.Container{p.Spec.Containers, p.Spec.InitContainers} {
		for i := range list {
			for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
				limit := list[i].Resources.Limits[name]
				want := request(&list[i], name)
				asks = asks || !want.IsZero() || !limit.IsZero()
				exact = exact && !limit.IsZero() && limit.Cmp(*want) == 0
			}
		}
	}
	switch {
	case !asks:
		return v1.PodQOSBestEffort
	case exact:
		return v1.PodQOSGuaranteed
	}
	return v1.PodQOSBurstable
}

// nodeMemory is the machine's memory in bytes, 0 when the kernel does not say.
func nodeMemory() int64 {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), "MemTotal:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err != nil {
				return 0
			}
			return kib << 10
		}
	}
	return 0
}
