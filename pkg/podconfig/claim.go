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

// Why a claim lost: Conflict.Reason.
const (
	reasonLayer     = "earlier layer wins"
	reasonIncumbent = "running owner stays"
	reasonPath      = "first path in byte order"
	reasonFile      = "first in the file"
)

// ident is what claims compete for: one name of one kind.
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

// item is what a file can hold.
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

// identical reports whether no reader can tell two readings apart, so that the older
// pointer may represent both.
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

// sameContent reports whether replacing a by b would change nothing that runs.
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

// claim is one file's definition of one ident.
type claim[T item] struct {
	value T
	file  string
	index int // position among the file's claims on the ident
}

func (c claim[T]) ident() ident { return identOf(c.value) }

func (c claim[T]) compare(o claim[T]) int {
	return cmp.Or(strings.Compare(c.file, o.file), cmp.Compare(c.index, o.index))
}

// compareTo orders claims by what they compete for.
func (c claim[T]) compareTo(id ident) int { return c.ident().compare(id) }

// compareTo orders conflicts by their ident.
func (c Conflict) compareTo(id ident) int { return ident{c.Kind, c.Key}.compare(id) }

// table holds all claims of one layer and the winners. It is immutable.
type table[T item] struct {
	claims    sorted.List[claim[T]] // by ident, file, index
	winners   sorted.List[claim[T]] // one per ident
	conflicts sorted.List[Conflict] // by ident
}

// change is the effect of one reading on a table.
type change[T item] struct {
	files map[string][]T // the files that differ, with their whole new content
	ids   []ident        // the idents that differ in them, in any order, repetitions allowed
	// incumbent returns the version of an ident from before this agent started, nil for
	// none; it is nil once the layer is ready.
	incumbent func(ident) T
	// heir names a file that holds the ident in a form that was rejected, "" when none
	// does. Nil where files do not record rejected idents.
	heir func(ident) string
}

// apply returns the table after a reading, the idents that changed in it, and the
// claims that an heir took over.
func (t table[T]) apply(c change[T]) (next table[T], touched []ident, inherited []claim[T]) {
	if len(c.ids) == 0 {
		return t, nil, nil
	}
	ids := sortedIdents(c.ids)
	fresh := t.claimsAfter(c, ids)
	for _, id := range ids {
		before := sorted.Run(t.claims, id, claim[T].compareTo)
		if len(fresh[id]) == 0 && c.heir != nil {
			if won, file := t.winner(id), c.heir(id); won != nil && file != "" {
				heir := claim[T]{value: won.value, file: file}
				fresh[id] = []claim[T]{heir}
				inherited = append(inherited, heir)
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
		var before T
		if c.incumbent != nil {
			before = c.incumbent(id)
		}
		won := choose(fresh[id], t.winner(id), before)
		winners[id] = []claim[T]{won}
		if len(fresh[id]) > 1 {
			conflicts[id] = lost(fresh[id], won)
		}
	}
	next.claims = sorted.Patch(t.claims, touched, claim[T].compareTo, from(fresh))
	next.conflicts = t.conflicts
	if len(conflicts) > 0 || t.conflicts.Len() > 0 {
		next.conflicts = sorted.Patch(t.conflicts, touched, Conflict.compareTo, from(conflicts))
	}
	if next.winners = next.claims; next.conflicts.Len() > 0 { // without losers the lists are equal
		next.winners = sorted.Patch(t.winners, touched, claim[T].compareTo, from(winners))
	}
	return next, touched, inherited
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
			claims, wanted := fresh[id]
			if !wanted {
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
	if won, held := sorted.Find(t.winners, id, claim[T].compareTo); held {
		return &won
	}
	return nil
}

// choose returns the claim that holds an ident, of one or more sorted by file
// and index. First match wins:
//
//	the file that held it before        an owner stays (F43)
//	the same content in another file    the owner's file was renamed
//	what the previous agent kept;       known until the layer is ready
//	then the file that it was in
//	the first path in byte order
//
// Within a file the first one wins (C-1.2.2).
func choose[T item](claims []claim[T], before *claim[T], incumbent T) claim[T] {
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
	var nothing T
	if incumbent == nothing {
		return claims[0]
	}
	for _, c := range claims {
		if identical(incumbent, c.value) {
			return firstOf(claims, c.file)
		}
	}
	file := originOf(incumbent).File
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

// lost returns a conflict for every claim but the winner's.
func lost[T item](claims []claim[T], won claim[T]) []Conflict {
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
			conflict.Reason = reasonIncumbent
		default:
			conflict.Reason = reasonPath
		}
		out = append(out, conflict)
	}
	return out
}

// from returns a lookup in fresh.
func from[E any](fresh map[ident][]E) func(ident) []E {
	return func(id ident) []E { return fresh[id] }
}

// sortedIdents returns ids sorted, each once.
func sortedIdents(ids []ident) []ident {
	ids = slices.Clone(ids)
	slices.SortFunc(ids, ident.compare)
	return slices.Compact(ids)
}
