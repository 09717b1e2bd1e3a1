// Package cpuset decides which CPUs and which memory containers get, and on which NUMA nodes their
// devices are: the CPU, memory, device and topology managers of the kubelet as a pure function of a
// machine description (C-1.46.1). No I/O, no clock.
//
// An Allocator has the machine and the policies. A State has the allocations of the node's
// containers. The caller adds the allocations that it knows (Put), and then lets the State Admit
// further pods. Nothing is stored: a removed container cannot leak CPUs, because the caller makes
// each State without it.
//
// In four cases the results differ from the kubelet's on purpose (test/managers compares them):
//
//   - A core, socket or NUMA node counts as free only if all of its CPUs are free. On machines with
//     cores of several kinds, the kubelet compares their number with an average, and can allocate
//     a CPU twice.
//   - The best combination of NUMA nodes is used. From four nodes on, the kubelet overwrites it.
//   - The memory of init containers stays allocated to their pod until the pod ends.
//   - When a pod ends, the memory of a group of NUMA nodes is divided among them again. The state
//     file shows it; the memory of the group is the same.
package cpuset

import (
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/cpuset"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Set is a set of CPUs, or of other numbered parts of a machine.
type Set = cpuset.CPUSet

// Machine describes the CPUs and the memory of a node.
type Machine struct {
	CPUs  map[int]CPU // the CPUs that are online
	Nodes []Node      // NUMA nodes by ID, also those without CPUs
}

// CPU is the place of a logical CPU.
type CPU struct {
	Core   int // the lowest logical CPU of its core
	Socket int
	Node   int // NUMA node
	Cache  int // uncore cache; the socket if no cache is smaller than a NUMA node
}

// Node is a NUMA node.
type Node struct {
	ID        int
	Memory    uint64                     // bytes, huge pages included
	HugePages map[v1.ResourceName]uint64 // bytes in pages of each size
	Distances []uint64                   // to each node, by ID
}

// These functions return the part of the machine that a CPU is in.
func coreOf(c CPU) int   { return c.Core }
func socketOf(c CPU) int { return c.Socket }
func nodeOf(c CPU) int   { return c.Node }
func cacheOf(c CPU) int  { return c.Cache }

// cpus are some CPUs of a machine.
type cpus map[int]CPU

// only returns the CPUs that are in the set.
func (c cpus) only(set Set) cpus {
	out := make(cpus, set.Size())
	for id, cpu := range c {
		if set.Contains(id) {
			out[id] = cpu
		}
	}
	return out
}

// all returns the set of the CPUs.
func (c cpus) all() Set {
	ids := make([]int, 0, len(c))
	for id := range c {
		ids = append(ids, id)
	}
	return cpuset.New(ids...)
}

// in returns the CPUs that are in one of the parts.
func (c cpus) in(part func(CPU) int, of ...int) Set {
	var ids []int
	for id, cpu := range c {
		if slices.Contains(of, part(cpu)) {
			ids = append(ids, id)
		}
	}
	return cpuset.New(ids...)
}

// parts returns the parts that hold some of the CPUs.
func (c cpus) parts(part func(CPU) int) Set {
	ids := make([]int, 0, len(c))
	for _, cpu := range c {
		ids = append(ids, part(cpu))
	}
	return cpuset.New(ids...)
}

// within returns the parts that hold some of those CPUs that are in one outer part.
func (c cpus) within(part, outer func(CPU) int, of int) Set {
	var ids []int
	for _, cpu := range c {
		if outer(cpu) == of {
			ids = append(ids, part(cpu))
		}
	}
	return cpuset.New(ids...)
}

// perPart returns how many CPUs a part of the machine has on average.
func (c cpus) perPart(part func(CPU) int) int {
	n := c.parts(part).Size()
	if n == 0 {
		return 0
	}
	return len(c) / n
}

// Block is memory of one kind that is allocated to a container.
type Block = pod.Block

// Rejection is the error of a pod that is not admitted. Reason and message are the kubelet's.
type Rejection struct{ Reason, Message string }

// The reasons, beside pod.ReasonUnexpectedAdmission.
const (
	reasonTopology = "TopologyAffinityError"
	reasonSMT      = "SMTAlignmentError"
)

func (r *Rejection) Error() string { return r.Message }

// rejection returns err as a Rejection.
func rejection(err error) *Rejection {
	if r, ok := errors.AsType[*Rejection](err); ok {
		return r
	}
	return &Rejection{pod.ReasonUnexpectedAdmission, fmt.Sprintf("Allocate failed due to %v, which is unexpected", err)}
}
