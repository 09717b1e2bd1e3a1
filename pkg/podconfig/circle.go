package podconfig

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/sorted"
)

// circles is what becomes of pods that would wait for themselves, through others
// or not (pod.AnnotationDependsOn). The zero value is none.
type circles struct {
	// instead holds, for each pod that does not stand as it is written, the version
	// that does; nil for none.
	instead  map[pod.Key]*pod.Spec
	problems []pod.Problem // sorted
}

// breakCircles finds the circles among the winners; ordered are those of them
// that depend on others. A pod on a circle that before holds stays as it is there,
// so that nothing that runs is hurt; any other is left out.
//
// Versions of different times may make new circles: so it looks again until there
// is none, or none but of versions that before holds. Those stay as they are.
func breakCircles(winners, ordered, before sorted.List[*pod.Spec]) circles {
	var c circles
	if ordered.Len() == 0 {
		return c
	}
	for {
		g := c.graph(winners, ordered)
		var stuck []pod.Problem
		found := len(c.problems)
		for _, n := range g.onCircles() {
			if _, done := c.instead[n.spec.Key]; done {
				continue
			}
			stood, known := findPod(before, n.spec.Key)
			if known && !different(stood, n.spec) {
				stuck = append(stuck, n.problem())
				continue
			}
			if c.instead == nil {
				c.instead = make(map[pod.Key]*pod.Spec)
			}
			c.instead[n.spec.Key] = stood
			c.problems = append(c.problems, n.problem())
		}
		if len(c.problems) == found {
			c.problems = append(c.problems, stuck...)
			slices.SortStableFunc(c.problems, compareProblems)
			return c
		}
	}
}

// keys returns the pods that do not stand as they are written, as idents in
// order.
func (c circles) keys() []ident {
	ids := make([]ident, 0, len(c.instead))
	for key := range c.instead {
		ids = append(ids, ident{kindPod, key})
	}
	slices.SortFunc(ids, ident.compare)
	return ids
}

// node is one pod that depends on others.
type node struct {
	spec *pod.Spec
	on   []*node // of what it depends on, what depends on others itself
	// index and low are Tarjan's, from 1; group is the circles it shares with
	// others, once that is known.
	index, low int
	group      []*node
}

// graph is the pods that depend on others, by key.
type graph struct {
	nodes []*node
	open  []*node // visited, and in no group yet
	count int
}

// graph returns who depends on whom, with what is known so far.
func (c circles) graph(winners, ordered sorted.List[*pod.Spec]) *graph {
	g := &graph{}
	byKey := make(map[pod.Key]*node, ordered.Len())
	for s := range ordered.All() {
		if stood, done := c.instead[s.Key]; done {
			s = stood
		}
		if s == nil || s.Pod.DeletionTimestamp != nil { // it starts no more
			continue
		}
		n := &node{spec: s}
		byKey[s.Key] = n
		g.nodes = append(g.nodes, n)
	}
	there := func(key pod.Key) bool {
		if stood, done := c.instead[key]; done {
			return stood != nil
		}
		_, held := findPod(winners, key)
		return held
	}
	for _, n := range g.nodes {
		for _, d := range n.spec.DependsOn {
			for _, key := range n.spec.Targets(d) {
				if !there(key) {
					continue
				}
				if on := byKey[key]; on != nil {
					n.on = append(n.on, on)
				}
				break
			}
		}
	}
	return g
}

// onCircles returns the pods that depend on themselves, through others or not,
// in order.
func (g *graph) onCircles() []*node {
	for _, n := range g.nodes {
		if n.index == 0 {
			g.visit(n)
		}
	}
	return slices.DeleteFunc(slices.Clone(g.nodes), func(n *node) bool {
		return len(n.group) == 1 && !slices.Contains(n.on, n)
	})
}

// visit finds the strongly connected components below n.
func (g *graph) visit(n *node) {
	g.count++
	n.index, n.low = g.count, g.count
	g.open = append(g.open, n)
	for _, on := range n.on {
		switch {
		case on.index == 0:
			g.visit(on)
			n.low = min(n.low, on.low)
		case on.group == nil:
			n.low = min(n.low, on.index)
		}
	}
	if n.low != n.index {
		return
	}
	at := len(g.open) - 1
	for g.open[at] != n {
		at--
	}
	group := slices.Clone(g.open[at:])
	g.open = g.open[:at]
	for _, member := range group {
		member.group = group
	}
}

// mostNamed is how many pods a circle may have to be named one by one.
const mostNamed = 100

// problem says that the pod stands on a circle, and names all of the shortest.
func (n *node) problem() pod.Problem {
	through := fmt.Sprintf(", through some of %d pods", len(n.group))
	if len(n.group) <= mostNamed {
		through = ": " + strings.Join(n.circle(), " -> ")
	}
	return pod.Problem{
		File: cmp.Or(n.spec.Origin.File, n.spec.Origin.Location), Line: n.spec.Origin.Line,
		Path: "metadata.annotations[" + pod.AnnotationDependsOn + "]",
		Msg:  fmt.Sprintf("pod %s depends on itself%s", n.spec.Key, through),
		Hint: "take one of these dependencies out",
	}
}

// circle returns the names on the shortest way from n back to n.
func (n *node) circle() []string {
	from := make(map[*node]*node)
	for queue := []*node{n}; from[n] == nil; queue = queue[1:] {
		for _, on := range queue[0].on {
			if from[on] == nil {
				from[on] = queue[0]
				queue = append(queue, on)
			}
		}
	}
	names := []string{n.spec.Name}
	for at := from[n]; ; at = from[at] {
		names = append(names, at.spec.Name)
		if at == n {
			slices.Reverse(names)
			return names
		}
	}
}

func findPod(l sorted.List[*pod.Spec], key pod.Key) (*pod.Spec, bool) {
	return sorted.Find(l, key, func(s *pod.Spec, key pod.Key) int { return s.Key.Compare(key) })
}
