package cpuset

import (
	"maps"
	"math/bits"
	"slices"
)

// mask is a set of NUMA nodes.
type mask uint64

func maskOf(ids ...int) (m mask) {
	for _, id := range ids {
		m |= 1 << uint(id)
	}
	return m
}

func (m mask) count() int      { return bits.OnesCount64(uint64(m)) }
func (m mask) has(id int) bool { return id < 64 && m&(1<<uint(id)) != 0 }

func (m mask) ids() []int {
	var all []int
	for id := range 64 {
		if m.has(id) {
			all = append(all, id)
		}
	}
	return all
}

// narrower reports whether m has fewer nodes than o or, with as many, nodes of lower IDs.
func (m mask) narrower(o mask) bool {
	if m.count() != o.count() {
		return m.count() < o.count()
	}
	return m < o
}

// hint is a way to allocate one resource: on a set of NUMA nodes.
type hint struct {
	nodes     mask
	any       bool // there is no preference; nodes is 0
	preferred bool
}

// hints are the possible hints for each resource. A resource with an empty list cannot be
// allocated. Without resources there is no preference.
type hints map[string][]hint

// lists returns one list of hints for each resource of each provider.
func lists(providers []hints) (all [][]hint) {
	for _, of := range providers {
		if len(of) == 0 {
			all = append(all, []hint{{any: true, preferred: true}})
		}
		for _, name := range slices.Sorted(maps.Keys(of)) {
			if len(of[name]) == 0 {
				all = append(all, []hint{{any: true}})
			} else {
				all = append(all, of[name])
			}
		}
	}
	return all
}

// merge returns the best hint for all resources together, and whether the topology policy admits
// it (C-1.46.9).
func (a *Allocator) merge(providers []hints) (hint, bool) {
	all := lists(providers)
	single := a.topology == singleNUMANode
	if single {
		for i, list := range all {
			all[i] = slices.DeleteFunc(slices.Clone(list), func(h hint) bool { return !h.preferred || !h.any && h.nodes.count() != 1 })
		}
	}
	best := hint{nodes: a.everyNode()}
	found := false
	most := maxOfMinNodes(all)
	for h := range a.intersections(all) {
		if !found || a.better(h, best, most) {
			best, found = h, true
		}
	}
	if single && best.nodes == a.everyNode() {
		best = hint{any: true, preferred: best.preferred}
	}
	return best, a.topology == bestEffort || best.preferred
}

// intersection has the nodes that one hint of each list so far has in common. first has the nodes of the first hint with
// nodes; it is 0 if there is none, and if the intersection is not preferred.
type intersection struct {
	hint
	first mask
}

// intersections returns the nodes that one hint of every list have in common, for each choice of hints. A
// result is preferred if all its hints are preferred and have the same nodes. The number of choices
// is exponential, but the number of different results is not: it is at most twice that of sets of nodes.
func (a *Allocator) intersections(all [][]hint) map[hint]bool {
	now := map[intersection]bool{{hint: hint{nodes: a.everyNode(), preferred: true}}: true}
	for _, list := range all {
		next := make(map[intersection]bool, len(now))
		for c := range now {
			for _, h := range list {
				if got := c.with(h); got.nodes != 0 {
					next[got] = true
				}
			}
		}
		now = next
	}
	out := make(map[hint]bool, len(now))
	for c := range now {
		out[c.hint] = true
	}
	return out
}

// with returns the intersection with one more hint.
func (c intersection) with(h hint) intersection {
	c.preferred = c.preferred && h.preferred
	if !h.any {
		if c.first == 0 {
			c.first = h.nodes
		}
		c.preferred = c.preferred && h.nodes == c.first
		c.nodes &= h.nodes
	}
	if !c.preferred {
		c.first = 0
	}
	return c
}

// maxOfMinNodes returns the maximum, over all resources, of the smallest number of nodes in a hint.
func maxOfMinNodes(all [][]hint) (n int) {
	for _, list := range all {
		least := -1
		for _, h := range list {
			if !h.any && (least < 0 || h.nodes.count() < least) {
				least = h.nodes.count()
			}
		}
		n = max(n, least)
	}
	return n
}

// better reports whether h is a better hint than best. most is the result of maxOfMinNodes: of hints
// that are not preferred, the best ones have this number of nodes.
func (a *Allocator) better(h, best hint, most int) bool {
	if h.preferred != best.preferred {
		return h.preferred
	}
	n, has := h.nodes.count(), best.nodes.count()
	if h.preferred || n == has || has > most {
		return a.closer(h.nodes, best.nodes)
	}
	switch {
	case has == most, n > most:
		return false
	case n == most:
		return true
	}
	return n > has
}

// closer reports whether m is better than o: it is narrower. With the option
// prefer-closest-numa-nodes, a set of the same size is better if its nodes are closer to each
// other.
func (a *Allocator) closer(m, o mask) bool {
	if a.closest && a.topology != singleNUMANode && m.count() == o.count() {
		if x, y := a.distance(m), a.distance(o); x != y {
			return x < y
		}
	}
	return m.narrower(o)
}

// distance is the average distance between nodes.
func (a *Allocator) distance(m mask) float64 {
	sum, n := 0.0, 0
	for _, node := range a.machine.Nodes {
		if !m.has(node.ID) {
			continue
		}
		for _, to := range m.ids() {
			if to < len(node.Distances) {
				sum += float64(node.Distances[to])
			}
			n++
		}
	}
	if n == 0 {
		return 0
	}
	return sum / float64(n)
}

// masks calls f with each non-empty subset of these nodes, smaller ones first.
func masks(ids []int, f func(mask)) {
	for k := 1; k <= len(ids); k++ {
		combine(ids, k, func(combo []int) bool {
			f(maskOf(combo...))
			return true
		})
	}
}
