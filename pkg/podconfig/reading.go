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

// layerChange is the difference between two readings of a layer.
type layerChange struct {
	changedSets []pod.LastGoodSet // the files whose last good set changed
	pods        change[*pod.Spec]
	objects     change[*pod.Object]
	problems    map[string][]fileProblems // the files whose problems changed; an empty list: the file has none now
}

// fileProblems has the problems of one file, and the keys of its rejected pods and workloads.
type fileProblems struct {
	file          string
	problems      []pod.Problem
	broken        []pod.Key
	brokenObjects []pod.ObjectKey
}

func (p fileProblems) compareTo(file string) int { return strings.Compare(p.file, file) }

func (r *layerChange) empty() bool { return len(r.changedSets)+len(r.problems) == 0 }

// compare returns the difference between the layer and a new reading, files. It skips parts that both
// share, and compares a file that was read again without a change only once.
func (l *Layer) compare(files sorted.List[source.File]) layerChange {
	var r layerChange
	for old, new := range sorted.Diff(l.files, files, source.CompareFiles) {
		if old == nil || new == nil || !sameReading(old, new) {
			r.noteFile(l, old, new)
		}
	}
	if l.state.Ready {
		return r
	}
	for s := range l.lastGood.All() { // remove the restored sets of files that no longer exist
		if _, found := sorted.Find(files, s.File, compareFile); !found {
			r.replace(s, pod.LastGoodSet{File: s.File})
		}
	}
	return r
}

// noteFile notes the effects of a file that changed. old is nil for a new file, new for a
// removed one.
func (r *layerChange) noteFile(l *Layer, old, new *source.File) {
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
	if !healthy(new) {
		previous.Pods = withoutExpanded(before.Pods, new.Objects)
	}
	if kept := l.kept.byFile[new.File]; len(kept) > 0 && !l.state.Ready && !healthy(new) {
		previous.Pods = keep(withoutExpanded(kept, new.Objects), previous.Pods)
	}
	after, fits := lastGoodAfter(previous, new)
	if !fits {
		edited := *new
		edited.Problems = append(slices.Clip(edited.Problems), pod.Problem{
			File: new.File, Msg: "the last good and the readable pods and config objects of this file together exceed the limit of a file: its last good set stays in use",
			Hint: "fix the other problems of the file",
		})
		new = &edited
	}
	was, _ := sorted.Find(l.fileProblems, new.File, fileProblems.compareTo)
	if !same(was.problems, new.Problems) || !same(was.broken, new.Broken) || !same(was.brokenObjects, new.BrokenObjects) {
		r.setProblems(new)
	}
	r.replace(before, after)
}

// replace notes the differences between two sets of a file.
func (r *layerChange) replace(before, after pod.LastGoodSet) {
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

// setProblems notes the current problems of a file.
func (r *layerChange) setProblems(f *source.File) {
	if r.problems == nil {
		r.problems = make(map[string][]fileProblems)
	}
	r.problems[f.File] = nil
	if len(f.Problems)+len(f.Broken)+len(f.BrokenObjects) > 0 {
		r.problems[f.File] = []fileProblems{{f.File, f.Problems, f.Broken, f.BrokenObjects}}
	}
}

// patchProblems returns the problems of a layer's files after the reading: by file, and all
// in one list.
func (r *layerChange) patchProblems(before sorted.List[fileProblems]) (after sorted.List[fileProblems], all []pod.Problem) {
	after = sorted.Patch(before, sortedNames(r.problems), fileProblems.compareTo, func(file string) []fileProblems { return r.problems[file] })
	for p := range after.All() {
		all = append(all, p.problems...)
	}
	return after, all
}

// filesWithRejected returns a function that finds the first file, in byte order, with a rejected version
// of a pod or workload; "" for none.
func filesWithRejected(problems sorted.List[fileProblems]) func(ident) string {
	var files map[ident]string // made on the first call
	note := func(id ident, file string) {
		if _, known := files[id]; !known {
			files[id] = file
		}
	}
	return func(id ident) string {
		if files == nil {
			files = make(map[ident]string)
			for p := range problems.All() {
				for _, key := range p.broken {
					note(ident{kindPod, key}, p.file)
				}
				for _, o := range p.brokenObjects {
					note(ident{o.Kind, o.Key}, p.file)
				}
			}
		}
		file := files[id]
		if file == "" && pod.IsWorkload(id.kind) {
			file = files[ident{key: id.key}] // of an unknown kind
		}
		return file
	}
}

// healthy reports whether a file was read completely and without problems.
func healthy(f *source.File) bool {
	return !f.Incomplete && len(f.Broken)+len(f.BrokenObjects)+len(f.Problems) == 0
}

// lastGoodAfter returns the last good set of a file after a reading. It has the pods and
// objects that were read. If the file has any problem, it also has the items in before that the
// reading lacks: a broken file removes nothing (I9, F40). An unchanged item keeps its pointer.
//
// If the result exceeds the limit of a file, lastGoodAfter returns before and false. Otherwise a
// broken file with other pods at each reading would make the set grow without limit.
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

// share returns now, with the pointers in before for unchanged items. If all items are unchanged, it
// returns before.
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

// keepImmutable returns f. If the file changes an immutable object, the result has the object's previous
// version and a problem instead. As at an API server, an immutable object can be deleted and created
// again, but not edited.
func keepImmutable(before pod.LastGoodSet, f *source.File) *source.File {
	out := f
	var at map[ident]int // indexes in f.Objects, the first of each ident; made for the first immutable object
	for _, o := range before.Objects {
		if !o.Immutable() || o.Origin.FromAPI() { // an API server enforces immutability itself
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

// keep returns now, followed by the items of before that it lacks.
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

// differing returns the idents of both lists, except those of their common beginning and
// their common end.
func differing[T item](a, b []T) []ident {
	var ids []ident
	for _, side := range trim(a, b) {
		for _, v := range side {
			ids = append(ids, identOf(v))
		}
	}
	return ids
}

// trim returns both lists without their common beginning and their common end.
func trim[T item](a, b []T) [2][]T {
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	return [2][]T{a, b}
}

// sameReading reports whether two readings of a file are equal.
func sameReading(a, b *source.File) bool {
	return a.Incomplete == b.Incomplete &&
		sameItems(a.Pods, b.Pods) && sameItems(a.Objects, b.Objects) &&
		same(a.Problems, b.Problems) && same(a.Broken, b.Broken) && same(a.BrokenObjects, b.BrokenObjects)
}

// sameItems reports whether two lists have identical items. It compares no items if the lists share
// their memory.
func sameItems[T item](a, b []T) bool {
	if len(a) != len(b) {
		return false
	}
	return len(a) == 0 || &a[0] == &b[0] || slices.EqualFunc(a, b, identical[T])
}

// same reports whether two lists are equal. It compares no elements if the lists share their memory.
func same[E comparable](a, b []E) bool {
	if len(a) != len(b) {
		return false
	}
	return len(a) == 0 || &a[0] == &b[0] || slices.Equal(a, b)
}

func compareFile(f source.File, name string) int { return strings.Compare(f.File, name) }

func sortedNames[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
