package source

import (
	"maps"
	"slices"
	"strings"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/sorted"
)

// Builder builds Snapshots from the files that a source has read. It keeps the pointers of unchanged
// pods, counts revisions and collects the changed keys. The cost of a change depends only on the changed
// file.
//
// Only one goroutine may use a Builder. The zero Builder is ready to use.
type Builder struct {
	files          sorted.List[File]
	edits          map[string]*File // the changes that files does not have yet; nil is a removed file
	lastGood       map[string][]*pod.Spec
	objects        map[string][]*pod.Object
	notices        map[string][]pod.Problem
	skipped        []pod.Problem
	allSkipped     []pod.Problem // Skipped of the last Snapshot
	rebuildSkipped bool          // allSkipped must be built again
	changed        map[pod.Key]struct{}
	dirty          bool
	rev            uint64
}

// Put makes f the reading of f.File. notices has the parts that the parser ignored on purpose. If a pod or
// object has the same content and origin as in the last good reading, Put keeps its pointer. Put reports
// whether the reading differs from the one before. If it does not, Put only compares the two.
func (b *Builder) Put(f File, notices []pod.Problem) bool {
	b.prepare()
	was, found := b.find(f.File)
	sameNotices := slices.Equal(b.notices[f.File], notices)
	if found && sameNotices && sameFile(&was, &f) {
		return false
	}
	before := b.lastGood[f.File]
	f.Pods = sharePods(before, f.Pods)
	f.Objects = shareObjects(b.objects[f.File], f.Objects)
	after := lastGoodPods(before, f)
	b.note(was.Pods, f.Pods)
	b.note(before, after)
	b.lastGood[f.File] = after
	if !f.Incomplete || len(f.Objects) > 0 {
		b.objects[f.File] = f.Objects
	}
	if !sameNotices {
		b.setNotices(f.File, notices)
	}
	edited := f // a copy, so that f is not on the heap in readings that change nothing
	b.edits[f.File] = &edited
	b.dirty = true
	return true
}

// Remove removes file with its pods and objects from the set.
func (b *Builder) Remove(file string) {
	was, found := b.find(file)
	if !found {
		return
	}
	b.note(was.Pods, nil)
	b.note(b.lastGood[file], nil)
	delete(b.lastGood, file)
	delete(b.objects, file)
	if len(b.notices[file]) > 0 {
		b.setNotices(file, nil)
	}
	b.edits[file] = nil
	b.dirty = true
}

// Skip replaces the list of files that the source skipped on purpose.
func (b *Builder) Skip(skipped []pod.Problem) {
	slices.SortStableFunc(skipped, func(a, c pod.Problem) int { return strings.Compare(a.File, c.File) })
	if !slices.Equal(b.skipped, skipped) {
		b.skipped, b.rebuildSkipped, b.dirty = skipped, true, true
	}
}

// IsWorse reports whether f is worse than the set: it has problems, or it lacks a pod or a
// workload of f.File. A source may wait before it accepts such a reading.
func (b *Builder) IsWorse(f File) bool {
	if f.Incomplete || len(f.Problems)+len(f.Broken)+len(f.BrokenObjects) > 0 || lacksWorkload(b.objects[f.File], f.Objects) {
		return true
	}
	if len(b.lastGood[f.File]) == 0 {
		return false
	}
	keys := make(map[pod.Key]bool, len(f.Pods))
	for _, p := range f.Pods {
		keys[p.Key] = true
	}
	return slices.ContainsFunc(b.lastGood[f.File], func(p *pod.Spec) bool { return !keys[p.Key] })
}

// lacksWorkload reports whether now lacks a workload of before.
func lacksWorkload(before, now []*pod.Object) bool {
	var keys map[pod.ObjectKey]bool
	for _, o := range before {
		if !pod.IsWorkload(o.Kind) {
			continue
		}
		if keys == nil {
			keys = make(map[pod.ObjectKey]bool, len(now))
			for _, n := range now {
				keys[n.ObjectKey()] = true
			}
		}
		if !keys[o.ObjectKey()] {
			return true
		}
	}
	return false
}

// Has reports whether file is in the set.
func (b *Builder) Has(file string) bool {
	_, found := b.find(file)
	return found
}

// Files returns the names of all files in the set, in byte order.
func (b *Builder) Files() []string {
	b.applyEdits()
	names := make([]string, 0, b.files.Len())
	for f := range b.files.All() {
		names = append(names, f.File)
	}
	return names
}

// Dirty reports whether anything differs from the last Snapshot.
func (b *Builder) Dirty() bool { return b.dirty }

// Snapshot returns the complete set as the next revision. Changed has each key whose pods in Files differ
// from the snapshot before. It also has each key whose last good pod a broken file kept before, and does
// not keep any more.
func (b *Builder) Snapshot() Snapshot {
	b.prepare()
	b.applyEdits()
	if b.rebuildSkipped {
		b.allSkipped = slices.Clip(b.skipped)
		for _, file := range slices.Sorted(maps.Keys(b.notices)) {
			b.allSkipped = append(b.allSkipped, b.notices[file]...)
		}
		b.allSkipped, b.rebuildSkipped = slices.Clip(b.allSkipped), false
	}
	b.rev++
	s := Snapshot{
		Revision: b.rev,
		Changed:  slices.SortedFunc(maps.Keys(b.changed), pod.Key.Compare),
		Files:    b.files,
		Skipped:  b.allSkipped,
	}
	b.dirty = false
	b.changed = map[pod.Key]struct{}{} // not clear: it is slow for a map that was once large
	return s
}

func (b *Builder) prepare() {
	if b.lastGood == nil {
		b.edits = map[string]*File{}
		b.lastGood = map[string][]*pod.Spec{}
		b.objects = map[string][]*pod.Object{}
		b.notices = map[string][]pod.Problem{}
		b.changed = map[pod.Key]struct{}{}
	}
}

// applyEdits applies the edits to the list of files.
func (b *Builder) applyEdits() {
	if len(b.edits) == 0 {
		return
	}
	b.files = sorted.Patch(b.files, slices.Sorted(maps.Keys(b.edits)), File.compare, func(name string) []File {
		if f := b.edits[name]; f != nil {
			return []File{*f}
		}
		return nil
	})
	b.edits = map[string]*File{}
}

func (b *Builder) find(file string) (File, bool) {
	if f, edited := b.edits[file]; edited {
		if f == nil {
			return File{}, false
		}
		return *f, true
	}
	return sorted.Find(b.files, file, File.compare)
}

func (b *Builder) setNotices(file string, notices []pod.Problem) {
	if b.notices[file] = notices; len(notices) == 0 {
		delete(b.notices, file)
	}
	b.rebuildSkipped = true
}

// note marks the keys whose specs differ between two readings of one file.
func (b *Builder) note(was, now []*pod.Spec) {
	if slices.Equal(was, now) {
		return
	}
	count := make(map[*pod.Spec]int, len(was)+len(now))
	for _, p := range was {
		count[p]++
	}
	for _, p := range now {
		count[p]--
	}
	for p, n := range count {
		if n != 0 {
			b.changed[p.Key] = struct{}{}
		}
	}
}

// lastGoodPods returns the last good pods of a file after the reading f. before has those before it. The
// result has the pods of f and, if f has any problem, also the other pods of before. If that exceeds the
// limit of a file, the result is before, as in podconfig.
func lastGoodPods(before []*pod.Spec, f File) []*pod.Spec {
	if len(before) == 0 || (!f.Incomplete && len(f.Problems)+len(f.Broken)+len(f.BrokenObjects) == 0) {
		return f.Pods
	}
	has := make(map[pod.Key]bool, len(f.Pods))
	for _, p := range f.Pods {
		has[p.Key] = true
	}
	after := slices.Clone(f.Pods)
	for _, p := range before {
		if !has[p.Key] {
			after = append(after, p)
		}
	}
	if len(after) > len(f.Pods) && !new(Meter).Pods(after...) {
		return before
	}
	return after
}

func sharePods(old, pods []*pod.Spec) []*pod.Spec {
	if len(old) == 0 || len(pods) == 0 {
		return pods
	}
	known := make(map[pod.Key]*pod.Spec, len(old))
	for _, p := range old {
		known[p.Key] = p
	}
	shared := slices.Clone(pods)
	for i, p := range shared {
		if was := known[p.Key]; was != nil && samePod(was, p) {
			shared[i] = was
		}
	}
	return shared
}

func shareObjects(old, objects []*pod.Object) []*pod.Object {
	if len(old) == 0 || len(objects) == 0 {
		return objects
	}
	type reading struct { // the fields that sameObject compares
		hash, kind string
		key        pod.Key
		origin     pod.Origin
	}
	of := func(o *pod.Object) reading { return reading{o.Hash, o.Kind, o.Key, o.Origin} }
	known := make(map[reading]*pod.Object, len(old))
	for _, was := range slices.Backward(old) { // backward, so that the first one of equal objects stays
		if was.Hash != "" {
			known[of(was)] = was
		}
	}
	shared := slices.Clone(objects)
	for i, o := range shared {
		if was := known[of(o)]; was != nil {
			shared[i] = was
		}
	}
	return shared
}

func sameFile(a, b *File) bool {
	return a.Incomplete == b.Incomplete && slices.EqualFunc(a.Pods, b.Pods, samePod) && slices.EqualFunc(a.Objects, b.Objects, sameObject) &&
		slices.Equal(a.Problems, b.Problems) && slices.Equal(a.Broken, b.Broken) && slices.Equal(a.BrokenObjects, b.BrokenObjects)
}

// samePod reports whether two readings of a pod are the same. The hash covers the author's fields;
// the resource version covers the fields that an API server adds.
func samePod(a, b *pod.Spec) bool {
	if a == b {
		return true
	}
	if a.Hash == "" || a.Hash != b.Hash || a.Key != b.Key || a.Origin != b.Origin || !slices.Equal(a.Unread, b.Unread) {
		return false
	}
	return a.Pod == b.Pod || a.Pod != nil && b.Pod != nil &&
		a.Pod.UID == b.Pod.UID && a.Pod.ResourceVersion == b.Pod.ResourceVersion
}

func sameObject(a, b *pod.Object) bool {
	return a == b || a.Hash != "" && a.Hash == b.Hash && a.Kind == b.Kind && a.Key == b.Key && a.Origin == b.Origin
}
