package cri

import (
	"math"
	"strconv"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Files of cgroup v2.
const (
	swapMax    = "memory.swap.max"
	memoryMin  = "memory.min"
	memoryLow  = "memory.low"
	memoryHigh = "memory.high"
)

// unify sets a file of cgroup v2.
func unify(res *runtimeapi.LinuxContainerResources, file string, n int64) {
	if res.Unified == nil {
		res.Unified = map[string]string{}
	}
	res.Unified[file] = strconv.FormatInt(n, 10)
}

// swapOf is how much swap a container may use on cgroup v2: none, or with LimitedSwap the
// same part of the machine's swap that its memory request is of the machine's memory. Only
// containers of burstable pods get any, if their request is not their limit and their pod is
// not critical (C-1.41.9).
func (m machine) swapOf(p *v1.Pod, c *v1.Container) int64 {
	ask, limit := c.Resources.Requests.Memory(), c.Resources.Limits.Memory()
	critical := p.Spec.Priority != nil && *p.Spec.Priority >= pod.PriorityClusterCritical
	if !m.enforce.LimitedSwap || critical || pod.QOS(&p.Spec) != v1.PodQOSBurstable || ask.Cmp(*limit) == 0 || ask.Value() > m.memory {
		return 0
	}
	return int64(float64(ask.Value()) / float64(m.memory) * float64(m.swapBytes))
}

// memoryQoS protects the memory that the container requests, and throttles the container
// before it reaches its limit. Without a limit, the node's allocatable memory counts as the
// limit (C-1.41.10).
func (m machine) memoryQoS(res *runtimeapi.LinuxContainerResources, p *v1.Pod, c *v1.Container) {
	q := m.enforce.MemoryQoS
	ask, limit := c.Resources.Requests.Memory().Value(), c.Resources.Limits.Memory().Value()
	switch {
	case ask == 0 || !q.Reserve:
		unify(res, memoryMin, 0)
		unify(res, memoryLow, 0)
	case pod.QOS(&p.Spec) == v1.PodQOSGuaranteed:
		unify(res, memoryMin, ask)
	default:
		unify(res, memoryLow, ask)
	}
	if ask == limit {
		return
	}
	if limit == 0 {
		limit = q.Allocatable
	}
	high := int64(math.Floor((float64(ask)+float64(limit-ask)*q.Throttling)/float64(m.pageSize))) * m.pageSize
	if high > ask {
		unify(res, memoryHigh, high)
	}
}
