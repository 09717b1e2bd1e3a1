package cpuset

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/cpuset"

	"github.com/nodectl/nodectl/pkg/pod"
)

// exclusive returns how many exclusive CPUs a container gets: its CPU request, if that is a whole
// number and its pod is Guaranteed, else 0 (C-1.46.1). A pod with pod-level resources gets none.
func exclusive(p *v1.Pod, c *v1.Container) int {
	if podLevel(p) || pod.QOS(&p.Spec) != v1.PodQOSGuaranteed {
		return 0
	}
	q := request(c, v1.ResourceCPU)
	if q.Value()*1000 != q.MilliValue() {
		return 0
	}
	return int(q.Value())
}

// podLevel reports whether the pod has pod-level resources.
func podLevel(p *v1.Pod) bool {
	r := p.Spec.Resources
	return r != nil && len(r.Requests)+len(r.Limits) > 0
}

// exclusiveOfPod returns the largest number of exclusive CPUs that a pod needs at one time.
func exclusiveOfPod(p *v1.Pod) int {
	init, sidecars, regular := 0, 0, 0
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		if n := exclusive(p, c); pod.Restartable(c) {
			sidecars += n
		} else {
			init = max(init, sidecars+n)
		}
	}
	for i := range p.Spec.Containers {
		regular += exclusive(p, &p.Spec.Containers[i])
	}
	return max(init, regular+sidecars)
}

// allocateCPUs allocates a container's exclusive CPUs, first from the NUMA nodes of the hint. reuse
// has the CPUs of the pod's init containers, which have exited when this container starts.
func (s *State) allocateCPUs(uid string, p *v1.Pod, c *v1.Container, at hint, reuse *Set) error {
	a := s.allocator
	n := exclusive(p, c)
	if !a.static || n == 0 {
		return nil
	}
	set, has := s.cpus[uid][c.Name]
	if !has {
		free := s.free(uid)
		if err := s.allocator.checkCores(n, free); err != nil {
			return err
		}
		free = free.Union(*reuse)
		later := false
		for _, other := range containers(p) { // after an edit, some containers have their CPUs already
			if kept, has := s.cpus[uid][other.Name]; has && (later || lasts(p, other)) {
				free = free.Difference(kept)
			}
			later = later || other.Name == c.Name
		}
		got := cpuset.New()
		if !at.any && at.nodes != 0 {
			aligned := a.aligned(at.nodes, free)
			var err error
			if got, err = a.take(aligned, min(n, aligned.Size())); err != nil {
				return err
			}
		}
		rest, err := a.take(free.Difference(got), n-got.Size())
		if err != nil {
			return err
		}
		set = got.Union(rest)
		s.setCPUs(uid, c.Name, set)
	}
	if lasts(p, c) {
		*reuse = reuse.Difference(set)
	} else {
		*reuse = reuse.Union(set)
	}
	return nil
}

// checkCores returns an error if the option full-pcpus-only is set, and a container cannot get n of
// the available CPUs in whole cores.
func (a *Allocator) checkCores(n int, available Set) error {
	each := a.cpus.perPart(coreOf)
	switch free := available.Difference(a.reservedCores).Size(); {
	case !a.fullCores:
		return nil
	case n%each != 0:
		return &Rejection{reasonSMT, fmt.Sprintf("SMT Alignment Error: requested %d cpus not multiple cpus per core = %d", n, each)}
	case n > free:
		return &Rejection{reasonSMT, fmt.Sprintf("SMT Alignment Error: not enough free physical CPUs: available physical CPUs = %d, requested CPUs = %d, CPUs per core = %d", free, n, each)}
	}
	return nil
}

// aligned returns the free CPUs of NUMA nodes or, with the option align-by-socket, of their sockets.
func (a *Allocator) aligned(nodes mask, free Set) Set {
	if a.bySocket {
		sockets := cpuset.New()
		for _, id := range nodes.ids() {
			sockets = sockets.Union(a.cpus.within(socketOf, nodeOf, id))
		}
		return free.Intersection(a.cpus.in(socketOf, sockets.List()...))
	}
	return free.Intersection(a.cpus.in(nodeOf, nodes.ids()...))
}

// cpuHints returns the sets of NUMA nodes on which a container can have its CPUs.
func (s *State) cpuHints(uid string, p *v1.Pod, c *v1.Container, reuse Set) hints {
	n := exclusive(p, c)
	if !s.allocator.static || n == 0 {
		return nil
	}
	if has, ok := s.cpus[uid][c.Name]; ok {
		if has.Size() != n {
			return hints{string(v1.ResourceCPU): nil}
		}
		return hints{string(v1.ResourceCPU): s.allocator.generateCPUHints(has, cpuset.New(), n)}
	}
	return hints{string(v1.ResourceCPU): s.allocator.generateCPUHints(s.free(uid), reuse, n)}
}

// cpuHintsOfPod returns the sets of NUMA nodes on which the whole pod can have its CPUs.
func (s *State) cpuHintsOfPod(uid string, p *v1.Pod) hints {
	n := exclusiveOfPod(p)
	if !s.allocator.static || n == 0 {
		return nil
	}
	has := cpuset.New()
	for _, c := range containers(p) {
		if set, ok := s.cpus[uid][c.Name]; ok {
			if set.Size() != exclusive(p, c) {
				return hints{string(v1.ResourceCPU): nil}
			}
			has = has.Union(set)
		}
	}
	if has.Size() == n {
		return hints{string(v1.ResourceCPU): s.allocator.generateCPUHints(has, cpuset.New(), n)}
	}
	return hints{string(v1.ResourceCPU): s.allocator.generateCPUHints(s.free(uid), has, n)}
}

// generateCPUHints returns a hint for each set of NUMA nodes that has n CPUs in free and reuse, and
// all CPUs of reuse. A set is preferred if n CPUs of an empty machine need as many nodes.
func (a *Allocator) generateCPUHints(free, reuse Set, n int) []hint {
	nodes := a.cpus.parts(nodeOf).List()
	all, has := map[int]int{}, map[int]int{}
	var needed mask
	for _, c := range a.cpus {
		all[c.Node]++
	}
	for _, id := range free.UnsortedList() {
		if c, ok := a.cpus[id]; ok {
			has[c.Node]++
		}
	}
	for _, id := range reuse.UnsortedList() {
		needed |= maskOf(a.cpus[id].Node)
	}
	least := len(nodes)
	out := []hint{}
	masks(nodes, func(m mask) {
		total, matching := 0, reuse.Size()
		for _, id := range m.ids() {
			total += all[id]
			matching += has[id]
		}
		if total >= n {
			least = min(least, m.count())
		}
		if needed&^m == 0 && matching >= n {
			out = append(out, hint{nodes: m})
		}
	})
	for i, h := range out {
		out[i].preferred = h.nodes.count() == least || a.bySocket && a.socketAligned(h.nodes, least)
	}
	return out
}

// socketAligned reports whether NUMA nodes are on the smallest number of sockets that n nodes need.
func (a *Allocator) socketAligned(nodes mask, n int) bool {
	each := a.cpus.parts(nodeOf).Size() / a.cpus.parts(socketOf).Size()
	if each == 0 {
		return false
	}
	sockets := cpuset.New()
	for _, id := range nodes.ids() {
		sockets = sockets.Union(a.cpus.within(socketOf, nodeOf, id))
	}
	return sockets.Size() == (n+each-1)/each
}
