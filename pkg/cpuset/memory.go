package cpuset

import (
	"errors"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// NUMANodeState has the allocated memory of a NUMA node, in the form of the kubelet's state file.
type NUMANodeState struct {
	NumberOfAssignments int                              `json:"numberOfAssignments"`
	MemoryMap           map[v1.ResourceName]*MemoryTable `json:"memoryMap"`
	// Cells are the nodes of the group in which memory of this node is allocated, itself included.
	Cells []int `json:"cells"`
}

// MemoryTable is memory of one kind on a node, in bytes.
type MemoryTable struct {
	TotalMemSize   uint64 `json:"total"`
	SystemReserved uint64 `json:"systemReserved"`
	Allocatable    uint64 `json:"allocatable"`
	Reserved       uint64 `json:"reserved"`
	Free           uint64 `json:"free"`
}

// emptyNode returns a node with nothing allocated.
func (a *Allocator) emptyNode(n Node) *NUMANodeState {
	reserved := a.reservedMemory[n.ID]
	of := func(total, in uint64, name v1.ResourceName) *MemoryTable {
		free := in - min(in, reserved[name])
		return &MemoryTable{TotalMemSize: total, SystemReserved: reserved[name], Allocatable: free, Free: free}
	}
	out := &NUMANodeState{MemoryMap: map[v1.ResourceName]*MemoryTable{}, Cells: []int{n.ID}}
	rest := n.Memory
	for name, bytes := range n.HugePages {
		out.MemoryMap[name] = of(bytes, bytes, name)
		rest -= min(rest, bytes)
	}
	out.MemoryMap[v1.ResourceMemory] = of(n.Memory, rest, v1.ResourceMemory)
	return out
}

func (n *NUMANodeState) clone() *NUMANodeState {
	out := &NUMANodeState{NumberOfAssignments: n.NumberOfAssignments, MemoryMap: make(map[v1.ResourceName]*MemoryTable, len(n.MemoryMap)), Cells: slices.Clone(n.Cells)}
	for name, m := range n.MemoryMap {
		c := *m
		out.MemoryMap[name] = &c
	}
	return out
}

// of returns the node's memory of one kind, the zero value if it has none of that kind.
func (n *NUMANodeState) of(name v1.ResourceName) MemoryTable {
	if m := n.MemoryMap[name]; m != nil {
		return *m
	}
	return MemoryTable{}
}

func isMemory(name v1.ResourceName) bool {
	return name == v1.ResourceMemory || strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix)
}

// memoryOf returns the memory that a container requests, by kind.
func memoryOf(c *v1.Container) (Reserved, error) {
	all := Reserved{}
	for _, list := range []v1.ResourceList{c.Resources.Limits, c.Resources.Requests} { // a limit is the request by default
		for name, q := range list {
			if !isMemory(name) {
				continue
			}
			n, ok := q.AsInt64()
			if !ok || n < 0 {
				return nil, errors.New("[memorymanager] failed to represent quantity as int64")
			}
			all[name] = uint64(n)
		}
	}
	return all, nil
}

// memoryOfPod returns the largest amount of memory that a pod needs at one time.
func memoryOfPod(p *v1.Pod) (Reserved, error) {
	init, sidecars, regular := Reserved{}, Reserved{}, Reserved{}
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		asks, err := memoryOf(c)
		if err != nil {
			return nil, err
		}
		for name, n := range asks {
			if pod.Restartable(c) {
				sidecars[name] += n
			} else {
				init[name] = max(init[name], sidecars[name]+n)
			}
		}
	}
	for i := range p.Spec.Containers {
		asks, err := memoryOf(&p.Spec.Containers[i])
		if err != nil {
			return nil, err
		}
		for name, n := range asks {
			regular[name] += n
		}
	}
	for name := range regular {
		regular[name] = max(regular[name]+sidecars[name], init[name])
	}
	return regular, nil
}

// pinned reports whether the pod's containers get memory of certain NUMA nodes (C-1.46.5).
func (a *Allocator) pinned(p *v1.Pod) bool {
	return a.memory && !podLevel(p) && pod.QOS(&p.Spec) == v1.PodQOSGuaranteed
}

// reusable is the memory of a pod's init containers that its later containers use again, by NUMA
// nodes.
type reusable map[mask]Reserved

// allocateMemory allocates a container's memory, on the NUMA nodes of the hint if they have enough.
func (s *State) allocateMemory(uid string, p *v1.Pod, c *v1.Container, at hint, reuse reusable) error {
	if !s.allocator.pinned(p) {
		return nil
	}
	if blocks, has := s.memory[uid][c.Name]; has {
		reuse.update(p, c, blocks)
		return nil
	}
	asks, err := memoryOf(c)
	if err != nil {
		return err
	}
	best, err := s.bestNodes(asks, at, reuse)
	if err != nil {
		return err
	}
	var blocks []Block
	for _, name := range slices.Sorted(maps.Keys(asks)) {
		blocks = append(blocks, Block{NUMAAffinity: best.nodes.ids(), Type: name, Size: asks[name]})
		s.reserve(best.nodes.ids(), name, asks[name]-min(asks[name], reuse[best.nodes][name]))
	}
	reuse.update(p, c, blocks)
	s.setMemory(uid, c.Name, blocks)
	s.handOver(uid, p, c, blocks)
	return nil
}

// bestNodes returns the nodes of a container's memory: the nodes of the hint if they have enough,
// else a larger set that contains them.
func (s *State) bestNodes(asks Reserved, at hint, reuse reusable) (hint, error) {
	best := at
	if at.any || at.nodes == 0 {
		all := s.generateMemoryHints(asks, reuse)
		if len(all) == 0 {
			return best, errors.New("[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available")
		}
		if best = narrowest(all[string(v1.ResourceMemory)]); !best.preferred && at.preferred {
			return best, errors.New("[memorymanager] failed to find the default preferred hint")
		}
	}
	if !s.enough(best.nodes, asks) {
		list := slices.DeleteFunc(s.generateMemoryHints(asks, reuse)[string(v1.ResourceMemory)], func(h hint) bool { return best.nodes&^h.nodes != 0 })
		if len(list) == 0 {
			return best, errors.New("[memorymanager] failed to find NUMA nodes to extend the current topology hint")
		}
		wider := narrowest(list)
		if !wider.preferred && best.preferred {
			return best, errors.New("[memorymanager] failed to find the extended preferred hint")
		}
		best = wider
	}
	if s.violates(best.nodes) {
		return best, errors.New("[memorymanager] preferred hint violates NUMA node allocation")
	}
	return best, nil
}

// narrowest returns the hint with the fewest nodes, a preferred one if there is one.
func narrowest(list []hint) (best hint) {
	for i, h := range list {
		if i == 0 || h.preferred && !best.preferred || h.preferred == best.preferred && h.nodes.narrower(best.nodes) {
			best = h
		}
	}
	return best
}

// enough reports whether the nodes have this memory free.
func (s *State) enough(nodes mask, asks Reserved) bool {
	for name, n := range asks {
		free := uint64(0)
		for _, id := range nodes.ids() {
			if node := s.nodes[id]; node != nil {
				free += node.of(name).Free
			}
		}
		if free < n {
			return false
		}
	}
	return true
}

// violates reports whether memory of one of the nodes is allocated alone or in another group.
func (s *State) violates(nodes mask) bool {
	if nodes.count() == 1 {
		return false
	}
	for _, id := range nodes.ids() {
		n := s.nodes[id]
		if n == nil || n.NumberOfAssignments > 0 && (len(n.Cells) == 1 || maskOf(n.Cells...) != nodes) {
			return true
		}
	}
	return false
}

// reserve allocates memory of the nodes, in their order.
func (s *State) reserve(ids []int, name v1.ResourceName, n uint64) {
	for _, id := range ids {
		node := s.nodes[id]
		if node == nil {
			continue // the machine has lost this node
		}
		node.NumberOfAssignments++
		node.Cells = slices.Clone(ids)
		if m := node.MemoryMap[name]; m != nil {
			part := min(n, m.Free)
			m.Reserved += part
			m.Free -= part
			n -= part
		}
	}
}

// update adds the memory of an init container, and subtracts that of any other container.
func (r reusable) update(p *v1.Pod, c *v1.Container, blocks []Block) {
	for _, b := range blocks {
		m := maskOf(b.NUMAAffinity...)
		if r[m] == nil {
			r[m] = Reserved{}
		}
		if lasts(p, c) {
			r[m][b.Type] -= min(r[m][b.Type], b.Size)
		} else {
			r[m][b.Type] = max(r[m][b.Type], b.Size)
		}
	}
}

// handOver subtracts a container's memory from the blocks of the init containers before it. Memory
// that several containers use one after the other counts once.
func (s *State) handOver(uid string, p *v1.Pod, c *v1.Container, blocks []Block) {
	for _, b := range blocks {
		rest := b.Size
		for i := range p.Spec.InitContainers {
			before := &p.Spec.InitContainers[i]
			if before.Name == c.Name || rest == 0 {
				break
			}
			if pod.Restartable(before) {
				continue
			}
			own := slices.Clone(s.memory[uid][before.Name])
			for j := range own {
				if own[j].Type == b.Type && maskOf(own[j].NUMAAffinity...) == maskOf(b.NUMAAffinity...) {
					part := min(rest, own[j].Size)
					own[j].Size -= part
					rest -= part
				}
			}
			if own != nil {
				s.memory[uid][before.Name] = own
			}
		}
	}
}

// memoryHints returns the sets of NUMA nodes on which a container, or with c == nil the whole
// pod, can have its memory.
func (s *State) memoryHints(uid string, p *v1.Pod, c *v1.Container, reuse reusable) hints {
	if !s.allocator.pinned(p) {
		return nil
	}
	asks, err := memoryOfPod(p)
	of := containers(p)
	if c != nil {
		asks, err = memoryOf(c)
		of = []*v1.Container{c}
	}
	if err != nil {
		return nil
	}
	for _, c := range of {
		if blocks, has := s.memory[uid][c.Name]; has {
			return regenerateHints(blocks, asks)
		}
	}
	return s.generateMemoryHints(asks, reuse)
}

// regenerateHints returns hints for the nodes that the memory is allocated on. If the requests have
// changed since, there is no preference.
func regenerateHints(blocks []Block, asks Reserved) hints {
	out := hints{}
	for _, b := range blocks {
		if n, ok := asks[b.Type]; !ok || n != b.Size || len(blocks) != len(asks) {
			return nil
		}
		out[string(b.Type)] = append(out[string(b.Type)], hint{nodes: maskOf(b.NUMAAffinity...), preferred: true})
	}
	return out
}

// generateMemoryHints returns a hint for each set of NUMA nodes that has this memory free. A set is
// preferred if the memory needs as many nodes on an empty machine. Memory of a node is allocated
// either alone, or always together with the same other nodes.
func (s *State) generateMemoryHints(asks Reserved, reuse reusable) hints {
	var found []mask
	ids := s.allocator.memoryOfNodesUsed
	least := len(ids)
	masks(ids, func(m mask) {
		free, allocatable := Reserved{}, Reserved{}
		for _, id := range m.ids() {
			for name := range asks {
				free[name] += s.nodes[id].of(name).Free
				allocatable[name] += s.nodes[id].of(name).Allocatable
			}
		}
		for name, n := range asks {
			if allocatable[name] < n {
				return
			}
		}
		least = min(least, m.count())
		if m.count() == 1 && len(s.nodes[m.ids()[0]].Cells) > 1 || s.violates(m) {
			return
		}
		for name, n := range asks {
			if free[name]+reuse[m][name] < n {
				return
			}
		}
		found = append(found, m)
	})
	out := hints{}
	for name := range asks {
		for _, m := range found {
			out[string(name)] = append(out[string(name)], hint{nodes: m, preferred: m.count() == least})
		}
	}
	return out
}
