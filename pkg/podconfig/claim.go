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

// Why the winner of a Conflict won (Conflict.Reason).
const (
	reasonLayer = "earlier layer wins"
	reasonOwner = "running owner stays"
	reasonPath  = "first path in byte order"
	reasonFile  = "first in the file"
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

// identical reports whether two items are equal in everything that a reader can see, so that
// the older pointer may stay in place of the newer one.
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

// sameContent reports whether a and b have the same content, so that replacing a by b
// restarts nothing.
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

// claim is one definition of an ident in one file. The claim that the layer uses is the
// winner, and its file is the owner of the ident.
type claim[T item] struct {
	value T
	file  string
	index int // position among the file's claims on the ident
}

func (c claim[T]) ident() ident { return identOf(c.value) }

func (c claim[T]) compare(o claim[T]) int {
	return cmp.Or(strings.Compare(c.file, o.file), cmp.Compare(c.index, o.index))
}

// compareTo orders claims by their ident.
func (c claim[T]) compareTo(id ident) int { return c.ident().compare(id) }

// compareTo orders conflicts by their ident.
func (c Conflict) compareTo(id ident) int { return ident{c.Kind, c.Key}.compare(id) }

// table has all claims of one layer on pods, or on objects, and the winners. It is
// immutable.
type table[T item] struct {
	claims    sorted.List[claim[T]] // by ident, file, index
	winners   sorted.List[claim[T]] // by ident, one for each
	conflicts sorted.List[Conflict] // by ident
}

// change is the effect of one reading on a table.
type change[T item] struct {
	files map[string][]T // the files that differ, with their whole new content
	ids   []ident        // the idents that differ in them, in any order, repetitions allowed
	// kept returns the version of an ident that the previous agent stored, nil for none.
	// The function is nil once the layer is ready.
	kept func(ident) T
	// successor returns the file that takes over the last good version of an ident which no
	// file defines any more; "" for none. The function may be nil.
	successor func(ident) string
}

// apply returns the table after a reading, the idents that changed in it, and the claims
// of successors.
func (t table[T]) apply(c change[T]) (next table[T], touched []ident, takenOver []claim[T]) {
	if len(c.ids) == 0 {
		return t, nil, nil
	}
	ids := sortedIdents(c.ids)
	fresh := t.claimsAfter(c, ids)
	for _, id := range ids {
		before := sorted.Run(t.claims, id, claim[T].compareTo)
		if len(fresh[id]) == 0 && c.successor != nil {
			if won, file := t.winner(id), c.successor(id); won != nil && file != "" {
				moved := claim[T]{value: won.value, file: file}
				fresh[id] = []claim[T]{moved}
				takenOver = append(takenOver, moved)
			}
		}
		if !slices.EqualFunc(before, fresh[id], func(a, b claim[T]) bool { return a.value == b.value && a.file == b.file }) {
			touched = append(touched, id)
		}
	}
	if len(touched) == 0 {
		return t, nil, nil
	}
	winners := make(map[ident][]claim[T], len(touched))
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
		winners[id] = []claim[T]{won}
		if len(fresh[id]) > 1 {
			conflicts[id] = conflictsOf(fresh[id], won)
		}
	}
	next.claims = sorted.Patch(t.claims, touched, claim[T].compareTo, from(fresh))
	next.conflicts = t.conflicts
	if len(conflicts) > 0 || t.conflicts.Len() > 0 {
		next.conflicts = sorted.Patch(t.conflicts, touched, Conflict.compareTo, from(conflicts))
	}
	if next.winners = next.claims; next.conflicts.Len() > 0 { // without conflicts every claim wins
		next.winners = sorted.Patch(t.winners, touched, claim[T].compareTo, from(winners))
	}
	return next, touched, takenOver
}

// claimsAfter returns the claims on each of ids after the change c.
func (t table[T]) claimsAfter(c change[T], ids []ident) map[ident][]claim[T] {
	fresh := make(map[ident][]claim[T], len(ids))
	for _, id := range ids {
		fresh[id] = nil
		for _, old := range sorted.Run(t.claims, id, claim[T].compareTo) {
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
			claims, asked := fresh[id]
			if !asked {
				continue
			}
			fresh[id] = append(claims, claim[T]{value: v, file: file, index: i})
		}
	}
	for _, claims := range fresh {
		slices.SortFunc(claims, claim[T].compare)
	}
	return fresh
}

// winner returns the winning claim on id, nil when there is none.
func (t table[T]) winner(id ident) *claim[T] {
	if won, known := sorted.Find(t.winners, id, claim[T].compareTo); known {
		return &won
	}
	return nil
}

// choose returns the claim that wins. claims has at least one, sorted by file and index.
// before is the winner of the last reading, nil for none; kept is the version that the
// previous agent stored, nil for none. The first of these that exists wins:
//
//	with before:             a claim of its file                  the owner stays (F43)
//	                         a claim with its content             its file was renamed
//	without before but kept: a claim of a file that has it unchanged
//	                         a claim of the file that it came from
//	in any case:             the first claim, by path in byte order
//
// Of several claims of one file the first one wins (C-1.2.2).
func choose[T item](claims []claim[T], before *claim[T], kept T) claim[T] {
	if before != nil {
		for _, c := range claims {
			if c.file == before.file {
				return c
			}
		}
		for i, c := range claims {
			if sameContent(before.value, c.value) && (i == 0 || claims[i-1].file != c.file) {
				return c
			}
		}
		return claims[0]
	}
	var none T
	if kept == none {
		return claims[0]
	}
	for _, c := range claims {
		if identical(kept, c.value) {
			return firstOf(claims, c.file)
		}
	}
	file := originOf(kept).File
	for _, c := range claims {
		if c.file == file || originOf(c.value).File == file {
			return firstOf(claims, c.file)
		}
	}
	return claims[0]
}

// firstOf returns the first claim of file, which has one.
func firstOf[T item](claims []claim[T], file string) claim[T] {
	i := slices.IndexFunc(claims, func(c claim[T]) bool { return c.file == file })
	return claims[i]
}

// conflictsOf returns a conflict for every claim but the winner.
func conflictsOf[T item](claims []claim[T], won claim[T]) []Conflict {
	var out []Conflict
	for _, c := range claims {
		if c.file == won.file && c.index == won.index {
			continue
		}
		id := c.ident()
		conflict := Conflict{Kind: id.kind, Key: id.key, Winner: originOf(won.value), Loser: originOf(c.value)}
		switch {
		case c.file == won.file:
			conflict.Reason = reasonFile
		case won.file != claims[0].file:
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
