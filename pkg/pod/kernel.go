package pod

import (
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// CPUShares returns the shares of CPU time that cgroup v1 is given for so many
// thousandths of a CPU, within the kernel's bounds (C-1.22.14).
func CPUShares(milli int64) int64 {
	const least, most = 2, 262144
	return min(max(milli*1024/1000, least), most)
}

// Enforcement is how the kernel enforces the resources of pods. Its zero value is the
// kubelet's default.
type Enforcement struct {
	NoCPUQuota  bool          // CPU limits are not enforced
	CPUPeriod   time.Duration // of CPU quotas; 0 is 100 ms
	LimitedSwap bool          // burstable pods get a part of the swap
	Cluster     bool          // the node belongs to a cluster: static pods are critical there
	OwnCPUQuota bool          // CPU limits are enforced for containers with exclusive CPUs, too
	OOMKillsOne bool          // out of memory, the kernel kills one process, not the container
	MemoryQoS   *MemoryQoS    // of cgroup v2; nil is off
}

// MemoryQoS protects the memory that pods request, and throttles containers before they
// reach their limits (C-1.41.10).
type MemoryQoS struct {
	Throttling  float64 // part of the way from request to limit, in (0, 1]
	Reserve     bool    // protects the requests of guaranteed and burstable pods
	Allocatable int64   // of the node, in bytes: the limit of containers without one
}

// CPUQuota returns the CPU time that a limit of milli CPUs permits in each period, both in µs
// (C-1.22.14). Without a limit, or if limits are not enforced, quota is 0.
func (e Enforcement) CPUQuota(milli int64) (quota, period int64) {
	const usual, least = 100_000, 1000
	if period = e.CPUPeriod.Microseconds(); period == 0 {
		period = usual
	}
	if milli <= 0 || e.NoCPUQuota {
		return 0, period
	}
	return max(milli*period/1000, least), period
}

// HugePages returns the huge pages in a list, in bytes, by size in the form of PageSize.
func HugePages(list v1.ResourceList) map[string]int64 {
	all := map[string]int64{}
	for name, q := range list {
		if text, ok := strings.CutPrefix(string(name), v1.ResourceHugePagesPrefix); ok {
			if size, err := resource.ParseQuantity(text); err == nil {
				all[PageSize(size.Value())] = max(q.Value(), 0)
			}
		}
	}
	return all
}

// PageSize names a size of pages, in bytes, as the kernel's files do: "2MB", "1GB".
func PageSize(bytes int64) string {
	units := []string{"B", "KB", "MB", "GB"}
	i := 0
	for ; bytes > 0 && bytes%1024 == 0 && i < len(units)-1; i++ {
		bytes /= 1024
	}
	return strconv.FormatInt(bytes, 10) + units[i]
}
