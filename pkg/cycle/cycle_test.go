package cycle_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/nodectl/nodectl/pkg/cycle"
)

// Components agrees with its definition on random graphs: two nodes share a component if
// each leads to the other, and no component leads to a later one.
func TestComponents_RandomGraphs_AreThoseOfTheDefinition(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		n := r.IntN(8)
		edges := make([][]int, n)
		leads := make([][]bool, n) // the transitive closure
		for i := range n {
			leads[i] = make([]bool, n)
			for j := range n {
				if r.IntN(4) == 0 {
					edges[i], leads[i][j] = append(edges[i], j), true
				}
			}
		}
		for k := range n {
			for i := range n {
				for j := range n {
					leads[i][j] = leads[i][j] || leads[i][k] && leads[k][j]
				}
			}
		}
		place := make([]int, n)
		nodes := 0
		for at, component := range cycle.Components(n, func(i int) []int { return edges[i] }) {
			for _, i := range component {
				place[i] = at
				nodes++
			}
		}
		if nodes != n {
			t.Fatalf("%v: %d nodes of %d", edges, nodes, n)
		}
		for i := range n {
			for j := range n {
				if same := i == j || leads[i][j] && leads[j][i]; (place[i] == place[j]) != same {
					t.Fatalf("%v: %d and %d: places %v", edges, i, j, place)
				}
				if leads[i][j] && place[i] < place[j] {
					t.Fatalf("%v: %d leads to %d, which comes later: places %v", edges, i, j, place)
				}
			}
		}
	}
}

// A chain of any length is followed, and next is called once for each node.
func TestComponents_LongChain_AsksEachNodeOnce(t *testing.T) {
	t.Parallel()
	const n = 1_000_000
	asked := 0
	found := cycle.Components(n, func(i int) []int {
		asked++
		return []int{(i + 1) % n} // the last one closes the cycle
	})
	if asked != n || len(found) != 1 || len(found[0]) != n {
		t.Errorf("%d calls, %d components", asked, len(found))
	}
	asked = 0
	found = cycle.Components(n, func(i int) []int {
		asked++
		return []int{min(i+1, n-1), n - 1}
	})
	if asked != n || len(found) != n || !slices.Equal(found[0], []int{n - 1}) {
		t.Errorf("%d calls, %d components", asked, len(found))
	}
}
