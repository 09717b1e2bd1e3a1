package sorted

import "slices"

// Patch returns the list in which, for each of keys (in order, no repetition),
// all elements that compare as equal to it are replaced by fresh(key): none, one
// or several, which compare as equal to it too. Without keys it is the list
// itself. It costs the chunks that keys fall into and one pointer for every
// other.
func Patch[E, K any](l List[E], keys []K, compare func(E, K) int, fresh func(K) []E) List[E] {
	if len(keys) == 0 {
		return l
	}
	w := writer[E]{chunks: make([]*chunk[E], 0, len(l.chunks)+1)}
	ci, i := 0, 0 // the place in l that is written up to
	for _, key := range keys {
		to, at := l.search(ci, i, func(e E) bool { return compare(e, key) >= 0 })
		if to == len(l.chunks) && to > ci { // what comes last joins the last chunk
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

// writer puts a list together from shared chunks and single elements.
type writer[E any] struct {
	chunks []*chunk[E]
	size   int
	open   []E // what comes after chunks; this writer's own
}

// push writes single elements.
func (w *writer[E]) push(elems []E) { w.open = append(w.open, elems...) }

// room makes place for n single elements, where none was written yet.
func (w *writer[E]) room(n int) {
	if w.open == nil {
		w.open = make([]E, 0, n)
	}
}

// rest writes chunk ci of l from element i on: whole, when nothing of it or
// before it was written singly.
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

// flush makes chunks of the single elements, all about as long. Few of them join
// the chunk before, where they fit.
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
		w.chunks = append(w.chunks, &chunk[E]{slices.Clone(piece)}) // not one array that all hold on to
	}
}

func (w *writer[E]) list() List[E] {
	w.flush()
	if w.size == 0 {
		return List[E]{}
	}
	return List[E]{w.chunks, w.size}
}
