package podconfig

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/nodectl/nodectl/pkg/cycle"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/sorted"
)

// cycles has the pods that depend on themselves, directly or through others
// (pod.AnnotationDependsOn), and the versions that replace them. The zero value has none.
type cycles struct {
	// replacements has the version that replaces the winner of each pod that had to leave a
	// cycle. A nil version leaves the pod out.
	replacements map[pod.Key]*pod.Spec
	problems     []pod.Problem // sorted
	visible      Visible       // see pod.Spec.ResolveDependency
}

// breakCycles finds the dependency cycles among the winners. ordered has the winners that
// depend on other pods. A pod on a cycle keeps its version in before, so that the cycle affects
// no running pod. A pod without such a version is left out.
//
// Old and new versions together may form new cycles. So breakCycles repeats the search
// until there is no cycle, or only cycles of old versions, which stay. If other cycles are left
// after maxRounds, one more round gives each pod that could be on a cycle its version in before.
// breakCycles resolves a dependency as the engine does: see pod.Spec.ResolveDependency.
func breakCycles(winners, ordered, before sorted.List[*pod.Spec], visible Visible) cycles {
	c := cycles{visible: visible}
	if ordered.Len() == 0 {
		return c
	}
	for round := 1; ; round++ {
		onCycle := c.graph(winners, ordered).onCycles()
		stuck, more := c.replace(onCycle, before)
		if !more {
			named := make(map[*node]bool)
			for _, n := range stuck {
				c.problems = append(c.problems, n.problem(named))
			}
			slices.SortStableFunc(c.problems, compareProblems)
			return c
		}
		if round == maxRounds {
			c.replace(c.possibleCycles(ordered, before, onCycle), before)
		}
	}
}

// maxRounds limits the rounds of breakCycles. An edit usually needs one round. An author can write
// a source that needs as many rounds as it has pods.
const maxRounds = 8

// replace gives each of nodes its version in before, and notes a problem for it. It returns the nodes
// that have that version already (stuck), and whether it replaced any (more).
func (c *cycles) replace(nodes []*node, before sorted.List[*pod.Spec]) (stuck []*node, more bool) {
	named := make(map[*node]bool)
	for _, n := range nodes {
		if _, done := c.replacements[n.spec.Key]; done {
			continue
		}
		previous, known := findPod(before, n.spec.Key)
		if known && !different(previous, n.spec) {
			stuck = append(stuck, n)
			continue
		}
		if c.replacements == nil {
			c.replacements = make(map[pod.Key]*pod.Spec)
		}
		c.replacements[n.spec.Key] = previous
		c.problems = append(c.problems, n.problem(named))
		more = true
	}
	return stuck, more
}

// possibleCycles returns the pods that are on a cycle in some combination of new and old versions,
// in the namespaces of the pods in onCycle. A dependency never leaves its namespace. When all of these
// pods have their version in before, each cycle that is left consists of such versions.
func (c cycles) possibleCycles(ordered, before sorted.List[*pod.Spec], onCycle []*node) []*node {
	namespaces := make(map[string]bool)
	for _, n := range onCycle {
		namespaces[n.spec.Namespace] = true
	}
	g, byKey := c.nodes(ordered)
	for _, n := range g {
		versions := []*pod.Spec{n.spec}
		if previous, known := findPod(before, n.spec.Key); known {
			versions = append(versions, previous)
		}
		for _, s := range versions {
			for _, d := range s.DependsOn {
				for _, key := range s.Targets(d) {
					on := byKey[key]
					if on == nil {
						continue
					}
					previous, known := findPod(before, key)
					if c.mayMean(s, on.spec) || known && c.mayMean(s, previous) {
						n.on = append(n.on, on)
					}
				}
			}
		}
	}
	return slices.DeleteFunc(g.onCycles(), func(n *node) bool { return !namespaces[n.spec.Namespace] })
}

// mayMean reports whether a dependency of s can refer to on, if their names agree.
func (c cycles) mayMean(s, on *pod.Spec) bool {
	return c.visible.sees(s.Origin.Source, on.Origin.Source)
}

// keys returns the pods whose winner is replaced, as idents in order.
func (c cycles) keys() []ident {
	ids := make([]ident, 0, len(c.replacements))
	for key := range c.replacements {
		ids = append(ids, ident{kindPod, key})
	}
	slices.SortFunc(ids, ident.compare)
	return ids
}

// node is one pod that depends on others.
type node struct {
	spec *pod.Spec
	at   int     // its index in the graph
	on   []*node // the pods that it depends on, without those that depend on no pod
	// group is the strongly connected component, once onCycles has found it.
	group []*node
}

// graph is the pods that depend on others, by key.
type graph []*node

// nodes returns a graph of the pods that depend on others, with the replacements so far
// and without edges.
func (c cycles) nodes(ordered sorted.List[*pod.Spec]) (g graph, byKey map[pod.Key]*node) {
	byKey = make(map[pod.Key]*node, ordered.Len())
	for s := range ordered.All() {
		if previous, done := c.replacements[s.Key]; done {
			s = previous
		}
		if s == nil || s.Pod.DeletionTimestamp != nil { // left out, or does not start again
			continue
		}
		n := &node{spec: s, at: len(g)}
		byKey[s.Key] = n
		g = append(g, n)
	}
	return g, byKey
}

// graph returns the dependency graph with the replacements so far.
func (c cycles) graph(winners, ordered sorted.List[*pod.Spec]) graph {
	g, byKey := c.nodes(ordered)
	current := func(key pod.Key) *pod.Spec {
		if previous, done := c.replacements[key]; done {
			return previous
		}
		s, _ := findPod(winners, key)
		return s
	}
	for _, n := range g {
		for _, d := range n.spec.DependsOn {
			if key, found := n.spec.ResolveDependency(d, c.visible, current); found && byKey[key] != nil {
				n.on = append(n.on, byKey[key])
			}
		}
	}
	return g
}

// onCycles returns the pods that depend on themselves, directly or through others, in
// order.
func (g graph) onCycles() []*node {
	targets := func(i int) []int {
		all := make([]int, 0, len(g[i].on))
		for _, on := range g[i].on {
			all = append(all, on.at)
		}
		return all
	}
	for _, component := range cycle.Components(len(g), targets) {
		group := make([]*node, 0, len(component))
		for _, at := range component {
			group = append(group, g[at])
		}
		for _, n := range group {
			n.group = group
		}
	}
	return slices.DeleteFunc(slices.Clone(g), func(n *node) bool {
		return len(n.group) == 1 && !slices.Contains(n.on, n)
	})
}

const (
	// maxNamed is how many dependencies of a cycle a problem shows. It is also the size of the
	// largest component in which the problem of each pod shows its cycle. In a larger component
	// only one problem does, so that problems do not grow with the square of the cycle.
	maxNamed = 10
	// maxNameBytes is how much of each name a problem shows.
	maxNameBytes = 63
)

// problem returns the problem that the pod is on a cycle. It shows the first maxNamed dependencies of
// the shortest cycle through the pod. In a component of more than maxNamed pods, only the first
// problem shows a cycle. named has the first node of each component that has such a problem.
func (n *node) problem(named map[*node]bool) pod.Problem {
	through := fmt.Sprintf(", through some of %d pods", len(n.group))
	if first := n.group[0]; len(n.group) <= maxNamed || !named[first] {
		named[first] = true
		through = ": " + n.cycle()
	}
	return pod.Problem{
		File: cmp.Or(n.spec.Origin.File, n.spec.Origin.Location), Line: n.spec.Origin.Line,
		Path: "metadata.annotations[" + pod.AnnotationDependsOn + "]",
		Msg:  fmt.Sprintf("pod %s depends on itself%s", n.spec.Key, through),
		Hint: "remove one of these dependencies", Pod: n.spec.Key,
	}
}

// cycle returns the shortest path from n back to n, as problems show it.
func (n *node) cycle() string {
	from := make(map[*node]*node)
	for queue := []*node{n}; from[n] == nil; queue = queue[1:] {
		for _, on := range queue[0].on {
			if from[on] == nil && on.group[0] == n.group[0] { // no path returns to the group
				from[on] = queue[0]
				queue = append(queue, on)
			}
		}
	}
	path := []*node{n}
	for at := from[n]; at != n; at = from[at] {
		path = append(path, at)
	}
	path = append(path, n)
	slices.Reverse(path)
	var names []string
	for _, at := range path[:min(len(path), maxNamed+1)] {
		name := at.spec.Name
		if len(name) > maxNameBytes {
			name = strings.ToValidUTF8(name[:maxNameBytes], "") + "…"
		}
		names = append(names, name)
	}
	if rest := len(path) - len(names); rest > 0 {
		names = append(names, fmt.Sprintf("… (%d more)", rest))
	}
	return strings.Join(names, " -> ")
}

func findPod(l sorted.List[*pod.Spec], key pod.Key) (*pod.Spec, bool) {
	return sorted.Find(l, key, func(s *pod.Spec, key pod.Key) int { return s.Key.Compare(key) })
}
