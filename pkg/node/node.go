// Package node finds out what this machine is and has: its processors, memory,
// huge pages and disk, its system and kernel, and what of it pods may have.
//
// Read looks once; what it returns is plain values that cmd hands on. Numbers are
// what the kubelet counts, so that a manifest that fits there fits here.
//
// The one rule: facts, no judgement; who may start is plan's to say.
package node

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// resourcePID is the kubelet's name for process IDs.
const resourcePID v1.ResourceName = "pid"

// Facts is what a machine is and has.
type Facts struct {
	OS, Arch string // as GOOS and GOARCH
	Kernel   string // its release: "6.1.0-13-amd64"
	// Capacity lists cpu, memory, ephemeral-storage, and each size of huge pages
	// that the kernel has, with none set aside too.
	Capacity v1.ResourceList
	PIDs     int64 // how many processes and threads the kernel lets there be
	AppArmor bool  // the kernel confines processes by AppArmor profiles
}

// Labels returns the labels of a node of this name: those every node has
// (C-1.31.3), and more, which win.
func (f Facts) Labels(name string, more map[string]string) map[string]string {
	labels := map[string]string{v1.LabelHostname: name, v1.LabelOSStable: f.OS, v1.LabelArchStable: f.Arch}
	maps.Copy(labels, more)
	return labels
}

// Allocatable returns what pods may ask for in all: the capacity without what is
// reserved, and memory without what is set aside as huge pages (C-1.41.6). The
// kubelet takes off its eviction thresholds too; there is no eviction here. What
// is reserved and not in the capacity (pid) is not looked at. An error names the
// first resource of which more is reserved than there is.
func (f Facts) Allocatable(reserved ...v1.ResourceList) (v1.ResourceList, error) {
	left := f.Capacity.DeepCopy()
	for _, list := range reserved {
		for _, name := range slices.Sorted(maps.Keys(list)) {
			q, ok := left[name]
			if !ok {
				continue
			}
			q.Sub(list[name])
			if q.Sign() < 0 {
				capacity := f.Capacity[name]
				return nil, fmt.Errorf("more %s is reserved than the %s that this node has", name, &capacity)
			}
			left[name] = q
		}
	}
	memory, ok := left[v1.ResourceMemory]
	if !ok {
		return left, nil
	}
	for name, q := range f.Capacity {
		if strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix) {
			memory.Sub(q)
		}
	}
	if memory.Sign() < 0 {
		memory = *resource.NewQuantity(0, resource.BinarySI)
	}
	left[v1.ResourceMemory] = memory
	return left, nil
}

// Enforced returns what all pods together are held to: the capacity without what is
// reserved, nothing where that is less, and process IDs (C-1.41.6). Unlike what is
// allocatable, memory is the whole: huge pages are taken out of it by those that use
// them.
func (f Facts) Enforced(reserved ...v1.ResourceList) v1.ResourceList {
	left := f.Capacity.DeepCopy()
	if f.PIDs > 0 {
		left[resourcePID] = *resource.NewQuantity(f.PIDs, resource.DecimalSI)
	}
	for name, q := range left {
		for _, list := range reserved {
			q.Sub(list[name])
		}
		if q.Sign() < 0 {
			q.Set(0)
		}
		left[name] = q
	}
	return left
}
