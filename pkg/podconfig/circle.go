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
	visible  Visible       // see pod.Spec.Meant
}

// breakCircles finds the circles among the winners; ordered are those of them
// that depend on others. A pod on a circle that before holds stays as it is there,
// so that nothing that runs is hurt; any other is left out.
//
// Versions of different times may make new circles: so it looks again until there
// is none, or none but of versions that before holds. Those stay as they are. After
// mostRounds it takes the versions of before of all pods at once that could be on
// another circle. A dependency leads where the engine follows it: see pod.Spec.Meant.
func breakCircles(winners, ordered, before sorted.List[*pod.Spec], visible Visible) circles {
	c := circles{visible: visible}
	if ordered.Len() == 0 {
		return c
	}
	for round := 1; ; round++ {
		circled := c.graph(winners, ordered).onCircles()
		stuck, more := c.replace(circled, before)
		if !more {
			named := make(map[*node]bool)
			for _, n := range stuck {
				c.problems = append(c.problems, n.problem(named))
			}
			slices.SortStableFunc(c.problems, compareProblems)
			return c
		}
		if round == mostRounds {
			c.replace(c.couldCircle(ordered, before, circled), before)
		}
	}
}

// mostRounds bounds how often breakCircles looks for circles one version at a time. An
// edit leads to one round, rarely to a second one. A source can write versions that need
// as many rounds as it has pods.
const mostRounds = 8

// replace has the version of before stand for each of nodes, and notes a problem. It
// returns those that before holds as they are, and whether it replaced any.
func (c *circles) replace(nodes []*node, before sorted.List[*pod.Spec]) (stuck []*node, more bool) {
	named := make(map[*node]bool)
	for _, n := range nodes {
		if _, done := c.instead[n.spec.Key]; done {
			continue
		}
		stood, known := findPod(before, n.spec.Key)
		if known && !different(stood, n.spec) {
			stuck = append(stuck, n)
			continue
		}
		if c.instead == nil {
			c.instead = make(map[pod.Key]*pod.Spec)
		}
		c.instead[n.spec.Key] = stood
		c.problems = append(c.problems, n.problem(named))
		more = true
	}
	return stuck, more
}

// couldCircle returns the pods that some mixture of their versions, of now and of before,
// would put on a circle, in the namespaces of circled. A dependency never leaves its
// namespace: when all of these pods stand as in before, no other version is on a circle.
func (c circles) couldCircle(ordered, before sorted.List[*pod.Spec], circled []*node) []*node {
	namespaces := make(map[string]bool)
	for _, n := range circled {
		namespaces[n.spec.Namespace] = true
	}
	g, byKey := c.nodes(ordered)
	for _, n := range g.nodes {
		versions := []*pod.Spec{n.spec}
		if stood, known := findPod(before, n.spec.Key); known {
			versions = append(versions, stood)
		}
		for _, s := range versions {
			for _, d := range s.DependsOn {
				for _, key := range s.Targets(d) {
					on := byKey[key]
					if on == nil {
						continue
					}
					stood, known := findPod(before, key)
					if c.mayMean(s, on.spec) || known && c.mayMean(s, stood) {
						n.on = append(n.on, on)
					}
				}
			}
		}
	}
	return slices.DeleteFunc(g.onCircles(), func(n *node) bool { return !namespaces[n.spec.Namespace] })
}

// mayMean reports whether a dependency of s can mean on, if their names agree.
func (c circles) mayMean(s, on *pod.Spec) bool {
	from, to := s.Origin.Source, on.Origin.Source
	return from == to || c.visible != nil && c.visible(from, to)
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

// nodes returns a graph of the pods that depend on others, with what is known so far and
// with no dependency yet.
func (c circles) nodes(ordered sorted.List[*pod.Spec]) (g *graph, byKey map[pod.Key]*node) {
	g = &graph{}
	byKey = make(map[pod.Key]*node, ordered.Len())
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
	return g, byKey
}

// graph returns which pod depends on which, with what is known so far.
func (c circles) graph(winners, ordered sorted.List[*pod.Spec]) *graph {
	g, byKey := c.nodes(ordered)
	wanted := func(key pod.Key) *pod.Spec {
		if stood, done := c.instead[key]; done {
			return stood
		}
		s, _ := findPod(winners, key)
		return s
	}
	for _, n := range g.nodes {
		for _, d := range n.spec.DependsOn {
			if key, found := n.spec.Meant(d, c.visible, wanted); found && byKey[key] != nil {
				n.on = append(n.on, byKey[key])
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

const (
	// mostNamed is how many pods of a circle a problem names, and how many pods may
	// depend on each other for every one of them to get a problem that names them: with
	// more, one does, so that problems do not grow with the square of the circle.
	mostNamed = 10
	// longestName is how much of each name a problem shows.
	longestName = 63
)

// problem says that the pod stands on a circle, and names the shortest one: the first of
// mostNamed pods of it. Where more pods depend on each other than that, it does so for the
// first of them that is asked, which named remembers.
func (n *node) problem(named map[*node]bool) pod.Problem {
	through := fmt.Sprintf(", through some of %d pods", len(n.group))
	if first := n.group[0]; len(n.group) <= mostNamed || !named[first] {
		named[first] = true
		through = ": " + n.circle()
	}
	return pod.Problem{
		File: cmp.Or(n.spec.Origin.File, n.spec.Origin.Location), Line: n.spec.Origin.Line,
		Path: "metadata.annotations[" + pod.AnnotationDependsOn + "]",
		Msg:  fmt.Sprintf("pod %s depends on itself%s", n.spec.Key, through),
		Hint: "take one of these dependencies out",
	}
}

// circle returns the shortest way from n back to n, as problems show it.
func (n *node) circle() string {
	from := make(map[*node]*node)
	for queue := []*node{n}; from[n] == nil; queue = queue[1:] {
		for _, on := range queue[0].on {
			if from[on] == nil && on.group[0] == n.group[0] { // what leaves the group does not come back
				from[on] = queue[0]
				queue = append(queue, on)
			}
		}
	}
	way := []*node{n}
	for at := from[n]; at != n; at = from[at] {
		way = append(way, at)
	}
	way = append(way, n)
	slices.Reverse(way)
	var names []string
	for _, at := range way[:min(len(way), mostNamed+1)] {
		name := at.spec.Name
		if len(name) > longestName {
			name = strings.ToValidUTF8(name[:longestName], "") + "…"
		}
		names = append(names, name)
	}
	if rest := len(way) - len(names); rest > 0 {
		names = append(names, fmt.Sprintf("… (%d more)", rest))
	}
	return strings.Join(names, " -> ")
}

func findPod(l sorted.List[*pod.Spec], key pod.Key) (*pod.Spec, bool) {
	return sorted.Find(l, key, func(s *pod.Spec, key pod.Key) int { return s.Key.Compare(key) })
}
