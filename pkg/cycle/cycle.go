// Package cycle finds the cycles of a directed graph: its strongly connected
// components.
//
// The work is linear in nodes and edges, and the depth of the stack does not depend on
// the graph. Authors of manifests choose the graphs.
package cycle

// Components returns the strongly connected components of a graph whose nodes are the
// numbers below n: next returns the nodes that a node leads to, and is called once for each.
// A node of a cycle is in one component with all nodes of its cycles; any other node is a
// component of its own. A component comes after those that it leads to.
func Components(n int, next func(node int) []int) [][]int {
	// This is Tarjan's algorithm with its own stack: a chain of a million nodes needs no
	// recursion.
	type visit struct {
		node int
		rest []int // the edges that are not followed yet
	}
	const done = -1
	var (
		components [][]int
		index      = make([]int, n) // from 1 in the order of visits; 0: not visited; done: in a component
		low        = make([]int, n)
		open       []int // visited, and in no component yet
		path       []visit
		count      int
	)
	enter := func(node int) {
		count++
		index[node], low[node] = count, count
		open = append(open, node)
		path = append(path, visit{node, next(node)})
	}
	for root := range n {
		if index[root] == 0 {
			enter(root)
		}
		for len(path) > 0 {
			at := &path[len(path)-1]
			if len(at.rest) > 0 {
				to := at.rest[0]
				at.rest = at.rest[1:]
				switch {
				case index[to] == 0:
					enter(to)
				case index[to] != done:
					low[at.node] = min(low[at.node], index[to])
				}
				continue
			}
			node := at.node
			path = path[:len(path)-1]
			if len(path) > 0 {
				above := path[len(path)-1].node
				low[above] = min(low[above], low[node])
			}
			if low[node] != index[node] {
				continue
			}
			first := len(open) - 1
			for open[first] != node {
				first--
			}
			component := append([]int(nil), open[first:]...)
			open = open[:first]
			for _, member := range component {
				index[member] = done
			}
			components = append(components, component)
		}
	}
	return components
}
