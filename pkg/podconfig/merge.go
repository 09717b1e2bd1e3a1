package podconfig

import (
	"cmp"
	"slices"
	"strings"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Merge returns the state of all layers: of each pod and config object, the
// version of the first layer that holds it; the others are recorded as
// conflicts. Only what the layers hold matters, never the order in which they
// were heard.
func Merge(layers []Layer) *Merged {
	return newFold(layers).merged
}

// fold is a merge that can take one step of one layer at the cost of what
// changed. It is immutable.
type fold struct {
	layers          []Layer
	podConflicts    []Conflict // sorted by ident
	objectConflicts []Conflict
	merged          *Merged
}

// newFold merges layers from nothing.
func newFold(layers []Layer) fold {
	var pods, objects []ident
	for _, l := range layers {
		pods = append(pods, allIdents(l.pods)...)
		objects = append(objects, allIdents(l.objects)...)
	}
	f := fold{layers: layers, merged: &Merged{}}
	return f.remerge(sortedIdents(pods), sortedIdents(objects), true)
}

// step returns the fold after layer i became l, and the pods to compare. When l
// is one step on from the layer the fold holds, only what that step changed is
// looked at; else everything of both.
func (f fold) step(i int, l Layer) (next fold, pods []ident) {
	old := f.layers[i]
	pods, objects := l.changedPods, l.changedObjects
	if l.steps != old.steps+1 {
		pods = sortedIdents(append(allIdents(old.pods), allIdents(l.pods)...))
		objects = sortedIdents(append(allIdents(old.objects), allIdents(l.objects)...))
	}
	f.layers = slices.Clone(f.layers)
	f.layers[i] = l
	return f.remerge(pods, objects, !slices.Equal(old.problems, l.problems)), pods
}

// remerge returns the fold with pods and objects (sorted) merged anew from its
// layers.
func (f fold) remerge(pods, objects []ident, problems bool) fold {
	m := *f.merged
	var podsLost, objectsLost bool
	m.Pods, f.podConflicts, podsLost = remergeTable(f.layers, pods, m.Pods, f.podConflicts, func(l *Layer) table[*pod.Spec] { return l.pods })
	m.Objects, f.objectConflicts, objectsLost = remergeTable(f.layers, objects, m.Objects, f.objectConflicts, func(l *Layer) table[*pod.Object] { return l.objects })
	if podsLost || objectsLost {
		m.Conflicts = slices.Concat(f.podConflicts, f.objectConflicts)
		slices.SortStableFunc(m.Conflicts, func(a, b Conflict) int {
			return cmp.Or(a.Key.Compare(b.Key), strings.Compare(a.Kind, b.Kind))
		})
	}
	m.Layers, m.Skipped = make([]LayerState, 0, len(f.layers)), nil
	for _, l := range f.layers {
		m.Layers = append(m.Layers, l.state)
		m.Skipped = append(m.Skipped, l.skipped...)
	}
	if problems {
		m.Problems = nil
		for _, l := range f.layers {
			m.Problems = append(m.Problems, l.problems...)
		}
		slices.SortStableFunc(m.Problems, compareProblems)
	}
	f.merged = &m
	return f
}

// remergeTable returns the merged list and its conflicts after the layers' words
// on ids changed, and whether a conflict came, went or changed.
func remergeTable[T item](layers []Layer, ids []ident, merged []T, conflicts []Conflict, of func(*Layer) table[T]) ([]T, []Conflict, bool) {
	winners := make(map[ident][]T, len(ids))
	fresh := make(map[ident][]Conflict)
	lost := false
	for _, id := range ids {
		var won *claim[T]
		for i := range layers {
			t := of(&layers[i])
			held := t.winner(id)
			if held == nil {
				continue
			}
			if won == nil {
				won = held
				winners[id] = []T{won.value}
			} else {
				fresh[id] = append(fresh[id], Conflict{
					Kind: id.kind, Key: id.key,
					Winner: originOf(won.value), Loser: originOf(held.value), Reason: reasonLayer,
				})
			}
			fresh[id] = append(fresh[id], between(t.conflicts, id, Conflict.ident)...)
		}
		lost = lost || !slices.Equal(fresh[id], between(conflicts, id, Conflict.ident))
	}
	if lost {
		conflicts = patch(conflicts, ids, Conflict.ident, fresh)
	}
	return patch(merged, ids, identOf[T], winners), conflicts, lost
}

// allIdents returns every ident a table holds, sorted.
func allIdents[T item](t table[T]) []ident {
	ids := make([]ident, 0, len(t.winners))
	for _, c := range t.winners {
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
