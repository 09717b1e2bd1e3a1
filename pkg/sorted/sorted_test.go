package sorted

import (
	"cmp"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// pair is an element: several may have one key and differ in held.
type pair struct{ key, held int }

func byKey(p pair, key int) int { return cmp.Compare(p.key, key) }

func byPair(a, b pair) int { return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.held, b.held)) }

// edits draws new content for some keys.
func edits(t *rapid.T, keys int) (sorted []int, fresh map[int][]pair) {
	fresh = make(map[int][]pair)
	first := rapid.IntRange(0, keys).Draw(t, "first")
	last := min(keys, first+rapid.SampledFrom([]int{1, 10, 100, keys}).Draw(t, "width"))
	for _, key := range rapid.SliceOfN(rapid.IntRange(first, last), 0, rapid.SampledFrom([]int{1, 5, 300}).Draw(t, "edits")).Draw(t, "keys") {
		var held []pair
		for n := range rapid.SampledFrom([]int{0, 0, 1, 1, 1, 2, 150}).Draw(t, "elements") {
			held = append(held, pair{key, n})
		}
		fresh[key] = held
	}
	return slices.Sorted(maps.Keys(fresh)), fresh
}

// plain is Patch on a slice.
func plain(list []pair, fresh map[int][]pair) []pair {
	out := slices.DeleteFunc(slices.Clone(list), func(p pair) bool { _, edited := fresh[p.key]; return edited })
	for _, held := range fresh {
		out = append(out, held...)
	}
	slices.SortFunc(out, byPair)
	return out
}

// TestPatchAgainstSlice: a list equals a sorted slice after any edits; its older versions
// do not change; chunks are neither empty nor too long, nor too many.
func TestPatchAgainstSlice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keys := rapid.SampledFrom([]int{3, 50, 2000}).Draw(t, "keys in all")
		type version struct {
			list List[pair]
			want []pair
		}
		var versions []version
		var now version
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			sorted, fresh := edits(t, keys)
			now.list = Patch(now.list, sorted, byKey, func(key int) []pair { return fresh[key] })
			now.want = plain(now.want, fresh)
			versions = append(versions, now)
			key := rapid.IntRange(0, keys).Draw(t, "find")
			checkLookup(t, now.list, now.want, key)
		}
		for _, v := range versions {
			if !slices.Equal(v.list.Slice(), v.want) || !slices.Equal(slices.Collect(v.list.All()), v.want) || v.list.Len() != len(v.want) {
				t.Fatalf("list %v\nwant %v", v.list.Slice(), v.want)
			}
			small := 0
			for _, c := range v.list.chunks {
				if len(c.elems) == 0 || len(c.elems) > full {
					t.Fatalf("a chunk of %d", len(c.elems))
				}
				if len(c.elems) < spare {
					small++
				}
			}
			if small > len(v.list.chunks)/2+1 {
				t.Fatalf("%d of %d chunks are small", small, len(v.list.chunks))
			}
		}
		a, b := rapid.SampledFrom(versions).Draw(t, "from"), rapid.SampledFrom(versions).Draw(t, "to")
		checkDiff(t, a.list, b.list, a.want, b.want)
	})
}

func checkLookup(t *rapid.T, l List[pair], want []pair, key int) {
	var run []pair
	for _, p := range want {
		if p.key == key {
			run = append(run, p)
		}
	}
	if got := Run(l, key, byKey); !slices.Equal(got, run) {
		t.Fatalf("run of %d: %v, want %v", key, got, run)
	}
	got, found := Find(l, key, byKey)
	if found != (len(run) > 0) || found && got != run[0] {
		t.Fatalf("find %d: %v %t, want %v", key, got, found, run)
	}
	if len(want) > 0 {
		if i := key % len(want); l.At(i) != want[i] {
			t.Fatalf("at %d: %v, want %v", i, l.At(i), want[i])
		}
	}
}

func checkDiff(t *rapid.T, a, b List[pair], from, to []pair) {
	removed, added := make(map[pair]bool), make(map[pair]bool)
	for _, p := range from {
		removed[p] = true
	}
	for _, p := range to {
		if !removed[p] {
			added[p] = true
		}
		delete(removed, p)
	}
	for old, new := range Diff(a, b, byPair) {
		switch {
		case old != nil && new != nil:
			if *old != *new {
				t.Fatalf("paired %v with %v", *old, *new)
			}
		case old != nil:
			if !removed[*old] {
				t.Fatalf("%v is not gone", *old)
			}
			delete(removed, *old)
		default:
			if !added[*new] {
				t.Fatalf("%v has not come", *new)
			}
			delete(added, *new)
		}
	}
	if len(removed)+len(added) > 0 {
		t.Fatalf("not reported: removed %v, added %v", removed, added)
	}
	if !a.Is(a) || a.Is(b) && !slices.Equal(from, to) {
		t.Fatal("Is is wrong")
	}
}

// TestPatchShares: after one edit all chunks but a few are shared, and Diff finds the
// difference in those few.
func TestPatchShares(t *testing.T) {
	var all []pair
	for i := range 100_000 {
		all = append(all, pair{i, 0})
	}
	l := Of(all...)
	for _, key := range []int{0, 63, 64, 50_000, 99_999} {
		for _, held := range [][]pair{nil, {{key, 1}}, {{key, 0}, {key, 1}}} {
			m := Patch(l, []int{key}, byKey, func(int) []pair { return held })
			looked := 0
			for range Diff(l, m, byPair) {
				looked++
			}
			if looked == 0 || looked > 2*full+2 {
				t.Errorf("key %d, %d new: the difference shows %d elements", key, len(held), looked)
			}
		}
	}
	if m := Patch(l, nil, byKey, nil); !m.Is(l) {
		t.Error("a patch of nothing is another list")
	}
}

func TestEmptyList(t *testing.T) {
	var l List[pair]
	if l.Len() != 0 || l.Slice() != nil || !l.Is(Of[pair]()) || Run(l, 1, byKey) != nil {
		t.Errorf("%+v", l)
	}
	m := Patch(Of(pair{1, 1}), []int{1}, byKey, func(int) []pair { return nil })
	if !m.Is(l) {
		t.Errorf("emptied: %+v", m)
	}
	defer func() {
		if recover() == nil {
			t.Error("At(0) of an empty list returned")
		}
	}()
	l.At(0)
}

func TestFromKeepsTheOrderOfEquals(t *testing.T) {
	given := []pair{{2, 0}, {1, 5}, {2, 1}, {1, 4}}
	l := From(given, func(a, b pair) int { return cmp.Compare(a.key, b.key) })
	if want := []pair{{1, 5}, {1, 4}, {2, 0}, {2, 1}}; !slices.Equal(l.Slice(), want) || given[0] != (pair{2, 0}) {
		t.Errorf("%v of %v", l.Slice(), given)
	}
}

// BenchmarkPatch measures one edit in lists of increasing length.
func BenchmarkPatch(b *testing.B) {
	for name, n := range map[string]int{"300": 300, "3000": 3000, "100000": 100_000} {
		b.Run(name, func(b *testing.B) {
			var all []pair
			for i := range n {
				all = append(all, pair{i, 0})
			}
			l := Of(all...)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				l = Patch(l, []int{i * 7 % n}, byKey, func(key int) []pair { return []pair{{key, i}} })
			}
		})
	}
}

// Changed has exactly the pointers that one of two slices lacks, in order.
func TestChanged_AnySlices_AreTheirDifference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(label string) (all []*pair) {
			for _, key := range slices.Sorted(maps.Keys(asSet(rapid.SliceOfN(rapid.IntRange(0, 9), 0, 8).Draw(t, label)))) {
				all = append(all, &pair{key: key})
			}
			return all
		}
		before, after := draw("before"), draw("after")
		for i, p := range after { // some elements stay
			if j := slices.IndexFunc(before, func(b *pair) bool { return b.key == p.key }); j >= 0 && rapid.Bool().Draw(t, "stays") {
				after[i] = before[j]
			}
		}
		lack := func(all, others []*pair) []*pair {
			return slices.DeleteFunc(slices.Clone(all), func(p *pair) bool { return slices.Contains(others, p) })
		}
		gone, came := Changed(before, after, func(a, b *pair) int { return cmp.Compare(a.key, b.key) })
		if !slices.Equal(gone, lack(before, after)) || !slices.Equal(came, lack(after, before)) {
			t.Fatalf("%v and %v: gone %v, came %v", before, after, gone, came)
		}
	})
}

func asSet(all []int) map[int]bool {
	set := make(map[int]bool)
	for _, n := range all {
		set[n] = true
	}
	return set
}
