package podconfig

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/sorted"
	"github.com/nodectl/nodectl/pkg/source"
)

// event is one reading of one layer in a random sequence, or the set it was restored
// from.
type event struct {
	layer    int
	snapshot source.Snapshot
	err      error
	restored *Restored
}

var layerNames = []string{one, two, web}

// drawEvents draws the readings of three layers, and the sets from which some of them are restored.
// Such a set is the end of another sequence, without some parts.
func drawEvents(t *rapid.T) []event {
	var out []event
	if rapid.Bool().Draw(t, "restored") {
		for i, l := range live(drawReadings(t), nil).layers {
			if rapid.IntRange(0, 3).Draw(t, "forgotten") == 0 {
				continue
			}
			files := slices.DeleteFunc(l.lastGood.Slice(), func(pod.LastGoodSet) bool { return rapid.IntRange(0, 5).Draw(t, "damaged") == 0 })
			out = append(out, event{layer: i, restored: &Restored{Files: files, At: noon.Add(-time.Hour)}})
		}
	}
	return append(out, drawReadings(t)...)
}

// drawReadings draws the readings of three layers, a few files and pods each, so that duplicates,
// moves and mistakes are frequent. Readings share their unchanged parts, or nothing at all.
func drawReadings(t *rapid.T) []event {
	disks := make([]map[string]source.File, len(layerNames))
	for i := range disks {
		disks[i] = make(map[string]source.File)
	}
	names := []string{"a", "b", "c", "d"}
	var out []event
	for range rapid.IntRange(1, 12).Draw(t, "readings") {
		layer := rapid.IntRange(0, len(disks)-1).Draw(t, "layer")
		if rapid.IntRange(0, 5).Draw(t, "fails") == 0 {
			out = append(out, event{layer: layer, err: errors.New("timeout")})
			continue
		}
		disk := disks[layer]
		for range rapid.IntRange(0, 3).Draw(t, "edits") {
			name := rapid.SampledFrom(names[:3]).Draw(t, "file")
			switch rapid.IntRange(0, 5).Draw(t, "edit") {
			case 0:
				delete(disk, name)
			case 1:
				disk[name] = broken(name)
			default:
				var pods []string
				for range rapid.IntRange(0, 3).Draw(t, "pods") {
					pods = append(pods, rapid.StringMatching(`[A-D][12](s[12])?'?`).Draw(t, "pod"))
				}
				f := file(layerNames[layer], name, pods...)
				for range rapid.IntRange(0, 1).Draw(t, "objects") {
					f.Objects = append(f.Objects, object(layerNames[layer], name, "x", rapid.SampledFrom(names).Draw(t, "content")))
				}
				rejected := rapid.SliceOfNDistinct(rapid.SampledFrom(names), 0, 1, rapid.ID).Draw(t, "rejected")
				disk[name] = rejecting(f, rejected...)
			}
		}
		var read []source.File
		shared := rapid.Bool().Draw(t, "shared")
		for _, name := range slices.Sorted(maps.Keys(disk)) {
			f := disk[name]
			if !shared {
				f = unshared(f)
				disk[name] = f
			}
			read = append(read, f)
		}
		out = append(out, event{layer: layer, snapshot: set(read...)})
	}
	return out
}

// unshared returns a reading that shares nothing with f.
func unshared(f source.File) source.File {
	f.Problems, f.Broken = slices.Clone(f.Problems), slices.Clone(f.Broken)
	f.Pods = slices.Clone(f.Pods)
	for i, s := range f.Pods {
		c := *s
		c.Pod = s.Pod.DeepCopy()
		f.Pods[i] = &c
	}
	f.Objects = slices.Clone(f.Objects)
	for i, o := range f.Objects {
		c := *o
		f.Objects[i] = &c
	}
	return f
}

// model is a plain implementation of a layer: per file its last good set, per pod the
// file that owns it.
type model struct {
	lastGood map[string][]*pod.Spec
	owner    map[pod.Key]string
	won      map[pod.Key]*pod.Spec
}

func (m *model) read(s source.Snapshot) {
	lastGood := make(map[string][]*pod.Spec)
	for f := range s.Files.All() {
		lastGood[f.File] = slices.Clone(f.Pods)
		for _, old := range m.lastGood[f.File] {
			read := slices.ContainsFunc(f.Pods, func(p *pod.Spec) bool { return p.Key == old.Key })
			if len(f.Problems) > 0 && !read {
				lastGood[f.File] = append(lastGood[f.File], old)
			}
		}
	}
	holders := func(key pod.Key) (files []string, pods []*pod.Spec) {
		for _, name := range slices.Sorted(maps.Keys(lastGood)) {
			if i := slices.IndexFunc(lastGood[name], func(p *pod.Spec) bool { return p.Key == key }); i >= 0 {
				files, pods = append(files, name), append(pods, lastGood[name][i])
			}
		}
		return files, pods
	}
	for key, last := range m.won {
		if files, _ := holders(key); len(files) > 0 {
			continue
		}
		for f := range s.Files.All() {
			if slices.Contains(f.Broken, key) {
				lastGood[f.File] = append(lastGood[f.File], last)
				break
			}
		}
	}
	owner, won := make(map[pod.Key]string), make(map[pod.Key]*pod.Spec)
	for _, pods := range lastGood {
		for _, p := range pods {
			files, specs := holders(p.Key)
			i := slices.Index(files, m.owner[p.Key])
			if last := m.won[p.Key]; i < 0 && last != nil {
				i = slices.IndexFunc(specs, func(s *pod.Spec) bool { return !different(last, s) })
			}
			i = max(i, 0)
			owner[p.Key], won[p.Key] = files[i], specs[i]
		}
	}
	*m = model{lastGood, owner, won}
}

// plain compares lists by their content.
var plain = []cmp.Option{
	cmp.Transformer("slice", sorted.List[*pod.Spec].Slice), cmp.Transformer("slice", sorted.List[*pod.Object].Slice),
}

// describe writes a set of pods with their origins, in full.
func describe(pods []*pod.Spec) string {
	var b strings.Builder
	for _, s := range pods {
		fmt.Fprintf(&b, "%s %s %s:%d\n", notation(s), s.Origin.Layer(), s.Origin.File, s.Origin.Line)
	}
	return b.String()
}

// live applies events with PodConfig's own steps, and calls each after every one of
// them.
func live(events []event, each func(e event, old, next fold, b Batch)) fold {
	c := New(Config{})
	var start []Layer
	for _, name := range layerNames {
		start = append(start, NewLayer(name, nil))
	}
	f := newFold(start, nil, nil)
	for i, e := range events {
		now := noon.Add(time.Duration(i) * time.Second)
		var next fold
		var b Batch
		if e.restored != nil {
			next, b = c.restore(f, e.layer, *e.restored)
		} else {
			next, b, _ = c.take(f, message{layer: e.layer, snapshot: e.snapshot, err: e.err}, now)
		}
		if each != nil {
			each(e, f, next, b)
		}
		f = next
	}
	return f
}

// TestF40_F43_LayerAgainstModel: a layer equals the model, however little of a reading
// it looks at.
//
// Shows: F40, F43
func TestF40_F43_LayerAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var models [3]model
		live(drawEvents(t), func(e event, _, next fold, _ Batch) {
			m := &models[e.layer]
			switch {
			case e.restored != nil:
				m.read(reread(*e.restored))
			case e.err == nil:
				m.read(e.snapshot)
			}
			want := slices.SortedFunc(maps.Values(m.won), func(a, b *pod.Spec) int { return a.Key.Compare(b.Key) })
			if diff := cmp.Diff(describe(want), describe(next.layers[e.layer].specs())); diff != "" {
				t.Fatalf("layer %d (-model +layer):\n%s", e.layer, diff)
			}
		})
	})
}

// reread returns the reading that would lead to the restored set.
func reread(r Restored) source.Snapshot {
	var files []source.File
	for _, s := range r.Files {
		files = append(files, source.File{File: s.File, Pods: s.Pods, Objects: s.Objects})
	}
	return set(files...)
}

// TestC_1_2_10_IncrementalIsFull: incremental steps lead to the same states, updates and conflicts
// as the full pass; so does a step that missed others before it.
//
// Shows: C-1.2.10
func TestC_1_2_10_IncrementalIsFull(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var folds []fold
		last := live(drawEvents(t), func(e event, old, next fold, b Batch) {
			if diff := cmp.Diff(Merge(next.layers), next.merged, plain...); diff != "" {
				t.Fatalf("state (-full +incremental):\n%s", diff)
			}
			full := Diff(old.merged, next.merged)
			if e.restored != nil {
				full = asRestored(e.layer, full)
			}
			if diff := cmp.Diff(full, b.Updates); diff != "" {
				t.Fatalf("updates (-full +incremental):\n%s", diff)
			}
			folds = append(folds, old)
		})
		missed := rapid.SampledFrom(folds).Draw(t, "missed since")
		before := missed.merged
		for i, l := range last.layers {
			next, pods := missed.step(i, l)
			if diff := cmp.Diff(Diff(missed.merged, next.merged), diffPods(missed.merged, next.merged, pods)); diff != "" {
				t.Fatalf("updates after missed steps:\n%s", diff)
			}
			missed = next
		}
		if diff := cmp.Diff(last.merged, missed.merged, plain...); diff != "" {
			t.Fatalf("state after missed steps, since %v:\n%s", before, diff)
		}
	})
}

// asRestored converts the updates of a reading to the RESTORE of a restored layer.
func asRestored(layer int, updates []PodUpdate) []PodUpdate {
	kind, location, _ := strings.Cut(layerNames[layer], ":")
	u := PodUpdate{Op: RESTORE, Source: kind, Location: location}
	for _, add := range updates {
		if add.Op != ADD {
			return append(updates, u) // no RESTORE is equal to it
		}
		u.Pods = append(u.Pods, add.Pods...)
	}
	return []PodUpdate{u}
}

// TestC_1_1_3_ReplayYieldsState: applying every update to an empty map gives the state;
// REMOVE names only pods that are in it.
//
// Shows: C-1.1.3
func TestC_1_1_3_ReplayYieldsState(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		have := make(map[pod.Key]*pod.Spec)
		live(drawEvents(t), func(_ event, _, next fold, b Batch) {
			for _, u := range b.Updates {
				for i, s := range u.Pods {
					known := have[s.Key]
					if (known == nil) != (u.Op == ADD || u.Op == RESTORE) {
						t.Fatalf("%s of %s, known before: %t", u.Op, s.Key, known != nil)
					}
					switch u.Op {
					case REMOVE:
						if next.merged.Pod(s.Key) != nil {
							t.Fatalf("REMOVE of %s, which is desired", s.Key)
						}
						if notation(s) != notation(known) {
							t.Fatalf("REMOVE of %s, last known %s", notation(s), notation(known))
						}
						delete(have, s.Key)
						continue
					case ADD, RESTORE:
					default:
						if notation(u.Old[i]) != notation(known) {
							t.Fatalf("%s from %s, last known %s", u.Op, notation(u.Old[i]), notation(known))
						}
					}
					have[s.Key] = s
				}
			}
			replayed := slices.SortedFunc(maps.Values(have), func(a, b *pod.Spec) int { return a.Key.Compare(b.Key) })
			if diff := cmp.Diff(places(next.merged.Pods.Slice()), places(replayed)); diff != "" {
				t.Fatalf("(-state +replayed):\n%s", diff)
			}
		})
	})
}

// TestI9_UnansweredSourceRemovesNothing: a source that cannot be read changes no pod, object or
// conflict, and one whose files all break removes nothing.
//
// Shows: I9
func TestI9_UnansweredSourceRemovesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := live(drawEvents(t), func(e event, old, next fold, b Batch) {
			if e.err == nil {
				return
			}
			if len(b.Updates) > 0 || !old.merged.Pods.Is(next.merged.Pods) ||
				!old.merged.Objects.Is(next.merged.Objects) || !same(old.merged.Conflicts, next.merged.Conflicts) {
				t.Fatalf("a failure led to %s", textOf(b.Updates))
			}
		})
		i := rapid.IntRange(0, len(layerNames)-1).Draw(t, "breaks")
		var all []source.File
		for file := range f.layers[i].files.All() {
			all = append(all, broken(file.File))
		}
		if !f.layers[i].state.Ready {
			for s := range f.layers[i].lastGood.All() {
				all = append(all, broken(s.File))
			}
		}
		next, _ := f.step(i, f.layers[i].Read(set(all...), noon))
		if diff := cmp.Diff(describe(f.merged.Pods.Slice()), describe(next.merged.Pods.Slice())); diff != "" {
			t.Fatalf("when every file broke:\n%s", diff)
		}
	})
}

// TestC_1_3_6_ArrivalOrderDoesNotMatter: only the content of each layer counts, not
// which of them was read first.
//
// Shows: C-1.3.6
func TestC_1_3_6_ArrivalOrderDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		events := drawEvents(t)
		var queues [3][]event
		var other []event
		for _, e := range events {
			if e.restored != nil { // before any reading, in layer order
				other = append(other, e)
				continue
			}
			queues[e.layer] = append(queues[e.layer], e)
		}
		for len(other) < len(events) {
			i := rapid.IntRange(0, 2).Draw(t, "next")
			for len(queues[i]) == 0 {
				i = (i + 1) % 3
			}
			other = append(other, queues[i][0])
			queues[i] = queues[i][1:]
		}
		a, b := live(events, nil).merged, live(other, nil).merged
		for _, m := range []*Merged{a, b} {
			for i := range m.Layers { // times are those of the readings
				m.Layers[i].LastGood, m.Layers[i].Since = time.Time{}, time.Time{}
			}
		}
		if diff := cmp.Diff(a, b, plain...); diff != "" {
			t.Fatalf("(-one order +another):\n%s", diff)
		}
	})
}

// TestC_1_2_8_ReadingIsRepeated_CausesNoUpdate: repeating the last reading of every layer leads to no
// update, whether it shares memory with the first or not.
//
// Shows: C-1.2.8
func TestC_1_2_8_ReadingIsRepeated_CausesNoUpdate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := live(drawEvents(t), nil)
		c := New(Config{})
		for i, l := range f.layers {
			if !l.state.Ready || l.state.Error != "" {
				continue
			}
			s := source.Snapshot{Files: l.files, Skipped: l.skipped}
			if rapid.Bool().Draw(t, "unshared") {
				all := s.Files.Slice()
				for j := range all {
					all[j] = unshared(all[j])
				}
				s.Files = source.FilesOf(all...)
			}
			next, b, news := c.take(f, message{layer: i, snapshot: s}, noon)
			if news || !f.merged.Pods.Is(next.merged.Pods) {
				t.Fatalf("sent again: %s", textOf(b.Updates))
			}
		}
	})
}

// TestF43_PermutationsAgree: however the files of a first reading are shuffled,
// the same files own the same pods.
//
// Shows: F43
func TestF43_PermutationsAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		files := []source.File{file(one, "a", "A1", "B1"), file(one, "b", "B2", "A2"), file(one, "c", "B1", "C1"), broken("d")}
		shuffled := rapid.Permutation(files).Draw(t, "files")
		a := Merge([]Layer{NewLayer(one, nil).Read(set(files...), noon)})
		b := Merge([]Layer{NewLayer(one, nil).Read(set(shuffled...), noon)})
		if diff := cmp.Diff(a, b, plain...); diff != "" {
			t.Fatal(diff)
		}
	})
}

// TestC_1_2_11_StatesAreImmutable: no later step writes to a state that was given out.
//
// Shows: C-1.2.11
func TestC_1_2_11_StatesAreImmutable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type given struct {
			state *Merged
			text  string
		}
		print := func(m *Merged) string {
			return fmt.Sprint(describe(m.Pods.Slice()), conflictTexts(m.Conflicts), m.Layers, m.Problems, m.Skipped, m.Objects.Len())
		}
		var all []given
		live(drawEvents(t), func(_ event, _, next fold, _ Batch) {
			all = append(all, given{next.merged, print(next.merged)})
		})
		for _, g := range all {
			if diff := cmp.Diff(g.text, print(g.state)); diff != "" {
				t.Fatalf("a state changed after it was given out:\n%s", diff)
			}
		}
	})
}
