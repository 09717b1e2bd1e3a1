package tui

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/nodectl/nodectl/pkg/feed"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/ui"
)

// keepUpdates is the number of lines of updates that the state keeps for scrolling.
const keepUpdates = 1000

// state is the state of pods and sources from a stream of updates. Only the goroutine that
// runs the model uses it.
type state struct {
	pods        map[pod.Key]*podLine
	order       []*podLine // by key
	sources     map[layer]*sourceLine
	sourceLines []*sourceLine              // in the order in which they first appeared
	rejected    map[string]*rejection      // by file
	conflicts   map[pod.Key]map[layer]bool // by pod: the layers and files of the manifests not in use
	updates     []updateLine               // the newest last
	dropped     int                        // number of lines removed from updates
}

// layer names a source, or a file of one.
type layer struct{ source, location, file string }

// podLine is one pod.
type podLine struct {
	key   pod.Key
	name  string // namespace/name, clean
	from  *sourceLine
	file  string
	place string // file:line, clean
	op    string // of its last change, clean
	at    time.Time
}

// sourceLine is one source.
type sourceLine struct {
	source, location string // clean
	pods             int
	rejects          int // number of files with a rejected manifest
	ready, restored  bool
	failing          bool
	since            time.Time // the start of the failure
	reason           string    // clean
}

// rejection has the problems of a file, with their start times, and the file's source.
type rejection struct {
	from     *sourceLine
	problems map[pod.Problem]time.Time
}

// updateLine is one line of the latest updates, clean.
type updateLine struct {
	at                        time.Time
	op, source, subject, text string
}

func newState() *state {
	return &state{
		pods: map[pod.Key]*podLine{}, sources: map[layer]*sourceLine{},
		rejected: map[string]*rejection{}, conflicts: map[pod.Key]map[layer]bool{},
	}
}

// apply applies updates in the order of the stream.
func (s *state) apply(updates []ui.PodUpdate) {
	var fresh []*podLine
	gone := 0
	for _, u := range updates {
		at, _ := time.Parse(time.RFC3339, u.Time)
		s.addLines(u, at)
		switch podconfig.Op(u.Op) {
		case feed.ERROR:
			s.failed(u, at)
		case feed.REJECT:
			s.reject(u, at)
		case feed.CONFLICT:
			s.conflict(u)
		case feed.DROPPED:
			s.forgetProblems()
		case feed.NOTICE:
		case podconfig.SET:
			fresh = append(fresh, s.set(u, at)...)
			gone += len(s.order) // at most
		case podconfig.REMOVE:
			for _, p := range u.Pods {
				gone += s.remove(pod.Key{Namespace: p.Namespace, Name: p.Name})
			}
		default:
			fresh = append(fresh, s.change(u, at)...)
		}
	}
	s.place(fresh, gone)
}

// place removes gone pods from order, and inserts fresh ones: a few one by one, many with one sort.
func (s *state) place(fresh []*podLine, gone int) {
	const few = 16
	if gone > 0 {
		s.order = slices.DeleteFunc(s.order, func(p *podLine) bool { return s.pods[p.key] != p })
	}
	// One update may add a pod and a later one of the same batch remove it.
	fresh = slices.DeleteFunc(fresh, func(p *podLine) bool { return s.pods[p.key] != p })
	if len(fresh) > few {
		s.order = append(s.order, fresh...)
		slices.SortFunc(s.order, byKey)
		return
	}
	for _, p := range fresh {
		i, _ := slices.BinarySearchFunc(s.order, p, byKey)
		s.order = slices.Insert(s.order, i, p)
	}
}

func byKey(a, b *podLine) int {
	return cmp.Or(strings.Compare(a.key.Namespace, b.key.Namespace), strings.Compare(a.key.Name, b.key.Name))
}

// sourceOf returns the line of an update's source, or nil if the update has none.
func (s *state) sourceOf(source, location string) *sourceLine {
	if source == "" || source == podconfig.AllSources {
		return nil
	}
	l := layer{source: source, location: location}
	if s.sources[l] == nil {
		s.sources[l] = &sourceLine{source: ui.Clean(source), location: ui.Clean(location)}
		s.sourceLines = append(s.sourceLines, s.sources[l])
	}
	return s.sources[l]
}

// change applies an update that adds or changes pods.
func (s *state) change(u ui.PodUpdate, at time.Time) (fresh []*podLine) {
	from := s.sourceOf(u.Source, u.Location)
	s.answered(from, u.Op)
	for _, p := range u.Pods {
		if line := s.setPod(p, from, u.Op, at); line != nil {
			fresh = append(fresh, line)
		}
	}
	return fresh
}

// answered records that a source has answered. A restored set is no answer of the source
// (C-1.3.8).
func (s *state) answered(from *sourceLine, op string) {
	switch {
	case from == nil:
	case podconfig.Op(op) == podconfig.RESTORE:
		from.restored = !from.ready
	default:
		from.ready, from.restored = true, false
		if !from.failing && podconfig.Op(op) != podconfig.SET {
			from.since = time.Time{}
		}
	}
}

// set applies a SET, which does not name the source of each pod. A pod known from the same
// file keeps its source. Any other belongs to the source whose location is a prefix of its
// file, or else to the source of the update.
func (s *state) set(u ui.PodUpdate, at time.Time) (fresh []*podLine) {
	updated := s.sourceOf(u.Source, u.Location)
	s.answered(updated, u.Op)
	inSet := make(map[pod.Key]bool, len(u.Pods))
	for _, p := range u.Pods {
		key := pod.Key{Namespace: p.Namespace, Name: p.Name}
		inSet[key] = true
		if known := s.pods[key]; known != nil && known.file == p.Origin.File {
			continue // the set does not show whether it has changed
		}
		if line := s.setPod(p, s.owner(p.Origin.File, updated), u.Op, at); line != nil {
			fresh = append(fresh, line)
		}
	}
	for key := range s.pods {
		if !inSet[key] {
			s.remove(key)
		}
	}
	return fresh
}

// owner returns the source whose location is the longest prefix of the file, or else otherwise.
func (s *state) owner(file string, otherwise *sourceLine) *sourceLine {
	best, length := otherwise, -1
	for l, line := range s.sources {
		if strings.HasPrefix(file, l.location) && len(l.location) > length {
			best, length = line, len(l.location)
		}
	}
	return best
}

// setPod updates the line of a desired pod, and returns the line if it is new.
func (s *state) setPod(p ui.UpdatePod, from *sourceLine, op string, at time.Time) (fresh *podLine) {
	key := pod.Key{Namespace: p.Namespace, Name: p.Name}
	line := s.pods[key]
	if line == nil {
		line = &podLine{key: key, name: ui.Clean(key.String())}
		s.pods[key], fresh = line, line
	} else if line.from != nil {
		line.from.pods--
	}
	if from != nil {
		from.pods++
	}
	line.from, line.op, line.at = from, ui.Clean(op), at
	line.file, line.place = p.Origin.File, ui.Clean(pod.Origin{File: p.Origin.File, Line: p.Origin.Line}.String())
	return fresh
}

// marks returns words for the problems of a pod's manifest or name.
func (s *state) marks(p *podLine) string {
	var all []string
	if s.rejected[p.file] != nil {
		all = append(all, "rejected")
	}
	if len(s.conflicts[p.key]) > 0 {
		all = append(all, "conflict")
	}
	return strings.Join(all, ",")
}

// remove removes a pod and returns the number of removed pods, 0 or 1.
func (s *state) remove(key pod.Key) int {
	line := s.pods[key]
	if line == nil {
		return 0
	}
	if line.from != nil {
		line.from.pods--
	}
	delete(s.pods, key)
	return 1
}

// addLines appends the lines of an update.
func (s *state) addLines(u ui.PodUpdate, at time.Time) {
	rows := ui.Rows(u)
	if len(rows) > keepUpdates {
		rows = rows[len(rows)-keepUpdates:]
	}
	source := ui.Clean(u.Source)
	for _, r := range rows {
		s.updates = append(s.updates, updateLine{at, ui.Clean(u.Op), source, ui.Clean(r.What), ui.Clean(r.Text)})
	}
	if old := len(s.updates) - keepUpdates; old > keepUpdates { // not at every line, since it copies all
		s.updates = slices.Clone(s.updates[old:])
		s.dropped += old
	}
}
