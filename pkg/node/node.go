// Package node measures this machine: its processors, memory, huge pages and disk, its system and
// kernel, its allocatable resources, and its conditions. It builds the Node object from that.
//
// Read and a Meter measure and return plain values. An Observer polls the runtime in the
// background. Object builds the Node of both, the same with an
// API server and without one (node/apiserver keeps it there). Numbers are counted as
// the kubelet does, so that a manifest that fits there fits here. An Observer has one
// channel, of one slot, which signals changes of readiness.
//
// The package only states facts. Package plan decides which pods start.
package node

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodectl/nodectl/pkg/pod"
)

// resourcePID is the kubelet's name for process IDs.
const resourcePID v1.ResourceName = "pid"

// Level is the capacity of a resource, and how much of it is available.
type Level struct{ Available, Capacity int64 }

// Facts describes a machine and its resources.
type Facts struct {
	OS, Arch string // as GOOS and GOARCH
	Kernel   string // its release: "6.1.0-13-amd64"
	// Capacity lists cpu, memory, ephemeral-storage, and each size of huge pages that
	// the kernel has, also those without reserved pages.
	Capacity v1.ResourceList
	PIDs     int64 // how many processes and threads the kernel permits
	Swap     int64 // in bytes; 0 is none
	AppArmor bool  // the kernel confines processes by AppArmor profiles

	// The machine's identity; empty where the system does not provide it.
	MachineID, SystemUUID string
	BootID                string // another after every start
	OSImage               string // as "Debian GNU/Linux 13 (trixie)"
}

// Allocatable returns the total that pods may request: the capacity minus the reservations. For
// memory it also subtracts the huge pages (C-1.41.6). It is the kubelet's number where
// HardEvictionReservation is among the reserved; admission and the Node object have to be given the
// same list. It ignores reservations of resources that the capacity lacks (pid). An error names the
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

// HardEvictionReservation returns the memory and disk that the eviction thresholds keep back from
// pods (C-1.41.6): a node that has only these left is under pressure.
func (f Facts) HardEvictionReservation(thresholds []pod.Threshold) v1.ResourceList {
	spared := v1.ResourceList{}
	for _, t := range thresholds {
		for signal, name := range map[string]v1.ResourceName{pod.SignalMemory: v1.ResourceMemory, pod.SignalNodeFs: v1.ResourceEphemeralStorage} {
			if q, ok := f.Capacity[name]; ok && t.Signal == signal {
				spared[name] = *resource.NewQuantity(t.Of(q.Value()), resource.BinarySI)
			}
		}
	}
	return spared
}

// EnforcedLimits returns the limits of all pods together: the capacity minus the reservations, at
// least zero, and process IDs (C-1.41.6). Unlike Allocatable, it does not subtract huge pages from
// memory: pods that use them take them out of it.
func (f Facts) EnforcedLimits(reserved ...v1.ResourceList) v1.ResourceList {
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
