package podconfig

import (
	"cmp"
	"slices"
	"strings"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/sorted"
)

// Merge returns the state of all layers: for each pod and config object, the version of
// the first layer that holds it; the others are recorded as conflicts. The result
// depends only on the content of the layers, never on the order in which they became
// ready. Pods that depend on themselves, directly or through others, are problems, and
// left out.
func Merge(layers []Layer) *Merged {
	return newFold(layers, nil, nil).merged
}

// fold is a merge that applies one step of one layer at a cost proportional to the
// change. It is immutable.
type fold struct {
	layers          []Layer
	podConflicts    sorted.List[Conflict] // by ident
	objectConflicts sorted.List[Conflict]
	merged          *Merged

	// For pods that depend on others: winners are the pods before cycles are broken,
	// ordered those of them that depend on others. before is the pods that the previous
	// agent stored and, from a layer's second reading on, the set before that reading.
	winners, ordered, before sorted.List[*pod.Spec]
	cycles                   cycles

	// For pods that name config objects: kept is the pods that the previous agent
	// stored, until a layer's second reading.
	bindings bindings
	visible  Visible
	kept     sorted.List[*pod.Spec]
}

// newFold merges layers from scratch. kept is the pods that the previous agent stored;
// visible is Config's.
func newFold(layers []Layer, kept []*pod.Spec, visible Visible) fold {
	var pods, objects []ident
	for _, l := range layers {
		pods = append(pods, allIdents(l.pods)...)
		objects = append(objects, allIdents(l.objects)...)
	}
	f := fold{layers: layers, visible: visible, merged: &Merged{}, before: sorted.From(kept, func(a, b *pod.Spec) int { return a.Key.Compare(b.Key) })}
	f.kept = f.before
	f, _ = f.remerge(sortedIdents(pods), sortedIdents(objects), changes{true, true, true})
	return f
}

// changes says which lists built from all layers are out of date, and whether a layer
// differs in which objects it may still get.
type changes struct{ problems, skipped, spoke bool }

// step returns the fold after layer i became l, and the pods that differ in the merged
// state. When l is one step on from the layer the fold holds, step looks only at what
// that step changed; else at everything of both.
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
	return f.remerge(pods, objects, changes{!same(old.problems, l.problems), !same(old.skipped, l.skipped), old.state.differs(l.state)})
}

// remerge merges pods and objects (sorted) again from the layers, and returns the fold
// and those of the pods that differ.
func (f fold) remerge(pods, objects []ident, c changes) (fold, []ident) {
	m := *f.merged
	p := remergeTable(f.layers, pods, f.winners, f.podConflicts, func(l *Layer) *table[*pod.Spec] { return &l.pods })
	o := remergeTable(f.layers, objects, m.Objects, f.objectConflicts, func(l *Layer) *table[*pod.Object] { return &l.objects })
	m.Objects = o.merged
	cyclic, refused := f.cycles.problems, f.bindings.problems
	f, pods = f.order(p)
	f, m.Pods, pods = f.bind(pods, objects, c.spoke)
	if p.lost || o.lost {
		f.podConflicts, f.objectConflicts = p.conflicts, o.conflicts
		m.Conflicts = append(p.conflicts.Slice(), o.conflicts.Slice()...)
		slices.SortStableFunc(m.Conflicts, func(a, b Conflict) int {
			return cmp.Or(a.Key.Compare(b.Key), strings.Compare(a.Kind, b.Kind))
		})
	}
	m.Layers = make([]LayerState, 0, len(f.layers))
	for _, l := range f.layers {
		m.Layers = append(m.Layers, l.state)
	}
	if c.skipped {
		m.Skipped = nil
		for _, l := range f.layers {
			m.Skipped = append(m.Skipped, l.skipped...)
		}
	}
	if c.problems || !same(cyclic, f.cycles.problems) || !same(refused, f.bindings.problems) {
		m.Problems = slices.Concat(f.cycles.problems, f.bindings.problems)
		for _, l := range f.layers {
			m.Problems = append(m.Problems, l.problems...)
		}
		slices.SortStableFunc(m.Problems, compareProblems)
	}
	f.merged = &m
	return f, pods
}

// order returns the fold with p's pods as winners and their cycles broken, and the pods
// that may have changed. It costs nothing more where no pod depends on another.
func (f fold) order(p remerged[*pod.Spec]) (next fold, changed []ident) {
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

// remerged is the pods or the objects after some idents were merged again.
type remerged[T item] struct {
	merged    sorted.List[T]
	changed   []ident // those with another winner, or none now
	now       []T     // their winners, index for index; nil for none
	conflicts sorted.List[Conflict]
	lost      bool // a conflict came, went or changed
}

// remergeTable merges ids again, after the layers' claims on them changed.
func remergeTable[T item](layers []Layer, ids []ident, merged sorted.List[T], conflicts sorted.List[Conflict], of func(*Layer) *table[T]) remerged[T] {
	r := remerged[T]{merged: merged, conflicts: conflicts}
	if len(ids) == 0 {
		return r
	}
	winners := make(map[ident][]T, len(ids))
	fresh := make(map[ident][]Conflict)
	for _, id := range ids {
		var won *claim[T]
		var lost []Conflict
		for i := range layers {
			t := of(&layers[i])
			held := t.winner(id)
			if held == nil {
				continue
			}
			if won == nil {
				won = held
			} else {
				lost = append(lost, Conflict{
					Kind: id.kind, Key: id.key,
					Winner: originOf(won.value), Loser: originOf(held.value), Reason: reasonLayer,
				})
			}
			lost = append(lost, sorted.Run(t.conflicts, id, Conflict.compareTo)...)
		}
		if len(lost) > 0 {
			fresh[id] = lost
		}
		r.lost = r.lost || !slices.Equal(lost, sorted.Run(conflicts, id, Conflict.compareTo))
		before, held := sorted.Find(merged, id, compareItem[T])
		if won != nil {
			winners[id] = []T{won.value}
		}
		if held != (won != nil) || held && before != won.value {
			var now T
			if won != nil {
				now = won.value
			}
			r.changed, r.now = append(r.changed, id), append(r.now, now)
		}
	}
	if r.lost {
		r.conflicts = sorted.Patch(conflicts, ids, Conflict.compareTo, from(fresh))
	}
	r.merged = sorted.Patch(merged, r.changed, compareItem[T], from(winners))
	return r
}

func compareItem[T item](v T, id ident) int { return identOf(v).compare(id) }

// allIdents returns every ident a table holds, sorted.
func allIdents[T item](t table[T]) []ident {
	ids := make([]ident, 0, t.winners.Len())
	for c := range t.winners.All() {
		ids = append(ids, c.ident())
	}
	return ids
}

func compareProblems(a, b pod.Problem) int {
	return cmp.Or(
		strings.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column),
		strings.Compare(a.Path, b.Path), strings.Compare(a.Msg, b.Msg),
	)
}
