package config

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
)

// cfsPeriod is the default of cpu-cfs-quota-period.
const cfsPeriod = 100 * time.Millisecond

// tiered is the policy that protects the requested memory of pods.
const tiered = "TieredReservation"

// The values of enforce-node-allocatable.
const (
	enforceNone   = "none"
	enforcePods   = "pods"
	enforceSystem = "system-reserved"
	enforceKube   = "kube-reserved"
	compressible  = "-compressible" // only the CPU
)

// Enforcement returns how the kernel enforces the resources of pods. The node has
// allocatable bytes of memory for them.
func (c Config) Enforcement(allocatable int64) pod.Enforcement {
	e := pod.Enforcement{
		NoCPUQuota: !c.CPUCFSQuota, CPUPeriod: c.CPUCFSQuotaPeriod, OOMKillsOne: c.SingleProcessOOMKill,
		OwnCPUQuota: c.Disabled().Has(pod.FeatureNoQuota), LimitedSwap: c.MemorySwapBehavior == "LimitedSwap", Cluster: c.Kubeconfig != "",
	}
	if c.MemoryQoS {
		e.MemoryQoS = &pod.MemoryQoS{Throttling: c.MemoryThrottlingFactor, Reserve: c.MemoryReservationPolicy == tiered, Allocatable: allocatable}
	}
	return e
}

// PodLimit returns how many pods a node with so many processors may have; 0 is no limit.
func (c Config) PodLimit(cores int64) int {
	perCore := c.PodsPerCore * int(cores)
	if c.MaxPods == 0 || perCore == 0 {
		return cmp.Or(c.MaxPods, perCore)
	}
	return min(c.MaxPods, perCore)
}

// EnforcesPods reports whether the cgroup of all pods has the node's allocatable as its limit.
func (c Config) EnforcesPods() bool {
	return slices.Contains(items(c.EnforceNodeAllocatable), enforcePods)
}

// ReservedCgroup is a cgroup of the machine whose limits are its reservation.
type ReservedCgroup struct {
	Name         string
	Of           string // "system" or "kube"
	Compressible bool   // limit only the CPU
}

// ReservedCgroups returns the cgroups that enforce-node-allocatable names.
func (c Config) ReservedCgroups() (all []ReservedCgroup) {
	for _, item := range items(c.EnforceNodeAllocatable) {
		switch item {
		case enforceSystem, enforceSystem + compressible:
			all = append(all, ReservedCgroup{Name: c.SystemReservedCgroup, Of: "system", Compressible: item != enforceSystem})
		case enforceKube, enforceKube + compressible:
			all = append(all, ReservedCgroup{Name: c.KubeReservedCgroup, Of: "kube", Compressible: item != enforceKube})
		}
	}
	return all
}

// enforcements checks enforce-node-allocatable as the kubelet does.
func enforcements(c Config) string {
	all := items(c.EnforceNodeAllocatable)
	allowed := []string{enforcePods, enforceSystem, enforceSystem + compressible, enforceKube, enforceKube + compressible, enforceNone}
	for i, item := range all {
		if msg := oneOf(item, allowed...); msg != "" {
			return msg
		}
		if slices.Contains(all[:i], item) {
			return fmt.Sprintf("%s is named twice", item)
		}
	}
	if slices.Contains(all, enforceNone) && len(all) > 1 {
		return "none cannot be combined with others"
	}
	for name, cgroup := range map[string]string{enforceSystem: c.SystemReservedCgroup, enforceKube: c.KubeReservedCgroup} {
		whole, part := slices.Contains(all, name), slices.Contains(all, name+compressible)
		switch {
		case whole && part:
			return fmt.Sprintf("%[1]s and %[1]s%[2]s cannot be combined", name, compressible)
		case (whole || part) && cgroup == "":
			return fmt.Sprintf("%[1]s needs --%[1]s-cgroup", name)
		}
	}
	return ""
}

// reservedCgroup refuses the root of the hierarchy, which has no limits.
func reservedCgroup(name string) string {
	if name == "" {
		return ""
	}
	if name == "/" {
		return "must not be the root cgroup: it cannot be limited"
	}
	return absolute(name)
}

// factor accepts a fraction above 0 and up to 1.
func factor(f float64) string {
	if f > 0 && f <= 1 {
		return ""
	}
	return fmt.Sprintf("must be greater than 0 and at most 1 (got %v)", f)
}

// reservation checks memory-reservation-policy.
func reservation(c Config) string {
	if c.MemoryReservationPolicy == tiered && !c.MemoryQoS {
		return tiered + " needs --memory-qos (the feature gate MemoryQoS)"
	}
	return oneOf(c.MemoryReservationPolicy, "None", tiered)
}
