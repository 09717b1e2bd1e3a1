package sorted

import "slices"

// Patch returns a list in which, for each of keys (in order, no repetition), all elements
// equal to it are replaced by fresh(key): none, one or several, which must be equal to it
// too. Without keys it returns l itself. It copies only the chunks that contain keys, and
// one pointer for every other chunk.
func Patch[E, K any](l List[E], keys []K, compare func(E, K) int, fresh func(K) []E) List[E] {
	if len(keys) == 0 {
		return l
	}
	w := writer[E]{chunks: make([]*chunk[E], 0, len(l.chunks)+1)}
	ci, i := 0, 0 // the position up to which l is copied
	for _, key := range keys {
		to, at := l.search(ci, i, func(e E) bool { return compare(e, key) >= 0 })
		if to == len(l.chunks) && to > ci { // keys after the last element join the last chunk
			to--
			at = len(l.chunks[to].elems)
		}
		if to > ci {
			w.rest(l, ci, i)
			w.share(l.chunks[ci+1 : to])
			ci, i = to, 0
		}
		if ci < len(l.chunks) {
			w.room(len(l.chunks[ci].elems) + 1)
			w.push(l.chunks[ci].elems[i:at])
			i = at
		}
		for ci < len(l.chunks) {
			elems := l.chunks[ci].elems
			for i < len(elems) && compare(elems[i], key) == 0 {
				i++
			}
			if i < len(elems) || ci == len(l.chunks)-1 {
				break
			}
			if compare(l.chunks[ci+1].elems[0], key) != 0 {
				break
			}
			ci, i = ci+1, 0
		}
		w.push(fresh(key))
	}
	if ci < len(l.chunks) {
		w.rest(l, ci, i)
		w.share(l.chunks[ci+1:])
	}
	return w.list()
}

// writer builds a list from shared chunks and single elements.
type writer[E any] struct {
	chunks []*chunk[E]
	size   int
	open   []E // elements after chunks; not shared
}

// push writes single elements.
func (w *writer[E]) push(elems []E) { w.open = append(w.open, elems...) }

// room allocates space for n single elements, if there are none yet.
func (w *writer[E]) room(n int) {
	if w.open == nil {
		w.open = make([]E, 0, n)
	}
}

// rest writes chunk ci of l from element i on. It shares the whole chunk if nothing of it
// or before it was written as single elements.
func (w *writer[E]) rest(l List[E], ci, i int) {
	if i == 0 {
		w.share(l.chunks[ci : ci+1])
		return
	}
	w.push(l.chunks[ci].elems[i:])
}

// share writes whole chunks.
func (w *writer[E]) share(chunks []*chunk[E]) {
	if len(chunks) == 0 {
		return
	}
	if a, b := len(w.open), len(chunks[0].elems); a > 0 && a+b <= full && min(a, b) < spare {
		w.push(chunks[0].elems)
		chunks = chunks[1:]
	}
	w.flush()
	w.chunks = append(w.chunks, chunks...)
	for _, c := range chunks {
		w.size += len(c.elems)
	}
}

// flush makes chunks of about equal length from the single elements. A few elements are
// appended to the chunk before if they fit.
func (w *writer[E]) flush() {
	open := w.open
	w.open = nil
	if len(open) == 0 {
		return
	}
	w.size += len(open)
	if last := len(w.chunks) - 1; last >= 0 && len(open) < spare && len(w.chunks[last].elems)+len(open) <= full {
		w.chunks[last] = &chunk[E]{slices.Concat(w.chunks[last].elems, open)}
		return
	}
	if len(open) <= full {
		w.chunks = append(w.chunks, &chunk[E]{slices.Clip(open)})
		return
	}
	pieces := (len(open) + full - 1) / full
	for i := range pieces {
		piece := open[i*len(open)/pieces : (i+1)*len(open)/pieces]
		w.chunks = append(w.chunks, &chunk[E]{slices.Clone(piece)}) // clones: no array backs all chunks
	}
}

func (w *writer[E]) list() List[E] {
	w.flush()
	if w.size == 0 {
		return List[E]{}
	}
	return List[E]{w.chunks, w.size}
}
