package source

import (
	"maps"
	"slices"
	"strings"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Builder turns what a source read, file by file, into Snapshots: it shares
// unchanged pods by pointer, counts revisions and knows the changed keys. The
// cost of a change is that of the changed file plus one copy of the list.
//
// It belongs to one goroutine. The zero Builder is ready to use.
type Builder struct {
	files   []File // in byte order of File
	lent    bool   // files was handed out in a Snapshot: it is copied before it is written
	stands  map[string][]*pod.Spec
	objects map[string][]*pod.Object
	notices map[string][]pod.Problem
	skipped []pod.Problem
	changed map[pod.Key]struct{}
	dirty   bool
	rev     uint64
}

// Put makes f the reading of f.File; notices are what f's parser passed over
// on purpose. A pod or object whose content and origin are those of the last
// good reading becomes that reading's pointer. Put reports whether the reading
// differs from the one before.
func (b *Builder) Put(f File, notices []pod.Problem) bool {
	b.make()
	stood := b.stands[f.File]
	f.Pods = sharePods(stood, f.Pods)
	f.Objects = shareObjects(b.objects[f.File], f.Objects)
	i, found := b.index(f.File)
	var was File
	if found {
		was = b.files[i]
		if sameFile(was, f) && slices.Equal(b.notices[f.File], notices) {
			return false
		}
	}
	stands := standing(stood, f)
	b.note(was.Pods, f.Pods)
	b.note(stood, stands)
	b.stands[f.File] = stands
	if !f.Whole || len(f.Objects) > 0 {
		b.objects[f.File] = f.Objects
	}
	if len(notices) > 0 {
		b.notices[f.File] = notices
	} else {
		delete(b.notices, f.File)
	}
	b.own()
	if found {
		b.files[i] = f
	} else {
		b.files = slices.Insert(b.files, i, f)
	}
	b.dirty = true
	return true
}

// Remove takes file out of the set; its pods no longer stand.
func (b *Builder) Remove(file string) {
	i, found := b.index(file)
	if !found {
		return
	}
	b.note(b.files[i].Pods, nil)
	b.note(b.stands[file], nil)
	delete(b.stands, file)
	delete(b.objects, file)
	delete(b.notices, file)
	b.own()
	b.files = slices.Delete(b.files, i, i+1)
	b.dirty = true
}

// Skip replaces the list of what the source passed over on purpose.
func (b *Builder) Skip(skipped []pod.Problem) {
	slices.SortStableFunc(skipped, func(a, c pod.Problem) int { return strings.Compare(a.File, c.File) })
	if !slices.Equal(b.skipped, skipped) {
		b.skipped, b.dirty = skipped, true
	}
}

// Worsens reports whether f is bad news: it has problems, or it lacks a pod
// that stands from f.File. A source may wait before it believes bad news.
func (b *Builder) Worsens(f File) bool {
	if f.Whole || len(f.Problems) > 0 || len(f.Broken) > 0 {
		return true
	}
	if len(b.stands[f.File]) == 0 {
		return false
	}
	keys := make(map[pod.Key]bool, len(f.Pods))
	for _, p := range f.Pods {
		keys[p.Key] = true
	}
	return slices.ContainsFunc(b.stands[f.File], func(p *pod.Spec) bool { return !keys[p.Key] })
}

// Has reports whether file is in the set.
func (b *Builder) Has(file string) bool {
	_, found := b.index(file)
	return found
}

// Files returns the names of all files in the set, in byte order.
func (b *Builder) Files() []string {
	names := make([]string, len(b.files))
	for i, f := range b.files {
		names[i] = f.File
	}
	return names
}

// Dirty reports whether anything differs from the last Snapshot.
func (b *Builder) Dirty() bool { return b.dirty }

// Snapshot returns the complete set as the next revision. Changed names every
// key whose pods in Files differ from the snapshot before, and every key that
// stood behind a broken file and no longer does.
func (b *Builder) Snapshot() Snapshot {
	b.make()
	b.rev++
	s := Snapshot{
		Revision: b.rev,
		Changed:  slices.SortedFunc(maps.Keys(b.changed), pod.Key.Compare),
		Files:    slices.Clip(b.files),
		Skipped:  slices.Clip(b.skipped),
	}
	for _, file := range slices.Sorted(maps.Keys(b.notices)) {
		s.Skipped = append(s.Skipped, b.notices[file]...)
	}
	b.lent, b.dirty = true, false
	clear(b.changed)
	return s
}

func (b *Builder) make() {
	if b.stands == nil {
		b.stands = map[string][]*pod.Spec{}
		b.objects = map[string][]*pod.Object{}
		b.notices = map[string][]pod.Problem{}
		b.changed = map[pod.Key]struct{}{}
	}
}

func (b *Builder) own() {
	if b.lent {
		b.files, b.lent = slices.Clone(b.files), false
	}
}

func (b *Builder) index(file string) (int, bool) {
	return slices.BinarySearchFunc(b.files, file, func(f File, name string) int { return strings.Compare(f.File, name) })
}

// note marks the keys whose specs differ between two readings of one file.
func (b *Builder) note(was, is []*pod.Spec) {
	if slices.Equal(was, is) {
		return
	}
	count := make(map[*pod.Spec]int, len(was)+len(is))
	for _, p := range was {
		count[p]++
	}
	for _, p := range is {
		count[p]--
	}
	for p, n := range count {
		if n != 0 {
			b.changed[p.Key] = struct{}{}
		}
	}
}

// standing returns the pods that stand after reading f when stood did before:
// what f holds and, while anything is wrong with it, all others of stood.
func standing(stood []*pod.Spec, f File) []*pod.Spec {
	if len(stood) == 0 || (!f.Whole && len(f.Problems)+len(f.Broken) == 0) {
		return f.Pods
	}
	held := make(map[pod.Key]bool, len(f.Pods))
	for _, p := range f.Pods {
		held[p.Key] = true
	}
	stands := slices.Clone(f.Pods)
	for _, p := range stood {
		if !held[p.Key] {
			stands = append(stands, p)
		}
	}
	return stands
}

func sharePods(old, pods []*pod.Spec) []*pod.Spec {
	if len(old) == 0 || len(pods) == 0 {
		return pods
	}
	type content struct {
		pod.Key
		pod.Origin
		hash string
	}
	known := make(map[content]*pod.Spec, len(old))
	for _, p := range old {
		if p.Hash != "" {
			known[content{p.Key, p.Origin, p.Hash}] = p
		}
	}
	shared := slices.Clone(pods)
	for i, p := range shared {
		if same := known[content{p.Key, p.Origin, p.Hash}]; same != nil {
			shared[i] = same
		}
	}
	return shared
}

func shareObjects(old, objects []*pod.Object) []*pod.Object {
	shared := slices.Clone(objects)
	for i, o := range shared {
		for _, was := range old {
			if o.Hash != "" && was.Hash == o.Hash && was.Kind == o.Kind && was.Key == o.Key && was.Origin == o.Origin {
				shared[i] = was
				break
			}
		}
	}
	return shared
}

func sameFile(a, b File) bool {
	return a.Whole == b.Whole && slices.Equal(a.Pods, b.Pods) && slices.Equal(a.Objects, b.Objects) &&
		slices.Equal(a.Problems, b.Problems) && slices.Equal(a.Broken, b.Broken)
}
