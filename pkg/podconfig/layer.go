package podconfig

import (
	"slices"
	"strings"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/sorted"
	"github.com/nodectl/nodectl/pkg/source"
)

// Layer is the state of one source: its newest reading, the last good set of each file, and
// which file owns which pod. It is a value: each step, such as Read, returns a new one and
// does not change the old one.
type Layer struct {
	state LayerState
	kept  kept // empty once the layer is ready

	files    sorted.List[source.File]     // the newest reading, as the source gave it
	lastGood sorted.List[pod.LastGoodSet] // the last good set of each file, by file; none is empty
	pods     table[*pod.Spec]
	objects  table[*pod.Object]
	skipped  []pod.Problem

	fileProblems sorted.List[fileProblems] // by file
	problems     []pod.Problem             // all of fileProblems

	// steps is how many steps led to this Layer. The fields below have the changes of the last
	// step.
	steps          uint64
	changedPods    []ident
	changedObjects []ident
	changedSets    []pod.LastGoodSet // the new last good sets, one for each file whose set changed
}

// NewLayer returns a layer that is not ready yet. name is the name of its source. kept has the
// pods that the previous agent stored, of this and other layers. Their origins name the files. kept
// has two effects on the layer's first reading. A broken file keeps the kept pods that came from it
// (I9). If two files define a pod, the file that the kept pod came from owns it (F43).
func NewLayer(name string, kept []*pod.Spec) Layer {
	kind, location, _ := strings.Cut(name, ":")
	return Layer{
		state: LayerState{Name: name, Source: kind, Location: location},
		kept:  newKept(name, kept),
	}
}

// State returns the exported state of the layer.
func (l Layer) State() LayerState { return l.state }

// WaitingSince returns the layer with now as LayerState.Since, the beginning of the wait for its
// source. A layer whose source has answered stays the same.
func (l Layer) WaitingSince(now time.Time) Layer {
	if !l.state.Ready && l.state.Error == "" {
		l.state.Since = now
	}
	return l
}

// Restore returns the layer with the last good set that the previous agent stored. The layer must not
// be ready, and is not ready after that either (C-1.3.8): the source's first reading replaces the
// restored set. If two files have one pod, NewLayer says which one owns it (F43).
//
// The set may lack pods that ran, because the previous agent was killed before it wrote them
// or a part of the set is damaged. So a file that is broken at the first reading keeps its kept pods
// (see NewLayer), if the set has nothing of the file. It does not keep pods that another file has. It
// also keeps the pods of the workloads in r.Forbidden, even if the set has other pods of the file.
func (l Layer) Restore(r Restored) Layer {
	next := l.unchanged()
	var files []pod.LastGoodSet
	for _, s := range sorted.From(r.Files, compareSets).Slice() {
		if !s.Empty() && (len(files) == 0 || files[len(files)-1].File != s.File) {
			files = append(files, s)
		}
	}
	var all layerChange
	for _, s := range files {
		all.replace(pod.LastGoodSet{}, s)
	}
	next = next.apply(all)
	next.kept = next.kept.without(next, r.Forbidden)
	next.state.Restored, next.state.LastGood = true, r.At
	return next
}

// Read returns the layer after a reading of its source, at now.
//
// A file with a problem keeps the last good version of each pod and object that the reading lacks.
// Read removes a pod or workload that no file of the layer defines any more, with one exception. If
// another file has a rejected version of it, a user has moved it there: that file takes over its last
// good version.
//
// Read finds the changes by comparing the readings; it does not use revisions.
func (l Layer) Read(s source.Snapshot, now time.Time) Layer {
	next := l.unchanged()
	if r := l.compare(s.Files); !r.empty() {
		next = next.apply(r)
	}
	next.files = s.Files
	if !same(l.skipped, s.Skipped) {
		next.skipped = s.Skipped
	}
	next.kept = kept{}
	next.state.Ready, next.state.Restored = true, false
	next.state.Error, next.state.Since = "", time.Time{}
	next.state.LastGood = now
	return next
}

// Failed returns the layer after a failed read, at now: all its pods stay. Since is the time of the
// first of several consecutive failures.
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

// Ended returns the layer after its source has ended; its last set stays.
func (l Layer) Ended() Layer {
	l = l.unchanged()
	l.state.Ended = true
	return l
}

// unchanged returns the layer after a step that changes nothing.
func (l Layer) unchanged() Layer {
	l.steps++
	l.changedPods, l.changedObjects, l.changedSets = nil, nil, nil
	return l
}

// apply returns the layer after the changes of a reading.
func (l Layer) apply(r layerChange) Layer {
	if len(r.problems) > 0 {
		l.fileProblems, l.problems = r.patchProblems(l.fileProblems)
	}
	if !l.state.Ready {
		r.pods.kept = l.kept.pod
	}
	// changedSets has one set of each file that changed. At the end the list of an empty set is
	// nil, because sorted.Patch removes such entries.
	changedSets := make(map[string][]pod.LastGoodSet, len(r.changedSets))
	for _, s := range r.changedSets {
		changedSets[s.File] = []pod.LastGoodSet{s}
	}
	if l.fileProblems.Len() > 0 {
		successor := l.successors(changedSets)
		r.pods.successor = func(id ident, s *pod.Spec) string {
			return successor(id, func(m *source.Meter) bool { return m.Pods(s) })
		}
		r.objects.successor = func(id ident, o *pod.Object) string {
			return successor(id, func(m *source.Meter) bool { return m.Objects(o) })
		}
	}
	var movedPods []definition[*pod.Spec]
	var movedObjects []definition[*pod.Object]
	l.pods, l.changedPods, movedPods = l.pods.apply(r.pods)
	l.objects, l.changedObjects, movedObjects = l.objects.apply(r.objects)
	l.state.Pods = l.pods.winners.Len()

	for file, pods := range byFile(movedPods) {
		set := l.setAfter(changedSets, file)
		set.Pods = slices.Concat(set.Pods, pods)
		changedSets[file] = []pod.LastGoodSet{set}
	}
	for file, objects := range byFile(movedObjects) {
		set := l.setAfter(changedSets, file)
		set.Objects = slices.Concat(set.Objects, objects)
		changedSets[file] = []pod.LastGoodSet{set}
	}
	names := sortedNames(changedSets)
	for _, name := range names {
		s := changedSets[name]
		l.changedSets = append(l.changedSets, s...)
		if s[0].Empty() {
			changedSets[name] = nil
		}
	}
	l.lastGood = sorted.Patch(l.lastGood, names, compareSetFile, func(name string) []pod.LastGoodSet { return changedSets[name] })
	return l
}

// byFile returns definitions that were taken over, by their new files.
func byFile[T item](moved []definition[T]) map[string][]T {
	var out map[string][]T
	for _, d := range moved {
		if out == nil {
			out = make(map[string][]T)
		}
		out[d.file] = append(out[d.file], d.value)
	}
	return out
}

// successors returns the function for change.successor. A file takes over the pods and workloads of
// which it has a rejected version, while its last good set stays within the limit of a file.
// changedSets has the sets that the reading changed. add adds the item to a meter, and reports whether
// it fits.
func (l Layer) successors(changedSets map[string][]pod.LastGoodSet) func(id ident, add func(*source.Meter) bool) string {
	named := filesWithRejected(l.fileProblems)
	meters := make(map[string]*source.Meter)
	return func(id ident, add func(*source.Meter) bool) string {
		file := named(id)
		if file == "" {
			return ""
		}
		m := meters[file]
		if m == nil {
			m = &source.Meter{}
			meters[file] = m
			s := l.setAfter(changedSets, file)
			m.Pods(s.Pods...)
			m.Objects(s.Objects...)
		}
		if !add(m) {
			return ""
		}
		return file
	}
}

// setAfter returns the last good set of a file after a reading that changed changedSets.
func (l Layer) setAfter(changedSets map[string][]pod.LastGoodSet, file string) pod.LastGoodSet {
	if s := changedSets[file]; s != nil {
		return s[0]
	}
	return l.lastGoodOf(file)
}

// lastGoodOf returns the last good set of a file, which may be empty.
func (l Layer) lastGoodOf(file string) pod.LastGoodSet {
	s, _ := sorted.Find(l.lastGood, file, compareSetFile)
	s.File = file
	return s
}

func compareSetFile(s pod.LastGoodSet, file string) int { return strings.Compare(s.File, file) }

func compareSets(a, b pod.LastGoodSet) int { return strings.Compare(a.File, b.File) }

// kept has the pods that the previous agent stored.
type kept struct {
	byKey  map[pod.Key]*pod.Spec  // of any layer
	byFile map[string][]*pod.Spec // of this layer
}

func newKept(layer string, specs []*pod.Spec) kept {
	if len(specs) == 0 {
		return kept{}
	}
	k := kept{byKey: make(map[pod.Key]*pod.Spec, len(specs)), byFile: make(map[string][]*pod.Spec)}
	for _, s := range specs {
		if _, known := k.byKey[s.Key]; !known {
			k.byKey[s.Key] = s
		}
		if s.Origin.Layer() == layer {
			k.byFile[s.Origin.File] = append(k.byFile[s.Origin.File], s)
		}
	}
	return k
}

// without returns k without the specs that the restored layer l replaces. These are the specs of files
// whose set l has, except pods of forbidden workloads, and the specs of pods that l has.
func (k kept) without(l Layer, forbidden []*pod.Object) kept {
	byFile := make(map[string][]*pod.Spec)
	for file, kept := range k.byFile {
		set := l.lastGoodOf(file)
		for _, s := range kept {
			if (set.Empty() || isExpandedFrom(s, forbidden)) && l.pods.winner(identOf(s)) == nil {
				byFile[file] = append(byFile[file], s)
			}
		}
	}
	k.byFile = byFile
	return k
}

// pod returns the kept version of a pod, nil for none.
func (k kept) pod(id ident) *pod.Spec { return k.byKey[id.key] }
