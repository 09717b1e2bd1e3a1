package podconfig

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/source"
)

// lastGoodOf returns a last good set that holds files.
func lastGoodOf(files ...source.File) Restored {
	r := Restored{At: noon.Add(-time.Hour)}
	for _, f := range files {
		r.Files = append(r.Files, pod.LastGoodSet{File: f.File, Pods: f.Pods, Objects: f.Objects})
	}
	return r
}

// changedSets writes a batch's ChangedSets: "a{A1,B1} b{}".
func (b Batch) changedSets() string {
	var out []string
	for _, s := range b.ChangedSets {
		var pods []string
		for _, p := range s.Pods {
			pods = append(pods, notation(p))
		}
		for _, o := range s.Objects {
			pods = append(pods, o.Kind)
		}
		out = append(out, s.File+"{"+strings.Join(pods, ",")+"}")
	}
	return strings.Join(out, " ")
}

// Shows: C-1.3.8
func TestC_1_3_8_Restore(t *testing.T) {
	timeout := errors.New("timeout")
	ab := map[string]Restored{one: lastGoodOf(file(one, "a", "A1", "B1"), file(one, "b", "C1"))}
	sources := func(files ...source.File) []source.Source {
		return []source.Source{&scripted{name: one, answers: []answer{{after: time.Second, files: files}}}}
	}
	tests := []struct {
		name     string
		mode     Mode
		restored map[string]Restored
		sources  []source.Source
		want     string // each batch's updates and ChangedSets
	}{
		{
			name: "the source has the same set", restored: ab,
			sources: sources(file(one, "a", "A1", "B1"), file(one, "b", "C1")),
			want:    "00 RESTORE{A1,B1,C1} (file) a{A1,B1} b{C1}\n01 ADD{} (file) \n",
		},
		{
			name: "the source corrects it", restored: ab,
			sources: sources(file(one, "a", "A2"), file(one, "d", "D1")),
			want:    "00 RESTORE{A1,B1,C1} (file) a{A1,B1} b{C1}\n01 REMOVE{B1,C1} (file); ADD{D1} (file); UPDATE{A2} (file) a{A2} b{} d{D1}\n",
		},
		{
			name: "I9 a file is broken, another lacks a pod and has a problem", restored: ab,
			sources: sources(rejecting(file(one, "a", "A2"), "b"), broken("b")),
			want:    "00 RESTORE{A1,B1,C1} (file) a{A1,B1} b{C1}\n01 UPDATE{A2} (file) a{A2,B1}\n",
		},
		{
			name: "I9 moved to another file and rejected there", restored: ab,
			sources: sources(file(one, "a", "A1", "B1"), rejecting(file(one, "c"), "c")),
			want:    "00 RESTORE{A1,B1,C1} (file) a{A1,B1} b{C1}\n01 ADD{} (file) b{} c{C1}\n",
		},
		{
			name: "I9 the source cannot look", restored: ab,
			sources: []source.Source{&scripted{name: one, answers: []answer{
				{after: time.Second, err: timeout}, {after: time.Second, err: timeout}, {after: time.Second, files: []source.File{file(one, "a", "A1", "B1")}},
			}}},
			want: "00 RESTORE{A1,B1,C1} (file) a{A1,B1} b{C1}\n01 — [file timeout since 01] \n03 REMOVE{C1} (file); ADD{} (file) b{}\n",
		},
		{
			name: "the source ends without an answer", restored: ab,
			sources: []source.Source{&scripted{name: one, ends: true}},
			want:    "00 RESTORE{A1,B1,C1} (file) a{A1,B1} b{C1}\n00 — [file ended] \n",
		},
		{
			name:     "layers in their order, the first wins; a set of no layer is ignored",
			restored: map[string]Restored{web: lastGoodOf(file(web, "w", "A2", "D1")), one: lastGoodOf(file(one, "a", "A1")), "file:/gone": lastGoodOf(file("file:/gone", "a", "E1"))},
			sources:  []source.Source{&scripted{name: one}, &scripted{name: two}, &scripted{name: web}},
			want:     "00 RESTORE{A1} (file) a{A1}\n00 RESTORE{D1} (http) w{A2,D1}\n",
		},
		{
			name: "a later layer has nothing that wins", restored: map[string]Restored{one: lastGoodOf(file(one, "a", "A1")), web: lastGoodOf(file(web, "w", "A2"))},
			sources: []source.Source{&scripted{name: one}, &scripted{name: web, answers: []answer{{after: time.Second, files: []source.File{file(web, "w", "A2")}}}}},
			want:    "00 RESTORE{A1} (file) a{A1}\n00 RESTORE{} (http) w{A2}\n01 ADD{} (http) \n",
		},
		{
			name: "the winner's layer corrects itself, the other one's restored pod counts",
			restored: map[string]Restored{
				one: lastGoodOf(file(one, "a", "A1")), web: lastGoodOf(file(web, "w", "A2")),
			},
			sources: []source.Source{&scripted{name: one, answers: []answer{{after: time.Second}}}, &scripted{name: web}},
			want:    "00 RESTORE{A1} (file) a{A1}\n00 RESTORE{} (http) w{A2}\n01 ADD{} (file); UPDATE{A2} (http) a{}\n",
		},
		{
			name: "the last good set is empty", restored: map[string]Restored{one: lastGoodOf()}, sources: sources(),
			want: "00 RESTORE{} (file) \n01 ADD{} (file) \n",
		},
		{
			name: "C-1.3.2 snapshot", mode: Snapshot, restored: ab, sources: sources(file(one, "a", "A1", "B1"), file(one, "b", "C1")),
			want: "00 SET{A1,B1,C1} (file) a{A1,B1} b{C1}\n01 SET{A1,B1,C1} (file) \n",
		},
		{
			name: "C-1.3.3 snapshot and updates", mode: SnapshotAndUpdates, restored: ab, sources: sources(file(one, "a", "A2", "B1"), file(one, "b", "C1")),
			want: "00 SET{A1,B1,C1} (file) a{A1,B1} b{C1}\n01 SET{A2,B1,C1} (file); UPDATE{A2} (file) a{A2,B1}\n",
		},
		{
			name: "snapshot, the last good set is empty", mode: Snapshot, restored: map[string]Restored{one: lastGoodOf()}, sources: sources(),
			want: "00 — \n01 SET{} (file) \n",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				var out strings.Builder
				for b := range New(Config{Sources: test.sources, Mode: test.mode, Restored: test.restored}).Batches(ctx) {
					fmt.Fprintf(&out, "%s %s %s\n", time.Now().UTC().Format("05"), b.text(), b.changedSets())
				}
				check(t, "batches", out.String(), test.want)
			})
		})
	}
}

// TestC_1_3_8_RestoreComesFirst: also after a call of Sync, and where the caller leaves
// at once.
//
// Shows: C-1.3.8
func TestC_1_3_8_RestoreComesFirst(t *testing.T) {
	config := func() *PodConfig {
		return New(Config{
			Sources:  []source.Source{&scripted{name: one, ends: true}, &scripted{name: two, ends: true}},
			Restored: map[string]Restored{one: lastGoodOf(file(one, "a", "A1")), two: lastGoodOf(file(two, "a", "B1"))},
		})
	}
	c := config()
	c.Sync()
	var got []string
	for b := range c.Batches(t.Context()) {
		got = append(got, textOf(b.Updates))
	}
	check(t, "batches", strings.Join(got[:3], "; "), "RESTORE{A1} (file); RESTORE{B1} (file); SET{A1,B1} (*)")
	for range config().Batches(t.Context()) {
		break
	}
}

// TestC_1_3_8_RestoredLayerIsNotReady follows a layer's state from restored to ready.
//
// Shows: C-1.3.8
func TestC_1_3_8_RestoredLayerIsNotReady(t *testing.T) {
	at := func(s int) time.Time { return noon.Add(time.Duration(s) * time.Second) }
	r := lastGoodOf(file(one, "a", "A1", "B1"))
	l := NewLayer(one, nil).WaitingSince(at(0)).Restore(r)
	if s := l.State(); s.Ready || !s.Restored || s.Stale() || s.Pods != 2 || !s.LastGood.Equal(r.At) || !s.Since.Equal(at(0)) || s.Error != "" {
		t.Errorf("restored: %+v", s)
	}
	if m := Merge([]Layer{l}); m.AllReady() {
		t.Error("C-1.2.15: a restored layer counts as ready")
	}
	failed := l.Failed(errors.New("timeout"), at(1)).Failed(errors.New("refused"), at(2))
	if s := failed.State(); s.Ready || !s.Restored || !s.Stale() || s.Pods != 2 || !s.Since.Equal(at(1)) || !s.LastGood.Equal(r.At) || s.Error != "refused" {
		t.Errorf("failed: %+v", s)
	}
	ready := failed.Read(set(file(one, "a", "A1")), at(3))
	if s := ready.State(); !s.Ready || s.Restored || s.Stale() || s.Pods != 1 || !s.Since.IsZero() || !s.LastGood.Equal(at(3)) {
		t.Errorf("ready: %+v", s)
	}
	if ready.specs()[0] != l.specs()[0] {
		t.Error("an unchanged restored pod was replaced")
	}
}

// TestC_1_3_8_RestoredInDisorder: damage on the disk costs at most the damaged content.
//
// Shows: C-1.3.8
func TestC_1_3_8_RestoredInDisorder(t *testing.T) {
	l := NewLayer(one, nil).Restore(lastGoodOf(file(one, "b", "B1"), file(one, "a", "A1"), file(one, "b", "C1"), file(one, "c")))
	check(t, "pods", places(l.specs()), "A1=a B1=b")
	check(t, "read", places(l.Read(set(file(one, "a", "A1"), file(one, "b", "B2")), noon).specs()), "A1=a B2=b")
}

// TestF43_RestoredOwner: the kept pods determine the owner of a duplicate, and from
// then on the owner stays.
//
// Shows: F43
func TestF43_RestoredOwner(t *testing.T) {
	both := lastGoodOf(file(one, "a", "A1"), file(one, "b", "A2"))
	for _, test := range []struct{ name, kept, want string }{
		{"nothing runs", "", "A1=a"}, {"it runs from the second", "b", "A2=b"}, {"it ran from a third", "z", "A1=a"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var kept []*pod.Spec
			if test.kept != "" {
				kept = file(one, test.kept, "A9").Pods
			}
			l := NewLayer(one, kept).Restore(both)
			check(t, "restored", places(l.specs()), test.want)
			check(t, "read", places(l.Read(set(file(one, "a", "A1"), file(one, "b", "A2")), noon).specs()), test.want)
			check(t, "kept from a set", places(l.Read(set(broken("a"), broken("b"), broken("z")), noon).specs()), test.want)
		})
	}
}

// TestI9_RestoredSetLacksABrokenFile_PodsOfTheFileStay: the agent was killed before it wrote
// the set, or a part of the set is damaged, and the file is broken now. Its running pods stay.
//
// Shows: I9
func TestI9_RestoredSetLacksABrokenFile_PodsOfTheFileStay(t *testing.T) {
	kept := slices.Concat(file(one, "a", "A1").Pods, file(one, "b", "B1").Pods, file(one, "c", "C1").Pods, file(one, "d", "D1").Pods)
	l := NewLayer(one, kept).Restore(lastGoodOf(file(one, "a", "A2"), file(one, "c", "E1"), file(one, "e", "D1")))
	check(t, "restored", places(l.specs()), "A2=a D1=e E1=c")
	// b is in no set: its kept version stays. C left its file, D is in another.
	l = l.Read(set(broken("a"), broken("b"), broken("c"), broken("d"), file(one, "e", "D1")), noon)
	check(t, "read", places(l.specs()), "A2=a B1=b D1=e E1=c")
	check(t, "gone", places(l.Read(set(file(one, "e", "D1")), noon).specs()), "D1=e")
}

// TestC_1_3_8_Once_UnreadableLayer_UsesItsRestoredSet: a layer that cannot be read uses the
// set that the previous agent stored.
//
// Shows: C-1.3.8
func TestC_1_3_8_Once_UnreadableLayer_UsesItsRestoredSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		m := New(Config{
			Sources: []source.Source{
				&scripted{name: one, answers: []answer{{after: time.Second, files: []source.File{file(one, "a", "A2")}}}},
				&scripted{name: two, answers: []answer{{after: time.Second, err: errors.New("permission denied")}}},
				&scripted{name: web},
			},
			Restored: map[string]Restored{
				one: lastGoodOf(file(one, "a", "A1", "B1")), two: lastGoodOf(file(two, "a", "C1")), web: lastGoodOf(file(web, "w", "D1")),
			},
		}).Once(ctx)
		check(t, "pods", places(m.Pods.Slice()), "A2=a C1=a D1=w")
		var states []string
		for _, l := range m.Layers {
			since := ""
			if !l.Since.IsZero() {
				since = l.Since.Sub(start).String()
			}
			states = append(states, fmt.Sprintf("%s ready=%t restored=%t %q %s", l.Source, l.Ready, l.Restored, l.Error, since))
		}
		check(t, "layers", strings.Join(states, "; "),
			`file ready=true restored=false "" ; file ready=false restored=true "permission denied" 1s; `+
				`http ready=false restored=true "no answer: context deadline exceeded" 0s`)
	})
}

// TestBatches_SourceDoesNotAnswer_SinceIsWhenTheWaitBegan: Since is set from the first read until the source
// answers.
func TestBatches_SourceDoesNotAnswer_SinceIsWhenTheWaitBegan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		c := New(Config{Sources: []source.Source{
			&scripted{name: one, answers: []answer{{after: time.Second}, {after: time.Second, err: errors.New("x")}}},
			&scripted{name: web, answers: []answer{{after: 3 * time.Second}}},
		}})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		var got []string
		c.Sync()
		for b := range c.Batches(ctx) {
			line := time.Since(start).String()
			for _, l := range b.State.Layers {
				if line += " well"; !l.Since.IsZero() {
					line = strings.TrimSuffix(line, "well") + l.Since.Sub(start).String()
				}
			}
			got = append(got, line)
		}
		check(t, "file, http", strings.Join(got, "; "), "0s 0s 0s; 1s well 0s; 2s 2s 0s; 3s 2s well")
	})
}

// TestBatches_ChangedSetsApplied_GiveTheLastGoodSets: applying every batch's ChangedSets to an empty map gives the last good
// set of every layer.
func TestBatches_ChangedSetsApplied_GiveTheLastGoodSets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		have := make([]map[string]pod.LastGoodSet, len(layerNames))
		for i := range have {
			have[i] = make(map[string]pod.LastGoodSet)
		}
		live(drawEvents(t), func(e event, _, next fold, b Batch) {
			if b.Layer != layerNames[e.layer] {
				t.Fatalf("a batch of %q, sent by %q", b.Layer, layerNames[e.layer])
			}
			if !slices.IsSortedFunc(b.ChangedSets, compareSets) {
				t.Fatalf("out of order: %s", b.changedSets())
			}
			files := have[e.layer]
			for _, s := range b.ChangedSets {
				if was, known := files[s.File]; !known && s.Empty() || known && slices.Equal(was.Pods, s.Pods) && slices.Equal(was.Objects, s.Objects) {
					t.Fatalf("sent again: %s", b.changedSets())
				}
				if files[s.File] = s; s.Empty() {
					delete(files, s.File)
				}
			}
			all := Batch{ChangedSets: next.layers[e.layer].lastGood.Slice()}
			added := Batch{}
			for _, name := range slices.Sorted(maps.Keys(files)) {
				added.ChangedSets = append(added.ChangedSets, files[name])
			}
			if diff := cmp.Diff(all.changedSets(), added.changedSets()); diff != "" {
				t.Fatalf("(-last good set +changes added up):\n%s", diff)
			}
		})
	})
}

// TestC_1_3_8_RestoredIsAnEarlierReading: a restored layer has its old content, and
// corrects itself exactly as one that read the same and kept running. The exception is
// a pod in another file than its origin's, which no record shows.
//
// Shows: C-1.3.8
func TestC_1_3_8_RestoredIsAnEarlierReading(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		before := live(drawReadings(t), nil)
		i := rapid.IntRange(0, len(layerNames)-1).Draw(t, "layer")
		old := before.layers[i]
		restored := NewLayer(layerNames[i], old.specs()).Restore(Restored{Files: old.lastGood.Slice(), At: noon})
		if diff := cmp.Diff(describe(old.specs()), describe(restored.specs())); diff != "" {
			t.Fatalf("(-running +restored):\n%s", diff)
		}
		for s := range old.lastGood.All() {
			if slices.ContainsFunc(s.Pods, func(p *pod.Spec) bool { return p.Origin.File != s.File }) {
				return
			}
		}
		var s source.Snapshot
		for _, e := range drawReadings(t) {
			if e.layer == i && e.err == nil {
				s = e.snapshot
			}
		}
		if diff := cmp.Diff(describe(old.Read(s, noon).specs()), describe(restored.Read(s, noon).specs())); diff != "" {
			t.Fatalf("after a reading (-running +restored):\n%s", diff)
		}
	})
}

// TestC_1_3_ModesReplayToTheState: applying a mode's updates to an empty map gives the
// desired set; and one running Incremental PodConfig can produce the updates of all
// modes.
//
// Shows: C-1.3
func TestC_1_3_ModesReplayToTheState(t *testing.T) {
	for _, mode := range []Mode{Incremental, Snapshot, SnapshotAndUpdates} {
		t.Run(mode.String(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				have := make(map[pod.Key]*pod.Spec)
				live(drawEvents(t), func(_ event, _, next fold, b Batch) {
					for _, u := range mode.Convert(b) {
						if u.Op == SET {
							clear(have)
						}
						for _, s := range u.Pods {
							if have[s.Key] = s; u.Op == REMOVE {
								delete(have, s.Key)
							}
						}
					}
					if len(have) != next.merged.Pods.Len() {
						t.Fatalf("%d pods are in the updates, %d are desired", len(have), next.merged.Pods.Len())
					}
					for s := range next.merged.Pods.All() {
						// Only Incremental reports status, layer and file (C-1.3.5).
						if sent := have[s.Key]; sent == nil || different(sent, s) || mode == Incremental && notation(sent) != notation(s) {
							t.Fatalf("%s is desired, the update had %+v", notation(s), sent)
						}
					}
				})
			})
		})
	}
}

// TestC_1_3_5_SyncIsOneSetOfAllLayers: the answer to Sync is one SET of all layers in
// every mode.
//
// Shows: C-1.3.5
func TestC_1_3_5_SyncIsOneSetOfAllLayers(t *testing.T) {
	b := syncBatch(Merge([]Layer{NewLayer(one, nil).Read(set(file(one, "a", "A1")), noon)}))
	for _, mode := range []Mode{Incremental, Snapshot, SnapshotAndUpdates} {
		check(t, mode.String(), textOf(mode.Convert(b)), "SET{A1} (*)")
	}
}
