// Package sorted has an immutable sorted list whose versions share what did not
// change, so that one change among very many elements costs about as much as
// one among few.
//
// Snapshots, layers and merged states are such lists: whoever holds an older
// version keeps it, and what differs between two versions is found without
// looking at what they share.
//
// The one rule: no list, and no element in one, is ever written to.
package sorted

import (
	"iter"
	"slices"
	"sort"
)

// Chunks hold up to full elements; one with fewer than spare is joined with a
// neighbour it fits into.
const (
	full  = 48
	spare = full / 4
)

// List is an immutable sorted list. Its order is the caller's: every function
// that needs it takes a comparison, always the same one for one list. The zero
// List is empty.
type List[E any] struct {
	chunks []*chunk[E] // none is empty
	size   int
}

// chunk is what versions of a list share. Two lists that hold the same chunk
// hold the same elements there.
type chunk[E any] struct{ elems []E }

// Of returns the list of elems, which are in order already.
func Of[E any](elems ...E) List[E] {
	var w writer[E]
	w.push(elems)
	return w.list()
}

// Len returns the number of elements.
func (l List[E]) Len() int { return l.size }

// At returns element i, from 0. It panics when there is none.
func (l List[E]) At(i int) E {
	for _, c := range l.chunks {
		if i < len(c.elems) {
			return c.elems[i]
		}
		i -= len(c.elems)
	}
	panic("sorted: index out of range")
}

// All yields the elements in order.
func (l List[E]) All() iter.Seq[E] {
	return func(yield func(E) bool) {
		for _, c := range l.chunks {
			for _, e := range c.elems {
				if !yield(e) {
					return
				}
			}
		}
	}
}

// Slice returns the elements in a slice of the caller's own, nil when there are
// none.
func (l List[E]) Slice() []E {
	if l.size == 0 {
		return nil
	}
	out := make([]E, 0, l.size)
	for _, c := range l.chunks {
		out = append(out, c.elems...)
	}
	return out
}

// Is reports whether l and o are one and the same version, at no cost. Two
// empty lists are.
func (l List[E]) Is(o List[E]) bool {
	return l.size == o.size && (l.size == 0 || &l.chunks[0] == &o.chunks[0])
}

// Find returns the first element that compares as equal to key. Compare orders
// an element against a key as it orders the list.
func Find[E, K any](l List[E], key K, compare func(E, K) int) (E, bool) {
	if ci, i := l.search(0, 0, func(e E) bool { return compare(e, key) >= 0 }); ci < len(l.chunks) {
		if e := l.chunks[ci].elems[i]; compare(e, key) == 0 {
			return e, true
		}
	}
	var none E
	return none, false
}

// Run returns all elements that compare as equal to key, nil when there are
// none. The slice may be shared and must not be written to.
func Run[E, K any](l List[E], key K, compare func(E, K) int) []E {
	var out []E
	ci, i := l.search(0, 0, func(e E) bool { return compare(e, key) >= 0 })
	for ; ci < len(l.chunks); ci, i = ci+1, 0 {
		elems := l.chunks[ci].elems[i:]
		n := 0
		for n < len(elems) && compare(elems[n], key) == 0 {
			n++
		}
		if out == nil {
			out = elems[:n:n]
		} else {
			out = append(out, elems[:n]...)
		}
		if n < len(elems) {
			break
		}
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

// search returns the place of the first element from chunk ci on, and there from
// element i on, that is true of a condition; once true it stays so along the
// list. Without one it returns the number of chunks, and 0.
func (l List[E]) search(ci, i int, reached func(E) bool) (int, int) {
	to := ci + sort.Search(len(l.chunks)-ci, func(n int) bool {
		elems := l.chunks[ci+n].elems
		return reached(elems[len(elems)-1])
	})
	if to == len(l.chunks) {
		return to, 0
	}
	if to > ci {
		i = 0
	}
	elems := l.chunks[to].elems[i:]
	return to, i + sort.Search(len(elems), func(n int) bool { return reached(elems[n]) })
}

// Diff yields what differs between two versions of a list, in order: an element
// of a that b does not hold and nil, nil and one of b that a does not hold, or
// two that compare as equal and lie in chunks the versions do not share. Whether
// such two are the same is for the caller to see. No two elements of one list
// compare as equal. The pointers lead into the lists: nothing is written there.
func Diff[E any](a, b List[E], compare func(E, E) int) iter.Seq2[*E, *E] {
	return func(yield func(old, new *E) bool) {
		x, y := cursor[E]{chunks: a.chunks}, cursor[E]{chunks: b.chunks}
		for {
			for x.i == 0 && y.i == 0 && len(x.chunks) > 0 && len(y.chunks) > 0 && x.chunks[0] == y.chunks[0] {
				x.chunks, y.chunks = x.chunks[1:], y.chunks[1:]
			}
			old, new := x.at(), y.at()
			switch {
			case old == nil && new == nil:
				return
			case new == nil:
			case old == nil:
			default:
				if c := compare(*old, *new); c < 0 {
					new = nil
				} else if c > 0 {
					old = nil
				}
			}
			if old != nil {
				x.next()
			}
			if new != nil {
				y.next()
			}
			if !yield(old, new) {
				return
			}
		}
	}
}

// cursor is a place in a list.
type cursor[E any] struct {
	chunks []*chunk[E] // those not passed yet
	i      int         // in the first of them
}

func (c *cursor[E]) at() *E {
	if len(c.chunks) == 0 {
		return nil
	}
	return &c.chunks[0].elems[c.i]
}

func (c *cursor[E]) next() {
	if c.i++; c.i == len(c.chunks[0].elems) {
		c.chunks, c.i = c.chunks[1:], 0
	}
}

// From returns elems as a list, sorted by compare; those that compare as equal
// keep their order.
func From[E any](elems []E, compare func(E, E) int) List[E] {
	if !slices.IsSortedFunc(elems, compare) {
		elems = slices.Clone(elems)
		slices.SortStableFunc(elems, compare)
	}
	return Of(elems...)
}
