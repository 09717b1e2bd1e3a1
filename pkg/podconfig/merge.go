package podconfig

import (
	"cmp"
	"slices"
	"strings"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/sorted"
)

// Merge returns the merged state of layers: for each pod and config object, the version of
// the first layer that has it. The versions of later layers become conflicts. A pod that
// depends on itself, directly or through others, is left out and becomes a problem. The
// result depends only on the content of the layers, not on the order in which they became ready.
func Merge(layers []Layer) *Merged {
	return newFold(layers, nil, nil).merged
}

// fold is a merged state with its intermediate results. With these, the cost of merging the next
// change of one layer is proportional to that change. A fold is immutable.
type fold struct {
	// layers are those of the sources. With an expander, as many follow in the same order: each
	// holds the pods and claims of the workloads of one layer.
	layers          []Layer
	expander        Expander              // nil: workloads have no pods
	podConflicts    sorted.List[Conflict] // by ident
	objectConflicts sorted.List[Conflict]
	merged          *Merged
	visible         Visible

	winners sorted.List[*pod.Spec] // for each pod the version that wins, before cycles and bindings
	ordered sorted.List[*pod.Spec] // those of winners that depend on other pods
	cycles  cycles
	// before has the versions that pods on a cycle keep. At first these are the versions that the
	// previous agent stored. At each step of a layer that was ready before, before becomes the
	// merged pods before that step.
	before sorted.List[*pod.Spec]

	bindings bindings
	// kept has the versions that the previous agent stored. An unbound pod without a merged
	// version gets its version in kept. kept becomes empty at the first step of a layer that was
	// ready before.
	kept sorted.List[*pod.Spec]
}

// newFold merges layers from scratch. kept and visible are as in Config.
func newFold(layers []Layer, kept []*pod.Spec, visible Visible) fold {
	var pods, objects []ident
	for _, l := range layers {
		pods = append(pods, allIdents(l.pods)...)
		objects = append(objects, allIdents(l.objects)...)
	}
	f := fold{layers: layers, visible: visible, merged: &Merged{}, before: sorted.From(kept, func(a, b *pod.Spec) int { return a.Key.Compare(b.Key) })}
	f.kept = f.before
	f, _ = f.remerge(sortedIdents(pods), sortedIdents(objects), changes{problems: true, skipped: true, retryUnbound: true})
	return f
}

// changes says which parts of the merged state remerge has to build again.
type changes struct {
	problems, skipped bool
	retryUnbound      bool // a source has answered differently, so that unbound pods may get their objects
	expand            bool // the expander may return other pods for the same workloads
}

// step returns the fold after layer i became l, and the pods that may differ in the merged state. If l
// is the next step of the fold's layer, step merges only the parts that l changed; otherwise it
// merges everything in both.
func (f fold) step(i int, l Layer) (next fold, pods []ident) {
	old := f.layers[i]
	pods, objects := l.changedPods, l.changedObjects
	if l.steps != old.steps+1 {
		pods = sortedIdents(append(allIdents(old.pods), allIdents(l.pods)...))
		objects = sortedIdents(append(allIdents(old.objects), allIdents(l.objects)...))
	}
	f.layers = slices.Clone(f.layers)
	f.layers[i] = l
	if old.state.Ready {
		f.before, f.kept = f.merged.Pods, sorted.List[*pod.Spec]{}
	}
	return f.remerge(pods, objects, changes{
		problems: !same(old.problems, l.problems), skipped: !same(old.skipped, l.skipped), retryUnbound: !old.state.sameAnswer(l.state),
	})
}

// remerge merges these pods and objects, which are sorted, again from the layers. It returns
// the fold and the pods that differ.
func (f fold) remerge(pods, objects []ident, c changes) (fold, []ident) {
	m := *f.merged
	ofObjects := func(l *Layer) *table[*pod.Object] { return &l.objects }
	o := remergeTable(f.layers, objects, m.Objects, f.objectConflicts, ofObjects)
	if f.expander != nil && (c.expand || slices.ContainsFunc(o.changed, func(id ident) bool { return pod.IsWorkload(id.kind) })) {
		var morePods, claims []ident
		f, morePods, claims = f.expandWorkloads(o.merged)
		more := remergeTable(f.layers, claims, o.merged, o.conflicts, ofObjects)
		more.conflictsChanged = more.conflictsChanged || o.conflictsChanged
		o = more
		pods, objects = sortedIdents(slices.Concat(pods, morePods)), sortedIdents(slices.Concat(objects, claims))
	}
	m.Objects = o.merged
	p := remergeTable(f.layers, pods, f.winners, f.podConflicts, func(l *Layer) *table[*pod.Spec] { return &l.pods })
	cyclic, unbound := f.cycles.problems, f.bindings.problems
	f, pods = f.breakCycles(p)
	f, m.Pods, pods = f.bind(pods, objects, c.retryUnbound)
	if p.conflictsChanged || o.conflictsChanged {
		f.podConflicts, f.objectConflicts = p.conflicts, o.conflicts
		m.Conflicts = append(p.conflicts.Slice(), o.conflicts.Slice()...)
		slices.SortStableFunc(m.Conflicts, func(a, b Conflict) int {
			return cmp.Or(a.Key.Compare(b.Key), strings.Compare(a.Kind, b.Kind))
		})
	}
	m.Layers = f.states()
	if c.skipped {
		m.Skipped = nil
		for _, l := range f.layers {
			m.Skipped = append(m.Skipped, l.skipped...)
		}
	}
	if c.problems || !same(cyclic, f.cycles.problems) || !same(unbound, f.bindings.problems) {
		m.Problems = slices.Concat(f.cycles.problems, f.bindings.problems)
		for _, l := range f.layers {
			m.Problems = append(m.Problems, l.problems...)
		}
		slices.SortStableFunc(m.Problems, compareProblems)
	}
	f.merged = &m
	return f, pods
}

// breakCycles returns the fold with the pods of p as winners and without their cycles, and the pods
// that may have changed. It searches for cycles only if a pod depends on another.
func (f fold) breakCycles(p remerged[*pod.Spec]) (next fold, changed []ident) {
	f.winners = p.merged
	if len(p.changed) == 0 {
		return f, nil
	}
	var depend map[ident][]*pod.Spec
	for i, s := range p.now {
		if s != nil && len(s.DependsOn) > 0 {
			if depend == nil {
				depend = make(map[ident][]*pod.Spec)
			}
			depend[p.changed[i]] = []*pod.Spec{s}
		}
	}
	if len(depend) == 0 && f.ordered.Len() == 0 {
		return f, p.changed
	}
	f.ordered = sorted.Patch(f.ordered, p.changed, compareItem[*pod.Spec], from(depend))
	old := f.cycles
	f.cycles = breakCycles(f.winners, f.ordered, f.before, f.visible)
	return f, sortedIdents(slices.Concat(p.changed, old.keys(), f.cycles.keys()))
}

// remerged is the result of remergeTable for pods or objects.
type remerged[T item] struct {
	merged           sorted.List[T]
	changed          []ident // those whose winner changed
	now              []T     // their new winners, in the same order; nil for none
	conflicts        sorted.List[Conflict]
	conflictsChanged bool
}

// remergeTable merges ids again from the layers' tables, and returns merged and conflicts
// with the result.
func remergeTable[T item](layers []Layer, ids []ident, merged sorted.List[T], conflicts sorted.List[Conflict], of func(*Layer) *table[T]) remerged[T] {
	r := remerged[T]{merged: merged, conflicts: conflicts}
	if len(ids) == 0 {
		return r
	}
	winners := make(map[ident][]T, len(ids))
	fresh := make(map[ident][]Conflict)
	for _, id := range ids {
		var won *definition[T]
		var ofID []Conflict
		wonInExpansion := false
		for i := range layers {
			t := of(&layers[i])
			d := t.winner(id)
			if d == nil {
				continue
			}
			if won == nil {
				won, wonInExpansion = d, layers[i].isExpansion()
			} else {
				reason := reasonLayer
				if layers[i].isExpansion() {
					if id.kind == pod.KindClaim { // as in Kubernetes, a StatefulSet uses a claim that exists
						continue
					}
					if !wonInExpansion {
						reason = reasonPod
					}
				}
				ofID = append(ofID, Conflict{
					Kind: id.kind, Key: id.key,
					Winner: originOf(won.value), Loser: originOf(d.value), Reason: reason,
				})
			}
			ofID = append(ofID, sorted.Run(t.conflicts, id, Conflict.compareTo)...)
		}
		if len(ofID) > 0 {
			fresh[id] = ofID
		}
		r.conflictsChanged = r.conflictsChanged || !slices.Equal(ofID, sorted.Run(conflicts, id, Conflict.compareTo))
		before, known := sorted.Find(merged, id, compareItem[T])
		if won != nil {
			winners[id] = []T{won.value}
		}
		if known != (won != nil) || known && before != won.value {
			var now T
			if won != nil {
				now = won.value
			}
			r.changed, r.now = append(r.changed, id), append(r.now, now)
		}
	}
	if r.conflictsChanged {
		r.conflicts = sorted.Patch(conflicts, ids, Conflict.compareTo, from(fresh))
	}
	r.merged = sorted.Patch(merged, r.changed, compareItem[T], from(winners))
	return r
}

func compareItem[T item](v T, id ident) int { return identOf(v).compare(id) }

// allIdents returns the idents of a table, sorted.
func allIdents[T item](t table[T]) []ident {
	ids := make([]ident, 0, t.winners.Len())
	for d := range t.winners.All() {
		ids = append(ids, d.ident())
	}
	return ids
}

func compareProblems(a, b pod.Problem) int {
	return cmp.Or(
		strings.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column),
		strings.Compare(a.Path, b.Path), strings.Compare(a.Msg, b.Msg),
	)
}
