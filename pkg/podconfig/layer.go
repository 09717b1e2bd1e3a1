package podconfig

import (
	"slices"
	"strings"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/source"
)

// Layer is what is remembered of one source: its newest word, the last good
// version of what it can no longer read, and which file owns which pod. It is a
// value: every step returns a new one and leaves the old one as it was.
type Layer struct {
	state LayerState
	kept  []*pod.Spec // of an agent before this one; they speak in the first reading only

	files    []source.File       // the newest reading, in byte order of File
	standing map[string]contents // what stands in files that have problems; the others hold what they read
	pods     table[*pod.Spec]
	objects  table[*pod.Object]
	problems []pod.Problem
	skipped  []pod.Problem

	// steps counts the steps that led here. A holder of the Layer one step
	// before need only look at changedPods and changedObjects.
	steps          uint64
	changedPods    []ident
	changedObjects []ident
}

// contents is what one file wants.
type contents struct {
	pods    []*pod.Spec
	objects []*pod.Object
}

// NewLayer returns a layer that was never heard. Name is the source's. kept is
// what runs here, as an agent before this one wrote it down; its origins say
// where from, also from other layers. In the layer's first reading a file that
// is broken keeps the pods that kept has from it (I9), and where two files want
// one pod, the one it was kept from owns it (F43).
func NewLayer(name string, kept []*pod.Spec) Layer {
	kind, location, _ := strings.Cut(name, ":")
	return Layer{
		state: LayerState{Name: name, Source: kind, Location: location},
		kept:  kept,
	}
}

// incumbent returns the file that a pod was kept from, "" for none.
func (l Layer) incumbent(id ident) string {
	for _, p := range l.kept {
		if p.Key == id.key && id.kind == kindPod {
			return p.Origin.File
		}
	}
	return ""
}

// keptFrom returns what was kept from a file of this layer.
func (l Layer) keptFrom(file string) contents {
	var c contents
	for _, p := range l.kept {
		if p.Origin.File == file && p.Origin.Layer() == l.state.Name {
			c.pods = append(c.pods, p)
		}
	}
	return c
}

// State returns the layer as others see it.
func (l Layer) State() LayerState { return l.state }

// Read returns the layer after its source has looked, at now.
//
// A file with which anything is wrong keeps every pod and object last read from
// it that cannot be read any more. A file that is gone takes its pods along, unless another file of the layer holds the pod in
// a form that was rejected: then it was moved, and the last good version goes
// on standing there.
//
// What changed is found by comparing readings, which share what did not change;
// so neither a missed revision nor a wrong list of changed keys can mislead it.
func (l Layer) Read(s source.Snapshot, now time.Time) Layer {
	next := l
	next.files = ordered(s.Files)
	next.skipped = s.Skipped
	r := l.compare(next.files)
	next.standing = r.standing
	if !slices.Equal(l.problems, r.problems) {
		next.problems = r.problems
	}
	if !l.state.Heard {
		r.pods.incumbent = l.incumbent
	}
	next.kept = nil
	var inherited []claim[*pod.Spec]
	next.pods, next.changedPods, inherited = l.pods.apply(r.pods)
	next.objects, next.changedObjects, _ = l.objects.apply(r.objects)
	for _, c := range inherited {
		heir := next.standing[c.file]
		heir.pods = append(slices.Clip(heir.pods), c.value)
		next.standing[c.file] = heir
	}
	next.steps++
	next.state.Heard = true
	next.state.Pods = len(next.pods.winners)
	next.state.Error, next.state.Since = "", time.Time{}
	next.state.LastGood = now
	return next
}

// Failed returns the layer after its source could not look, at now: everything
// stands. Since keeps the time of the first of several failures in a row.
func (l Layer) Failed(err error, now time.Time) Layer {
	l = l.unchanged()
	if l.state.Error == "" {
		l.state.Since = now
	}
	l.state.Error = err.Error()
	if l.state.Error == "" {
		l.state.Error = "unknown error"
	}
	return l
}

// Ended returns the layer after its source has said its last word, which
// stands.
func (l Layer) Ended() Layer {
	l = l.unchanged()
	l.state.Ended = true
	return l
}

// unchanged returns the layer one step on, with nothing changed.
func (l Layer) unchanged() Layer {
	l.steps++
	l.changedPods, l.changedObjects = nil, nil
	return l
}

// reading is what comparing two readings of a layer found.
type reading struct {
	standing map[string]contents
	pods     change[*pod.Spec]
	objects  change[*pod.Object]
	problems []pod.Problem
	broken   []source.File // files that name rejected pods
}

// compare walks the old reading and the new one side by side, both in byte
// order of File. A file whose reading is the same costs a comparison of
// pointers.
func (l Layer) compare(files []source.File) *reading {
	r := &reading{standing: make(map[string]contents)}
	r.pods.files = make(map[string][]*pod.Spec)
	r.objects.files = make(map[string][]*pod.Object)
	r.pods.heir = r.heir
	old := l.files
	for i := range files {
		f := &files[i]
		for len(old) > 0 && old[0].File < f.File {
			r.replace(old[0].File, l.contents(&old[0]), contents{})
			old = old[1:]
		}
		r.problems = append(r.problems, f.Problems...)
		if len(f.Broken) > 0 {
			r.broken = append(r.broken, *f)
		}
		var before contents
		if len(old) > 0 && old[0].File == f.File {
			before = l.contents(&old[0])
			same := sameReading(&old[0], f)
			old = old[1:]
			if same {
				if stands, ok := l.standing[f.File]; ok {
					r.standing[f.File] = stands
				}
				continue
			}
		}
		stood := before
		if !l.state.Heard && !healthy(f) {
			stood = l.keptFrom(f.File)
		}
		after := stand(stood, f)
		if !healthy(f) {
			r.standing[f.File] = after
		}
		r.replace(f.File, before, after)
	}
	for i := range old {
		r.replace(old[i].File, l.contents(&old[i]), contents{})
	}
	return r
}

// contents returns what stands in a file of the newest reading.
func (l Layer) contents(f *source.File) contents {
	if stands, ok := l.standing[f.File]; ok {
		return stands
	}
	return contents{f.Pods, f.Objects}
}

// replace notes what differs between two versions of a file.
func (r *reading) replace(file string, before, after contents) {
	if ids := differing(before.pods, after.pods); len(ids) > 0 {
		r.pods.files[file] = after.pods
		r.pods.ids = append(r.pods.ids, ids...)
	}
	if ids := differing(before.objects, after.objects); len(ids) > 0 {
		r.objects.files[file] = after.objects
		r.objects.ids = append(r.objects.ids, ids...)
	}
}

// heir returns the first file in byte order that holds the pod in a form that
// was rejected.
func (r *reading) heir(id ident) string {
	for _, f := range r.broken {
		if slices.Contains(f.Broken, id.key) {
			return f.File
		}
	}
	return ""
}

// healthy reports whether a file's reading says everything about it.
func healthy(f *source.File) bool {
	return !f.Whole && len(f.Broken) == 0 && len(f.Problems) == 0
}

// stand returns what stands in a file after a reading: what was read and, while
// anything is wrong with the file, all that stood in it before and is missing
// now. A file that is being mended removes nothing (I9, F40).
func stand(before contents, f *source.File) contents {
	after := contents{f.Pods, f.Objects}
	if f.Whole || len(f.Problems)+len(f.Broken) > 0 {
		after.pods = keep(before.pods, after.pods)
		after.objects = keep(before.objects, after.objects)
	}
	return after
}

// keep returns now and, after it, what was there before and is missing.
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

// sameReading reports whether two readings of a file say the same.
func sameReading(a, b *source.File) bool {
	return a.Whole == b.Whole &&
		same(a.Pods, b.Pods) && same(a.Objects, b.Objects) &&
		same(a.Problems, b.Problems) && same(a.Broken, b.Broken)
}

// same compares two lists, at no cost when they are one.
func same[E comparable](a, b []E) bool {
	if len(a) != len(b) {
		return false
	}
	return len(a) == 0 || &a[0] == &b[0] || slices.Equal(a, b)
}

// ordered returns files in byte order of File, each once. A source keeps that
// order by contract; one that does not costs a sort here, never a pod.
func ordered(files []source.File) []source.File {
	strictly := true
	for i := 1; i < len(files) && strictly; i++ {
		strictly = files[i-1].File < files[i].File
	}
	if strictly {
		return files
	}
	files = slices.Clone(files)
	slices.SortStableFunc(files, func(a, b source.File) int { return strings.Compare(a.File, b.File) })
	out := files[:1]
	for _, f := range files[1:] {
		last := &out[len(out)-1]
		if last.File != f.File {
			out = append(out, f)
			continue
		}
		last.Pods = append(slices.Clip(last.Pods), f.Pods...)
		last.Objects = append(slices.Clip(last.Objects), f.Objects...)
		last.Problems = append(slices.Clip(last.Problems), f.Problems...)
		last.Broken = append(slices.Clip(last.Broken), f.Broken...)
		last.Whole = last.Whole || f.Whole
	}
	return out
}
