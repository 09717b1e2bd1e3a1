package podconfig

import (
	"cmp"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/sorted"
)

// kindPod is the kind of a pod's ident.
const kindPod = "Pod"

// The reasons why the winner of a Conflict won (Conflict.Reason).
const (
	reasonLayer = "earlier layer wins"
	reasonOwner = "the definition in use stays"
	reasonPath  = "first path in byte order"
	reasonFile  = "first in the file"
	reasonPod   = "a pod of a source wins over one of a workload"
)

// ident identifies a pod or a config object: its kind and key.
type ident struct {
	kind string
	key  pod.Key
}

func (a ident) compare(b ident) int {
	if c := strings.Compare(a.kind, b.kind); c != 0 {
		return c
	}
	return a.key.Compare(b.key)
}

// item is a pod or a config object.
type item interface {
	comparable
	*pod.Spec | *pod.Object
}

func identOf[T item](v T) ident {
	switch v := any(v).(type) {
	case *pod.Spec:
		return ident{kindPod, v.Key}
	case *pod.Object:
		return ident{v.Kind, v.Key}
	}
	return ident{}
}

func originOf[T item](v T) pod.Origin {
	switch v := any(v).(type) {
	case *pod.Spec:
		return v.Origin
	case *pod.Object:
		return v.Origin
	}
	return pod.Origin{}
}

// identical reports whether two items are equal for a reader of the merged state. If so, the older
// pointer may stay in place of the newer one.
func identical[T item](a, b T) bool {
	if a == b {
		return true
	}
	if identOf(a) != identOf(b) || originOf(a) != originOf(b) {
		return false
	}
	switch a := any(a).(type) {
	case *pod.Spec:
		b := any(b).(*pod.Spec)
		if a.Hash == "" || a.Hash != b.Hash {
			return a.Hash == b.Hash && reflect.DeepEqual(a, b)
		}
		return a.Pod.UID == b.Pod.UID && sameDeletion(a.Pod, b.Pod) && sameStatus(a, b) && slices.Equal(a.Unread, b.Unread)
	case *pod.Object:
		b := any(b).(*pod.Object)
		return a.Hash == b.Hash && (a.Hash != "" || equality.Semantic.DeepEqual(a.Object, b.Object))
	}
	return false
}

// sameContent reports whether a and b have the same content. If so, replacing a by b restarts nothing.
func sameContent[T item](a, b T) bool {
	switch a := any(a).(type) {
	case *pod.Spec:
		return !different(a, any(b).(*pod.Spec))
	case *pod.Object:
		b := any(b).(*pod.Object)
		return a.Hash == b.Hash && a.Hash != ""
	}
	return false
}

// definition is one definition of an ident in one file. The one that the layer uses is the
// winner, and its file is the owner of the ident.
type definition[T item] struct {
	value T
	file  string
	index int // position among the file's definitions of the ident
}

func (d definition[T]) ident() ident { return identOf(d.value) }

func (d definition[T]) compare(o definition[T]) int {
	return cmp.Or(strings.Compare(d.file, o.file), cmp.Compare(d.index, o.index))
}

// compareTo orders definitions by their ident.
func (d definition[T]) compareTo(id ident) int { return d.ident().compare(id) }

// compareTo orders conflicts by their ident.
func (c Conflict) compareTo(id ident) int { return ident{c.Kind, c.Key}.compare(id) }

// table has all definitions of pods, or of objects, in one layer, and the winners. It is
// immutable.
type table[T item] struct {
	definitions sorted.List[definition[T]] // by ident, file, index
	winners     sorted.List[definition[T]] // by ident, one for each
	conflicts   sorted.List[Conflict]      // by ident
}

// change is the effect of one reading on a table.
type change[T item] struct {
	files map[string][]T // the files that differ, with their complete new content
	ids   []ident        // the idents that differ in these files, in any order; they may repeat
	// kept returns the version of an ident that the previous agent stored, nil for none.
	// The function is nil once the layer is ready.
	kept func(ident) T
	// successor returns the file that takes over the last good version of an ident that no file
	// defines any more; "" for none. The function may be nil.
	successor func(ident, T) string
}

// apply returns the table after a reading, the idents that changed in it, and the
// definitions that successors took over.
func (t table[T]) apply(c change[T]) (next table[T], touched []ident, takenOver []definition[T]) {
	if len(c.ids) == 0 {
		return t, nil, nil
	}
	ids := sortedIdents(c.ids)
	fresh := t.definitionsAfter(c, ids)
	for _, id := range ids {
		before := sorted.Run(t.definitions, id, definition[T].compareTo)
		if len(fresh[id]) == 0 && c.successor != nil {
			if won := t.winner(id); won != nil {
				if file := c.successor(id, won.value); file != "" {
					moved := definition[T]{value: won.value, file: file}
					fresh[id] = []definition[T]{moved}
					takenOver = append(takenOver, moved)
				}
			}
		}
		if !slices.EqualFunc(before, fresh[id], func(a, b definition[T]) bool { return a.value == b.value && a.file == b.file }) {
			touched = append(touched, id)
		}
	}
	if len(touched) == 0 {
		return t, nil, nil
	}
	winners := make(map[ident][]definition[T], len(touched))
	conflicts := make(map[ident][]Conflict)
	for _, id := range touched {
		if len(fresh[id]) == 0 {
			continue
		}
		var kept T
		if c.kept != nil {
			kept = c.kept(id)
		}
		won := choose(fresh[id], t.winner(id), kept)
		winners[id] = []definition[T]{won}
		if len(fresh[id]) > 1 {
			conflicts[id] = conflictsOf(fresh[id], won)
		}
	}
	next.definitions = sorted.Patch(t.definitions, touched, definition[T].compareTo, from(fresh))
	next.conflicts = t.conflicts
	if len(conflicts) > 0 || t.conflicts.Len() > 0 {
		next.conflicts = sorted.Patch(t.conflicts, touched, Conflict.compareTo, from(conflicts))
	}
	if next.winners = next.definitions; next.conflicts.Len() > 0 { // without conflicts every definition wins
		next.winners = sorted.Patch(t.winners, touched, definition[T].compareTo, from(winners))
	}
	return next, touched, takenOver
}

// definitionsAfter returns the definitions of each of ids after the change c.
func (t table[T]) definitionsAfter(c change[T], ids []ident) map[ident][]definition[T] {
	fresh := make(map[ident][]definition[T], len(ids))
	for _, id := range ids {
		fresh[id] = nil
		for _, old := range sorted.Run(t.definitions, id, definition[T].compareTo) {
			if _, differs := c.files[old.file]; !differs {
				fresh[id] = append(fresh[id], old)
			}
		}
	}
	for file, values := range c.files {
		for i, v := range values {
			id := identOf(v)
			if len(ids) <= 8 && !slices.Contains(ids, id) { // hashing every name of a large file costs more
				continue
			}
			definitions, affected := fresh[id]
			if !affected {
				continue
			}
			fresh[id] = append(definitions, definition[T]{value: v, file: file, index: i})
		}
	}
	for _, definitions := range fresh {
		slices.SortFunc(definitions, definition[T].compare)
	}
	return fresh
}

// winner returns the winning definition of id, nil when there is none.
func (t table[T]) winner(id ident) *definition[T] {
	if won, known := sorted.Find(t.winners, id, definition[T].compareTo); known {
		return &won
	}
	return nil
}

// choose returns the definition that wins. definitions is not empty, and sorted by file and index.
// before is the winner of the last reading; kept is the version that the previous agent stored. Both
// may be nil. The first of these definitions that exists wins:
//
//	with before:                one in the file of before          the owner stays (F43)
//	                            one with the content of before     its file was renamed
//	with kept, without before:  one in a file that has kept unchanged
//	                            one in the file that kept came from
//	in any case:                the first one, by path in byte order
//
// If one file has several definitions, the first one wins (C-1.2.2).
func choose[T item](definitions []definition[T], before *definition[T], kept T) definition[T] {
	if before != nil {
		for _, d := range definitions {
			if d.file == before.file {
				return d
			}
		}
		for i, d := range definitions {
			if sameContent(before.value, d.value) && (i == 0 || definitions[i-1].file != d.file) {
				return d
			}
		}
		return definitions[0]
	}
	var none T
	if kept == none {
		return definitions[0]
	}
	for _, d := range definitions {
		if identical(kept, d.value) {
			return firstOf(definitions, d.file)
		}
	}
	file := originOf(kept).File
	for _, d := range definitions {
		if d.file == file || originOf(d.value).File == file {
			return firstOf(definitions, d.file)
		}
	}
	return definitions[0]
}

// firstOf returns the first definition of file, which has one.
func firstOf[T item](definitions []definition[T], file string) definition[T] {
	i := slices.IndexFunc(definitions, func(d definition[T]) bool { return d.file == file })
	return definitions[i]
}

// conflictsOf returns a conflict for each definition except the winner.
func conflictsOf[T item](definitions []definition[T], won definition[T]) []Conflict {
	var out []Conflict
	for _, d := range definitions {
		if d.file == won.file && d.index == won.index {
			continue
		}
		id := d.ident()
		conflict := Conflict{Kind: id.kind, Key: id.key, Winner: originOf(won.value), Loser: originOf(d.value)}
		switch {
		case d.file == won.file:
			conflict.Reason = reasonFile
		case won.file != definitions[0].file:
			conflict.Reason = reasonOwner
		default:
			conflict.Reason = reasonPath
		}
		out = append(out, conflict)
	}
	return out
}

// from returns a function that looks an ident up in m.
func from[E any](m map[ident][]E) func(ident) []E {
	return func(id ident) []E { return m[id] }
}

// sortedIdents returns ids sorted, each once.
func sortedIdents(ids []ident) []ident {
	ids = slices.Clone(ids)
	slices.SortFunc(ids, ident.compare)
	return slices.Compact(ids)
}
