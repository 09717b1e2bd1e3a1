package cpuset

import (
	"fmt"
	"maps"
	"math"
	"slices"
)

// distributed returns n of the free CPUs in groups of group CPUs: the same number of groups from each
// of the fewest NUMA nodes that have enough (C-1.46.3). If that is not possible, it packs them.
func distributed(machine cpus, free Set, n, group int, spread bool) (Set, error) {
	if group < 1 || n%group != 0 {
		return packed(machine, free, n, spread, false)
	}
	t := newTaker(machine, free, n, spread)
	if n < 1 {
		return t.got, nil
	}
	if n > len(t.free) {
		return t.got, notEnough(n, free.Size())
	}
	nodes := t.nodes()
	has := make(map[int]int, len(nodes))
	for _, id := range nodes {
		has[id] = t.free.in(nodeOf, id).Size()
	}
	least, most := t.nodesNeeded(group)
	for k := least; k <= most; k++ {
		if best := balanced(nodes, has, k, n, group); best.nodes != nil {
			return t.takeEvenly(best, n, group)
		}
	}
	return packed(machine, free, n, spread, false)
}

// nodesNeeded returns the fewest and the most NUMA nodes that the CPUs may come from.
func (t *taker) nodesNeeded(group int) (least, most int) {
	nodes := t.machine.parts(nodeOf).Size()
	groups := (len(t.machine)-1)/group + 1
	inEach := (groups-1)/nodes + 1
	needed := (t.need-1)/group + 1
	return (needed-1)/inEach + 1, min(needed, t.free.parts(nodeOf).Size())
}

// choice is a combination of NUMA nodes. The nodes in more give one group more than the others.
type choice struct {
	nodes, more []int
	balance     float64
}

// balanced returns the combination of k NUMA nodes after which the free CPUs are spread most evenly
// over all nodes. Its nodes are nil if no combination has enough CPUs.
func balanced(nodes []int, has map[int]int, k, n, group int) choice {
	best := choice{balance: math.MaxFloat64}
	combine(nodes, k, func(combo []int) bool {
		share := n / k / group * group
		groups := 0
		for _, id := range combo {
			if has[id] < share {
				return true
			}
			groups += has[id] / group
		}
		if groups*group < n {
			return true
		}
		left := maps.Clone(has)
		for _, id := range combo {
			left[id] -= share
		}
		if c := remainder(combo, left, n-share*k, group); c.balance < best.balance {
			best = c
		}
		return best.balance > 0
	})
	return best
}

// remainder returns the combination with the nodes that give the rest such that the free CPUs are
// spread most evenly. Its nodes are nil if they cannot give the rest.
func remainder(combo []int, left map[int]int, rest, group int) choice {
	best := choice{balance: math.MaxFloat64}
	if rest == 0 {
		return choice{nodes: combo, balance: deviation(left)}
	}
	var able []int
	for _, id := range combo {
		if left[id] >= group {
			able = append(able, id)
		}
	}
	for k := len(able); k >= 1; k-- {
		combine(able, k, func(subset []int) bool {
			sum := 0
			for _, id := range subset {
				sum += left[id]
			}
			if sum < rest {
				return true
			}
			after, open := maps.Clone(left), rest
			for again := true; again && open > 0; {
				again = false
				for _, id := range subset {
					if open > 0 && after[id] >= group {
						after[id] -= group
						open -= group
						again = true
					}
				}
			}
			if b := deviation(after); open <= 0 && b < best.balance {
				best = choice{combo, subset, b}
			}
			return true
		})
	}
	return best
}

// takeEvenly takes the CPUs from the NUMA nodes of the choice.
func (t *taker) takeEvenly(c choice, n, group int) (Set, error) {
	share := n / len(c.nodes) / group * group
	for _, id := range c.nodes {
		set, err := packed(t.machine, t.free.in(nodeOf, id), share, t.spread, false)
		if err != nil {
			return Set{}, err
		}
		t.take(set)
	}
	for t.need > 0 {
		before := t.need
		for _, id := range c.more {
			free := t.free.in(nodeOf, id)
			if t.need < 1 || free.Size() < group {
				continue
			}
			set, err := packed(t.machine, free, group, t.spread, false)
			if err != nil {
				return Set{}, err
			}
			t.take(set)
		}
		if t.need == before {
			return Set{}, fmt.Errorf("accounting error, not enough CPUs allocated, remaining: %d", t.need)
		}
	}
	return t.got, nil
}

// deviation is the standard deviation, to three digits.
func deviation(of map[int]int) float64 {
	round := func(f float64) float64 { return math.Round(f*1000) / 1000 }
	sum := 0.0
	for _, n := range of {
		sum += float64(n)
	}
	mean := round(sum / float64(len(of)))
	sum = 0
	for _, id := range slices.Sorted(maps.Keys(of)) {
		d := float64(of[id]) - mean
		sum += d * d
	}
	return round(math.Sqrt(sum / float64(len(of))))
}

// combine calls f with each combination of k items, in order, until it returns false.
func combine(items []int, k int, f func([]int) bool) {
	var with func(from int, chosen []int) bool
	with = func(from int, chosen []int) bool {
		if len(chosen) == k {
			return f(slices.Clone(chosen))
		}
		for i := from; i <= len(items)-(k-len(chosen)); i++ {
			if !with(i+1, append(slices.Clip(chosen), items[i])) {
				return false
			}
		}
		return true
	}
	if k > 0 {
		with(0, nil)
	}
}
