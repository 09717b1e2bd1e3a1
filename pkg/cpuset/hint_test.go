package cpuset

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// merged is the merge of all choices of hints, one by one.
func merged(a *Allocator, all [][]hint) map[hint]bool {
	out := map[hint]bool{}
	var at func(i int, chosen []hint)
	at = func(i int, chosen []hint) {
		if i < len(all) {
			for _, h := range all[i] {
				at(i+1, append(slices.Clone(chosen), h))
			}
			return
		}
		got, same := hint{nodes: a.everyNode(), preferred: true}, mask(0)
		for _, h := range chosen {
			got.preferred = got.preferred && h.preferred
			if !h.any {
				if same == 0 {
					same = h.nodes
				}
				got.nodes &= h.nodes
				got.preferred = got.preferred && h.nodes == same
			}
		}
		if got.nodes != 0 {
			out[got] = true
		}
	}
	at(0, nil)
	return out
}

// The intersections of drawn hints are those of all choices, and 12 resources of eight NUMA nodes are merged, too:
// a pod may request devices of many resources.
//
// Shows: C-1.46.9
func TestIntersections_DrawnHints_AreThoseOfAllChoices(t *testing.T) {
	t.Parallel()
	a := allocator(t, machine(t, "eight-nodes"), Policy{CPU: static, Topology: bestEffort})
	r := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		all := make([][]hint, 1+r.IntN(4))
		for i := range all {
			for range r.IntN(6) {
				h := hint{nodes: 1 + mask(r.IntN(255)), preferred: r.IntN(3) > 0}
				if r.IntN(6) == 0 {
					h.nodes, h.any = 0, true
				}
				all[i] = append(all[i], h)
			}
		}
		if got, want := a.intersections(all), merged(a, all); !maps.Equal(got, want) {
			t.Fatalf("%v: %v, want %v", all, got, want)
		}
	}
	many := make([][]hint, 12)
	for i := range many {
		masks([]int{0, 1, 2, 3, 4, 5, 6, 7}, func(m mask) { many[i] = append(many[i], hint{nodes: m, preferred: m.count() == 1}) })
	}
	if got := len(a.intersections(many)); got != 255+8 {
		t.Errorf("%d results, want each set of nodes, and eight preferred ones", got)
	}
}
