package pod

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// Placement has the exclusive CPUs and the NUMA memory of a container, and where it gets its devices
// (package cpuset).
type Placement struct {
	CPUs   string  `json:"cpus,omitempty"`   // exclusive CPUs, as "2-3,8"
	Memory []Block `json:"memory,omitempty"` // NUMA memory, by NUMA nodes
	Shared string  `json:"shared,omitempty"` // the CPUs of the shared pool, for containers without exclusive CPUs
	// NUMA has the NUMA nodes that the topology policy chose for a container with devices of plugins.
	NUMA []int `json:"numa,omitempty"`
	// Devices has the devices that admission reserves for a container, by resource. When the agent
	// creates the container, it can get other devices of the same NUMA nodes.
	Devices map[string][]string `json:"devices,omitempty"`
}

// Allocation has the exclusive CPUs, the NUMA memory and the devices of a container.
type Allocation struct {
	Placement
	Devices []DeviceAllocation
	Claims  []ClaimAllocation
}

// Block is memory of one kind, in the form of the kubelet's state file.
type Block struct {
	NUMAAffinity []int           `json:"numaAffinity"`
	Type         v1.ResourceName `json:"type"`
	Size         uint64          `json:"size"`
}

// IsZero reports whether the container shares all CPUs and all memory of the node, and gets devices of
// any NUMA node.
func (p Placement) IsZero() bool {
	return p.CPUs == "" && p.Shared == "" && len(p.Memory) == 0 && len(p.NUMA) == 0 && len(p.Devices) == 0
}

// Equal reports whether two containers have the same CPUs, memory and devices.
func (p Placement) Equal(o Placement) bool {
	same := func(a, b Block) bool {
		return a.Type == b.Type && a.Size == b.Size && slices.Equal(a.NUMAAffinity, b.NUMAAffinity)
	}
	return p.CPUs == o.CPUs && p.Shared == o.Shared && slices.EqualFunc(p.Memory, o.Memory, same) &&
		slices.Equal(p.NUMA, o.NUMA) && maps.EqualFunc(p.Devices, o.Devices, slices.Equal[[]string])
}

// Mems returns the NUMA nodes of the memory as the kernel takes them, "" for any.
func (p Placement) Mems() string {
	var ids []int
	for _, b := range p.Memory {
		ids = append(ids, b.NUMAAffinity...)
	}
	slices.Sort(ids)
	var words []string
	for _, id := range slices.Compact(ids) {
		words = append(words, strconv.Itoa(id))
	}
	return strings.Join(words, ",")
}

// WithPlacements returns s with the exclusive CPUs and NUMA memory of its containers.
func (s *Spec) WithPlacements(of map[string]Placement) *Spec {
	if len(of) == 0 && len(s.Placed) == 0 {
		return s
	}
	out := *s
	out.Placed = of
	return &out
}

// HasOwnCPUs reports whether a container of the pod has CPUs for itself. Such a pod has no quota
// of CPU time, as with the kubelet (C-1.46.6).
func (s *Spec) HasOwnCPUs() bool {
	for _, p := range s.Placed {
		if p.CPUs != "" {
			return true
		}
	}
	return false
}

// Placement returns where the container of the request runs. It leaves out the reserved devices: a
// created container has its devices in an annotation of their own.
func (r CreateRequest) Placement() Placement {
	p := r.Want.Placed[r.Container]
	p.Devices = nil
	if p.CPUs == "" {
		p.Shared = r.SharedCPUs
	}
	return p
}
