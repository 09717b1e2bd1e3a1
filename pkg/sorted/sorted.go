// Package sorted is an immutable sorted list whose versions share their unchanged parts, so
// that one change in a very long list costs about as much as in a short one.
//
// Snapshots, layers and merged states are such lists: an older version stays valid, and a
// comparison of two versions skips their shared parts.
//
// No list, and no element of one, changes after it is made.
package sorted

import (
	"iter"
	"slices"
	"sort"
)

// Chunks have up to full elements; one with fewer than spare is joined with a neighbour if
// it fits.
const (
	full  = 48
	spare = full / 4
)

// List is an immutable sorted list. The caller defines its order: functions that need it
// take a comparison, always the same one for one list. The zero List is empty.
type List[E any] struct {
	chunks []*chunk[E] // none is empty
	size   int
}

// chunk is a part that versions of a list share: the same chunk in two lists means the same
// elements.
type chunk[E any] struct{ elems []E }

// Of returns the list of elems, which must be in order.
func Of[E any](elems ...E) List[E] {
	var w writer[E]
	w.push(elems)
	return w.list()
}

// Len returns the number of elements.
func (l List[E]) Len() int { return l.size }

// At returns element i, from 0. It panics if there is none.
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

// Slice returns the elements in a new slice, nil if there are none.
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

// Is reports whether l and o are the same version, without comparing elements. Two empty
// lists are.
func (l List[E]) Is(o List[E]) bool {
	return l.size == o.size && (l.size == 0 || &l.chunks[0] == &o.chunks[0])
}

// Find returns the first element equal to key. Compare orders an element against a key as
// it orders the list.
func Find[E, K any](l List[E], key K, compare func(E, K) int) (E, bool) {
	if ci, i := l.search(0, 0, func(e E) bool { return compare(e, key) >= 0 }); ci < len(l.chunks) {
		if e := l.chunks[ci].elems[i]; compare(e, key) == 0 {
			return e, true
		}
	}
	var none E
	return none, false
}

// Run returns all elements equal to key, nil if there are none. The slice may be shared and
// must not be written to.
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

// search returns the position of the first element, from element i of chunk ci on, for
// which reached is true; it must stay true for all later elements. If there is none it
// returns the number of chunks, and 0.
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

// Diff yields the differences between two versions of a list, in order: an element that
// only a has with nil, nil with one that only b has, or two that compare as equal and are
// in chunks that the versions do not share. The caller checks whether such two are
// identical. No two elements of one list compare as equal. The pointers lead into the lists
// and must not be written through.
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

// cursor is a position in a list.
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

// From returns elems as a list, sorted by compare; elements that compare as equal keep
// their order.
func From[E any](elems []E, compare func(E, E) int) List[E] {
	if !slices.IsSortedFunc(elems, compare) {
		elems = slices.Clone(elems)
		slices.SortStableFunc(elems, compare)
	}
	return Of(elems...)
}
