package podconfig

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podspec"
	"github.com/nodectl/nodectl/pkg/sorted"
	"github.com/nodectl/nodectl/pkg/source"
)

// reading is the difference between two readings of a layer.
type reading struct {
	changedSets []pod.LastGoodSet // the files whose last good set changed
	pods        change[*pod.Spec]
	objects     change[*pod.Object]
	troubles    map[string][]trouble // the files whose problems changed; nil is none
}

// trouble holds the problems of one file.
type trouble struct {
	file     string
	problems []pod.Problem
	broken   []pod.Key
}

func (t trouble) compareTo(file string) int { return strings.Compare(t.file, file) }

func (r *reading) empty() bool { return len(r.changedSets)+len(r.troubles) == 0 }

// compare walks the old reading and the new one side by side. Shared parts cost
// nothing, and a file that was read again without a change costs one comparison.
func (l *Layer) compare(files sorted.List[source.File]) reading {
	var r reading
	for old, new := range sorted.Diff(l.files, files, source.CompareFiles) {
		if old == nil || new == nil || !sameReading(old, new) {
			r.file(l, old, new)
		}
	}
	if l.state.Ready {
		return r
	}
	for s := range l.lastGood.All() { // restored, and its file no longer exists
		if _, found := sorted.Find(files, s.File, compareFile); !found {
			r.replace(s, pod.LastGoodSet{File: s.File})
		}
	}
	return r
}

// file notes the effects of a file that changed; either side may be nil.
func (r *reading) file(l *Layer, old, new *source.File) {
	var none source.File
	if old == nil {
		old = &none
	}
	if new == nil {
		none.File = old.File
		new = &none
	}
	before := l.lastGoodOf(new.File)
	new = keepImmutable(before, new)
	previous := before
	if kept := l.kept.specs[new.File]; len(kept) > 0 && !l.state.Ready && !healthy(new) {
		previous.Pods = kept
	}
	after, fits := lastGoodAfter(previous, new)
	if !fits {
		edited := *new
		edited.Problems = append(slices.Clip(edited.Problems), pod.Problem{
			File: new.File, Msg: "the last good objects and the readable objects of this file together exceed the limit of a file: the last good set of the file stays in use",
			Hint: "fix the other problems of the file",
		})
		new = &edited
	}
	if was, _ := sorted.Find(l.troubles, new.File, trouble.compareTo); !same(was.problems, new.Problems) || !same(was.broken, new.Broken) {
		r.trouble(new)
	}
	r.replace(before, after)
}

// replace notes the differences between two sets of a file.
func (r *reading) replace(before, after pod.LastGoodSet) {
	pods, objects := differing(before.Pods, after.Pods), differing(before.Objects, after.Objects)
	if len(pods)+len(objects) == 0 {
		return
	}
	r.changedSets = append(r.changedSets, after)
	r.pods.note(after.File, after.Pods, pods)
	r.objects.note(after.File, after.Objects, objects)
}

// note adds a file in which ids differ.
func (c *change[T]) note(file string, values []T, ids []ident) {
	if len(ids) == 0 {
		return
	}
	if c.files == nil {
		c.files = make(map[string][]T)
	}
	c.files[file] = values
	c.ids = append(c.ids, ids...)
}

// trouble notes the current problems of a file.
func (r *reading) trouble(f *source.File) {
	if r.troubles == nil {
		r.troubles = make(map[string][]trouble)
	}
	r.troubles[f.File] = nil
	if len(f.Problems)+len(f.Broken) > 0 {
		r.troubles[f.File] = []trouble{{f.File, f.Problems, f.Broken}}
	}
}

// patchTroubles returns the layer's troubles after the reading, and the problems
// in them.
func (r *reading) patchTroubles(before sorted.List[trouble]) (after sorted.List[trouble], problems []pod.Problem) {
	after = sorted.Patch(before, sortedNames(r.troubles), trouble.compareTo, func(file string) []trouble { return r.troubles[file] })
	for t := range after.All() {
		problems = append(problems, t.problems...)
	}
	return after, problems
}

// heirs returns a function that names, for a pod, the first file in byte order
// that holds it in a form that was rejected.
func heirs(troubles sorted.List[trouble]) func(ident) string {
	var files map[pod.Key]string // made on the first call
	return func(id ident) string {
		if files == nil {
			files = make(map[pod.Key]string)
			for t := range troubles.All() {
				for _, key := range t.broken {
					if _, known := files[key]; !known {
						files[key] = t.file
					}
				}
			}
		}
		return files[id.key]
	}
}

// healthy reports whether a file was read completely and without problems.
func healthy(f *source.File) bool {
	return !f.Whole && len(f.Broken) == 0 && len(f.Problems) == 0
}

// lastGoodAfter returns the last good set of a file after a reading: what was read and, while
// the file has any problem, everything of the set before that is missing now. A broken
// file removes nothing (I9, F40). An unchanged item keeps its pointer.
//
// Where both together exceed the limit of a file, it returns before and false: a file
// that stays broken and names other pods each time does not grow without end.
func lastGoodAfter(before pod.LastGoodSet, f *source.File) (after pod.LastGoodSet, fits bool) {
	after = pod.LastGoodSet{File: f.File, Pods: share(before.Pods, f.Pods), Objects: share(before.Objects, f.Objects)}
	if healthy(f) {
		return after, true
	}
	after.Pods = keep(before.Pods, after.Pods)
	after.Objects = keep(before.Objects, after.Objects)
	var m source.Meter
	if keeps := len(after.Pods)+len(after.Objects) > len(f.Pods)+len(f.Objects); keeps && (!m.Pods(after.Pods...) || !m.Objects(after.Objects...)) {
		return before, false
	}
	return after, true
}

// share returns now, with pointers from before for unchanged items; before itself, when
// all are unchanged.
func share[T item](before, now []T) []T {
	if len(before) == 0 {
		return now
	}
	head := 0
	for head < min(len(before), len(now)) && identical(before[head], now[head]) {
		head++
	}
	if head == len(before) && head == len(now) {
		return before
	}
	tail := 0
	for tail < min(len(before), len(now))-head && identical(before[len(before)-1-tail], now[len(now)-1-tail]) {
		tail++
	}
	known := make(map[ident]T, len(before)-head-tail)
	for _, v := range before[head : len(before)-tail] {
		known[identOf(v)] = v
	}
	var zero T
	out := slices.Concat(before[:head], now[head:len(now)-tail], before[len(before)-tail:])
	for i, v := range out[head : len(out)-tail] {
		if old := known[identOf(v)]; old != zero && identical(old, v) {
			out[head+i] = old
		}
	}
	return out
}

// keepImmutable returns f with each immutable object as it was before, and a problem where the
// file changes it. As in an API server, an immutable object can be deleted and created
// again, but not edited.
func keepImmutable(before pod.LastGoodSet, f *source.File) *source.File {
	out := f
	var at map[ident]int // the first of each ident; made for the first immutable object
	for _, o := range before.Objects {
		if !o.Immutable() || o.Origin.FromAPI() { // the API server enforces it itself
			continue
		}
		if at == nil {
			at = make(map[ident]int, len(f.Objects))
			for i, now := range slices.Backward(f.Objects) {
				at[identOf(now)] = i
			}
		}
		i, there := at[identOf(o)]
		if !there || f.Objects[i] == o || f.Objects[i].Immutable() && podspec.SumOf(o).Hash == podspec.SumOf(f.Objects[i]).Hash {
			continue
		}
		if out == f {
			edited := *f
			edited.Objects, edited.Problems = slices.Clone(f.Objects), slices.Clip(f.Problems)
			out = &edited
		}
		origin := f.Objects[i].Origin
		out.Objects[i] = o
		out.Problems = append(out.Problems, pod.Problem{
			File: cmp.Or(origin.File, origin.Location), Line: origin.Line, Path: "immutable",
			Msg:  fmt.Sprintf("%s %s is immutable: its previous version stays in use", o.Kind, o.Key),
			Hint: "write the new content to an object of another name and reference that in the pods, or remove the object and create it again",
		})
	}
	return out
}

// keep returns now and, after it, the items of before that are missing.
func keep[T item](before, now []T) []T {
	if len(before) == 0 {
		return now
	}
	there := make(map[ident]bool, len(now))
	for _, v := range now {
		there[identOf(v)] = true
	}
	out := slices.Clip(now)
	for _, v := range before {
		if !there[identOf(v)] {
			out = append(out, v)
		}
	}
	return out
}

// differing returns the idents between the common beginning and the common end
// of two lists.
func differing[T item](a, b []T) []ident {
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	var ids []ident
	for _, v := range a {
		ids = append(ids, identOf(v))
	}
	for _, v := range b {
		ids = append(ids, identOf(v))
	}
	return ids
}

// sameReading reports whether two readings of a file are equal.
func sameReading(a, b *source.File) bool {
	return a.Whole == b.Whole &&
		sameItems(a.Pods, b.Pods) && sameItems(a.Objects, b.Objects) &&
		same(a.Problems, b.Problems) && same(a.Broken, b.Broken)
}

// sameItems compares the items of two readings, at no cost when it is one list.
func sameItems[T item](a, b []T) bool {
	if len(a) != len(b) {
		return false
	}
	return len(a) == 0 || &a[0] == &b[0] || slices.EqualFunc(a, b, identical[T])
}

// same compares two lists, at no cost when they are one.
func same[E comparable](a, b []E) bool {
	if len(a) != len(b) {
		return false
	}
	return len(a) == 0 || &a[0] == &b[0] || slices.Equal(a, b)
}

func compareFile(f source.File, name string) int { return strings.Compare(f.File, name) }

func sortedNames[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
