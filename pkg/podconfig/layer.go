package podconfig

import (
	"slices"
	"strings"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/sorted"
	"github.com/nodectl/nodectl/pkg/source"
)

// Layer is what is remembered of one source: its newest word, the last good
// version of what it can no longer read, and which file owns which pod. It is a
// value: every step returns a new one and leaves the old one as it was.
type Layer struct {
	state LayerState
	kept  kept // of an agent before this one; empty once the layer was heard

	files    sorted.List[source.File]  // the newest reading, as the source gave it
	standing sorted.List[pod.Standing] // what stands in each file, by file; none is empty
	troubles sorted.List[trouble]      // what is wrong with files, by file
	pods     table[*pod.Spec]
	objects  table[*pod.Object]
	problems []pod.Problem
	skipped  []pod.Problem

	// steps counts the steps that led here. A holder of the Layer one step
	// before need only look at changedPods and changedObjects.
	steps          uint64
	changedPods    []ident
	changedObjects []ident
	stands         []pod.Standing // the files in which something else stands since
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
		kept:  newKept(name, kept),
	}
}

// State returns the layer as others see it.
func (l Layer) State() LayerState { return l.state }

// Asked returns the layer after its source was asked for the first time, at
// now: until it says a word, Since tells how long it has been silent.
func (l Layer) Asked(now time.Time) Layer {
	if !l.state.Heard && l.state.Error == "" {
		l.state.Since = now
	}
	return l
}

// Restore returns the layer, which was not heard, standing on its last good set
// as an agent before this one wrote it down. That does not make it heard
// (C-1.3.8): it is the reading before the source's first one, which corrects it.
// Where two files hold one pod, its owner is known as in NewLayer (F43).
//
// A set may lack what ran: the agent before was killed before it was written, or
// a part of it is damaged. So what was kept still stands for a broken file, as in
// NewLayer, where the set has nothing of the file and the pod nowhere.
func (l Layer) Restore(r Restored) Layer {
	next := l.unchanged()
	var files []pod.Standing
	for _, s := range sorted.From(r.Files, compareStandings).Slice() {
		if !s.Empty() && (len(files) == 0 || files[len(files)-1].File != s.File) {
			files = append(files, s)
		}
	}
	var all reading
	for _, s := range files {
		all.replace(pod.Standing{}, s)
	}
	next = next.apply(all)
	next.kept = next.kept.beside(next)
	next.state.Restored, next.state.LastGood = true, r.At
	return next
}

// Read returns the layer after its source has looked, at now.
//
// A file with which anything is wrong keeps every pod and object last read from
// it that cannot be read any more. A file that is gone takes its pods along,
// unless another file of the layer holds the pod in a form that was rejected:
// then it was moved, and the last good version goes on standing there.
//
// What changed is found by comparing readings, which share what did not change;
// so neither a missed revision nor a wrong list of changed keys can mislead it.
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
	next.state.Heard, next.state.Restored = true, false
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
	l.changedPods, l.changedObjects, l.stands = nil, nil, nil
	return l
}

// apply returns the layer with a reading's changes made.
func (l Layer) apply(r reading) Layer {
	if len(r.troubles) > 0 {
		l.troubles, l.problems = r.patchTroubles(l.troubles)
	}
	if !l.state.Heard {
		r.pods.incumbent = l.kept.pod
	}
	stands := make(map[string][]pod.Standing, len(r.stands))
	for _, s := range r.stands {
		stands[s.File] = []pod.Standing{s}
	}
	if l.troubles.Len() > 0 {
		r.pods.heir = l.heirs(stands)
	}
	var inherited []claim[*pod.Spec]
	l.pods, l.changedPods, inherited = l.pods.apply(r.pods)
	l.objects, l.changedObjects, _ = l.objects.apply(r.objects)
	l.state.Pods = l.pods.winners.Len()

	var moved map[string][]*pod.Spec
	for _, c := range inherited {
		if moved == nil {
			moved = make(map[string][]*pod.Spec)
		}
		moved[c.file] = append(moved[c.file], c.value)
	}
	for file, pods := range moved {
		heir := l.standsIn(stands, file)
		heir.Pods = slices.Concat(heir.Pods, pods)
		stands[file] = []pod.Standing{heir}
	}
	names := sortedNames(stands)
	for _, name := range names {
		s := stands[name]
		l.stands = append(l.stands, s...)
		if s[0].Empty() {
			stands[name] = nil
		}
	}
	l.standing = sorted.Patch(l.standing, names, compareStanding, func(name string) []pod.Standing { return stands[name] })
	return l
}

// heirs returns heirs of the layer's troubles. A file gets no pod that is more than may stand
// behind it: that pod goes with the file that it was in. stands is what stands in files that
// differ.
func (l Layer) heirs(stands map[string][]pod.Standing) func(ident) string {
	named := heirs(l.troubles)
	meters := make(map[string]*source.Meter)
	return func(id ident) string {
		file, won := named(id), l.pods.winner(id)
		if file == "" || won == nil {
			return ""
		}
		m := meters[file]
		if m == nil {
			m = &source.Meter{}
			meters[file] = m
			s := l.standsIn(stands, file)
			m.Pods(s.Pods...)
			m.Objects(s.Objects...)
		}
		if !m.Pods(won.value) {
			return ""
		}
		return file
	}
}

// standsIn returns what stands in a file, of which stands is the newest word.
func (l Layer) standsIn(stands map[string][]pod.Standing, file string) pod.Standing {
	if s := stands[file]; s != nil {
		return s[0]
	}
	return l.stood(file)
}

// stood returns what stands in a file, which may be nothing.
func (l Layer) stood(file string) pod.Standing {
	s, _ := sorted.Find(l.standing, file, compareStanding)
	s.File = file
	return s
}

func compareStanding(s pod.Standing, file string) int { return strings.Compare(s.File, file) }

func compareStandings(a, b pod.Standing) int { return strings.Compare(a.File, b.File) }

// kept is what an agent before this one kept of pods that run.
type kept struct {
	pods  map[pod.Key]*pod.Spec  // of whatever layer
	specs map[string][]*pod.Spec // by file, of this layer
}

func newKept(layer string, specs []*pod.Spec) kept {
	if len(specs) == 0 {
		return kept{}
	}
	k := kept{pods: make(map[pod.Key]*pod.Spec, len(specs)), specs: make(map[string][]*pod.Spec)}
	for _, s := range specs {
		if _, known := k.pods[s.Key]; !known {
			k.pods[s.Key] = s
		}
		if s.Origin.Layer() == layer {
			k.specs[s.Origin.File] = append(k.specs[s.Origin.File], s)
		}
	}
	return k
}

// beside returns what is kept of files and pods that a restored layer has
// nothing of.
func (k kept) beside(l Layer) kept {
	specs := make(map[string][]*pod.Spec)
	for file, kept := range k.specs {
		if stood := l.stood(file); !stood.Empty() {
			continue
		}
		for _, s := range kept {
			if l.pods.winner(identOf(s)) == nil {
				specs[file] = append(specs[file], s)
			}
		}
	}
	k.specs = specs
	return k
}

// pod returns a pod as it was kept, nil when it was not.
func (k kept) pod(id ident) *pod.Spec { return k.pods[id.key] }
