package podconfig

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/sorted"
	"github.com/nodectl/nodectl/pkg/source"
)

// workload returns a workload as layer and file wrote it, at a line. content names its pods in
// the notation of namingFile, and its claims as "#d".
func workload(layer, file string, line int, name, content string) *pod.Object {
	kind, location, _ := strings.Cut(layer, ":")
	w := &appsv1.Deployment{}
	w.Annotations = map[string]string{"pods": content}
	return &pod.Object{
		Key: pod.Key{Namespace: "default", Name: name}, Kind: pod.KindDeployment, Hash: "v1-" + content,
		Origin: pod.Origin{Source: kind, Location: location, File: file, Line: line}, Object: w,
	}
}

// expansion is an Expander whose pods are named by the contents of their workloads. All of them
// have the image that version names.
type expansion struct {
	version atomic.Int64
	due     chan struct{}
	made    map[string]source.File // by workload and version: unchanged pods keep their pointers
	calls   int
}

func newExpansion() *expansion {
	return &expansion{due: make(chan struct{}, 1), made: make(map[string]source.File)}
}

func (e *expansion) Due() <-chan struct{} { return e.due }

func (e *expansion) Expand(workloads []*pod.Object) (pods []*pod.Spec, claims []*pod.Object) {
	e.calls++
	for _, w := range workloads {
		content := w.Object.(*appsv1.Deployment).Annotations["pods"]
		of := fmt.Sprint(w.Name, w.Origin, e.version.Load(), content)
		f, known := e.made[of]
		if !known {
			var things []string
			for thing := range strings.FieldsSeq(content) {
				if thing[0] == '#' {
					thing += ":1"
				}
				things = append(things, thing)
			}
			f = namingFile(w.Origin.Layer(), w.Origin.File, things...)
			yes := true
			owner := []metav1.OwnerReference{{Kind: w.Kind, Name: w.Name, UID: types.UID(w.Name), Controller: &yes}}
			for i, s := range f.Pods {
				f.Pods[i] = hashed(with(s, func(p *v1.Pod) {
					p.Spec.Containers[0].Image += fmt.Sprint("v", e.version.Load())
					p.OwnerReferences = owner
				}))
				f.Pods[i].Origin = w.Origin
			}
			for _, o := range f.Objects {
				o.Origin = w.Origin
			}
			e.made[of] = f
		}
		pods, claims = append(pods, f.Pods...), append(claims, f.Objects...)
	}
	slices.SortStableFunc(pods, func(a, b *pod.Spec) int { return a.Key.Compare(b.Key) })
	slices.SortStableFunc(claims, func(a, b *pod.Object) int { return a.Key.Compare(b.Key) })
	return pods, claims
}

// workloadFile returns a file that holds pods and workloads: "web: A1 B1" is a workload.
func workloadFile(layer, name string, things ...string) source.File {
	var pods []string
	var workloads []*pod.Object
	for i, thing := range things {
		if of, content, is := strings.Cut(thing, ": "); is {
			workloads = append(workloads, workload(layer, name, i+1, of, content))
			continue
		}
		pods = append(pods, thing)
	}
	f := namingFile(layer, name, pods...)
	f.Objects = append(f.Objects, workloads...)
	return f
}

// drawWorkloadReadings draws readings of three layers with pods and workloads that ask for the
// same names. A reading of layer -1 says that the expander is due.
func drawWorkloadReadings(t *rapid.T) []event {
	var events []event
	for range rapid.IntRange(1, 12).Draw(t, "readings") {
		layer := rapid.IntRange(-1, 2).Draw(t, "layer")
		if layer < 0 {
			events = append(events, event{layer: layer})
			continue
		}
		if rapid.IntRange(0, 7).Draw(t, "fails") == 0 {
			events = append(events, event{layer: layer, err: errors.New("timeout")})
			continue
		}
		l := layerNames[layer]
		var files []source.File
		for _, name := range []string{"a", "b"} {
			if rapid.IntRange(0, 5).Draw(t, "breaks") == 0 {
				files = append(files, broken(name))
				continue
			}
			things := rapid.SliceOfN(rapid.SampledFrom([]string{"A1", "B1", "B2", "C1"}), 0, 1).Draw(t, "pods")
			for _, of := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"x", "y", "z"}), 0, 2, rapid.ID).Draw(t, "workloads") {
				asks := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"A1", "B1", "C1", "D1", "E1", "#d", "#e"}), 0, 4, rapid.ID).Draw(t, "asks")
				things = append(things, of+": "+strings.Join(asks, " "))
			}
			files = append(files, workloadFile(l, name, things...))
		}
		events = append(events, event{layer: layer, snapshot: set(files...)})
	}
	return events
}

// expand applies events with PodConfig's own steps and an Expander, and calls each after every
// one of them.
func expand(events []event, e *expansion, each func(old, next fold, b Batch)) {
	c := New(Config{})
	var start []Layer
	for _, name := range layerNames {
		start = append(start, NewLayer(name, nil))
	}
	f, _ := newFold(start, nil, nil).withExpander(e)
	for i, ev := range events {
		now := noon.Add(time.Duration(i) * time.Second)
		var next fold
		var b Batch
		if ev.layer < 0 {
			e.version.Add(1)
			next, b, _ = c.expand(f)
		} else {
			next, b, _ = c.take(f, message{layer: ev.layer, snapshot: ev.snapshot, err: ev.err}, now)
		}
		each(f, next, b)
		f = next
	}
}

// TestExpand_IncrementalIsFull: with an Expander, each step leads to the state of a merge from
// scratch. The updates are those of Diff, and they replay to the state. Every pod that a workload
// asks for is in it, unless a source or another workload has a pod of its name. A step without a
// change of the Expander yields nothing.
//
// Shows: C-1.2.10, C-1.1.3
func TestExpand_IncrementalIsFull(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := newExpansion()
		have := make(map[pod.Key]*pod.Spec)
		expand(drawWorkloadReadings(t), e, func(old, next fold, b Batch) {
			if diff := cmp.Diff(Merge(next.layers), next.merged, plain...); diff != "" {
				t.Fatalf("state (-full +incremental):\n%s", diff)
			}
			if diff := cmp.Diff(Diff(old.merged, next.merged), b.Updates); diff != "" {
				t.Fatalf("updates (-full +incremental):\n%s", diff)
			}
			for _, u := range b.Updates {
				for _, s := range u.Pods {
					if have[s.Key] = s; u.Op == REMOVE {
						delete(have, s.Key)
					}
				}
			}
			replayed := slices.SortedFunc(maps.Values(have), func(a, b *pod.Spec) int { return a.Key.Compare(b.Key) })
			if diff := cmp.Diff(places(next.merged.Pods.Slice()), places(replayed)); diff != "" {
				t.Fatalf("(-state +replayed):\n%s", diff)
			}
			checkExpanded(t, e, next)
			if again, b, news := New(Config{}).expand(next); news || !again.merged.Pods.Is(next.merged.Pods) {
				t.Fatalf("expanded again: %s", textOf(b.Updates))
			}
		})
	})
}

// checkExpanded compares the merged state with the pods that the workloads in it ask for.
func checkExpanded(t *rapid.T, e *expansion, f fold) {
	var workloads []*pod.Object
	counts := make(map[string]int)
	for o := range f.merged.Objects.All() {
		if pod.IsWorkload(o.Kind) {
			workloads = append(workloads, o)
		}
	}
	pods, claims := e.Expand(workloads)
	asked := make(map[pod.Key][]pod.Origin)
	for _, s := range pods {
		asked[s.Key] = append(asked[s.Key], s.Origin)
	}
	for key, origins := range asked {
		got := f.merged.Pod(key)
		if got == nil {
			t.Fatalf("%s, which a workload asks for, is not desired", key)
		}
		defined := slices.ContainsFunc(f.layers, func(l Layer) bool { return !l.isExpansion() && l.pods.winner(ident{kindPod, key}) != nil })
		if !defined && !slices.Contains(origins, got.Origin) {
			t.Fatalf("%s is of %s, and the workloads at %v ask for it", key, got.Origin, origins)
		}
		if at := func(o pod.Origin) int { return slices.Index(layerNames, o.Layer()) }; !defined {
			for _, o := range origins {
				if at(o) < at(got.Origin) {
					t.Fatalf("%s is of layer %s, and a workload of layer %s asks for it", key, got.Origin.Layer(), o.Layer())
				}
			}
		}
		if !defined {
			counts[got.Origin.Layer()]++
		}
		conflicts := 0
		for _, c := range f.merged.Conflicts {
			if c.Key == key && c.Kind == kindPod {
				conflicts++
			}
		}
		if defined && conflicts == 0 || len(origins) > 1 && conflicts == 0 {
			t.Fatalf("%s has no conflict, although several places ask for it", key)
		}
	}
	for _, o := range claims {
		if f.merged.Object(o.Kind, o.Key) == nil {
			t.Fatalf("claim %s is missing", o.Key)
		}
	}
	for s := range f.merged.Pods.All() {
		if _, wanted := asked[s.Key]; !wanted && strings.Contains(notation(s), "v") {
			t.Fatalf("%s is desired, and no workload asks for it", notation(s))
		}
	}
}

// TestExpand_StatesAreImmutable: no later step writes to a state that was given out.
//
// Shows: C-1.2.11
func TestExpand_StatesAreImmutable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		print := func(m *Merged) string {
			return fmt.Sprint(describe(m.Pods.Slice()), conflictTexts(m.Conflicts), m.Layers, m.Objects.Len())
		}
		var states []*Merged
		var texts []string
		expand(drawWorkloadReadings(t), newExpansion(), func(_, next fold, _ Batch) {
			states, texts = append(states, next.merged), append(texts, print(next.merged))
		})
		for i, m := range states {
			if diff := cmp.Diff(texts[i], print(m)); diff != "" {
				t.Fatalf("a state changed after it was given out:\n%s", diff)
			}
		}
	})
}

// TestExpand_ReadingBringsThePodsOfItsWorkloads: a layer becomes ready in the batch that has the
// pods of its workloads, and the removal of a workload removes its pods.
func TestExpand_ReadingBringsThePodsOfItsWorkloads(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := New(Config{Expander: newExpansion(), Sources: []source.Source{&scripted{name: one, answers: []answer{
			{files: []source.File{workloadFile(one, "a", "A1", "web: B1 C1")}},
			{after: time.Second, files: []source.File{workloadFile(one, "a", "A1", "web: B1")}},
			{after: time.Second, files: []source.File{workloadFile(one, "a", "A1")}},
		}}}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var layers []int
		got := listen(func(yield func(Batch) bool) {
			for b := range c.Batches(ctx) {
				layers = append(layers, b.State.Layers[0].Pods)
				if !yield(b) {
					return
				}
			}
		})
		check(t, "batches", got, "00 ADD{A1,B1v0,C1v0} (file)\n01 REMOVE{C1v0} (file)\n02 REMOVE{B1v0} (file)\n")
		check(t, "pods of the layer", fmt.Sprint(layers), "[3 2 1]")
	})
}

// TestExpand_Due_YieldsABatchOfItsOwn: in every mode, also after every source has ended.
func TestExpand_Due_YieldsABatchOfItsOwn(t *testing.T) {
	t.Parallel()
	for mode, want := range map[Mode]string{
		Incremental:        "UPDATE{B1v1} (file)",
		Snapshot:           "SET{B1v1} (*)",
		SnapshotAndUpdates: "UPDATE{B1v1} (file)",
	} {
		synctest.Test(t, func(t *testing.T) {
			e := newExpansion()
			c := New(Config{Mode: mode, Expander: e, Sources: []source.Source{&scripted{name: one, ends: true, answers: []answer{
				{files: []source.File{workloadFile(one, "a", "web: B1")}},
			}}}})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			time.AfterFunc(time.Second, func() { e.due <- struct{}{} }) // nothing has changed
			time.AfterFunc(2*time.Second, func() { e.version.Add(1); e.due <- struct{}{} })
			var got []string
			for b := range c.Batches(ctx) {
				got = append(got, b.Layer+" "+textOf(b.Updates))
			}
			if len(got) != 3 || got[2] != AllSources+" "+want {
				t.Errorf("%s: %q, want the last one of three to be %s", mode, got, want)
			}
		})
	}
}

// TestExpand_NeverDue_EndsWithItsSources: a command that follows its sources ends when they do.
func TestExpand_NeverDue_EndsWithItsSources(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := newExpansion()
		e.due = nil
		c := New(Config{Expander: e, Sources: []source.Source{&scripted{name: one, ends: true, answers: []answer{{files: []source.File{workloadFile(one, "a", "web: B1")}}}}}})
		check(t, "batches", listen(c.Batches(t.Context())), "00 ADD{B1v0} (file)\n00 — [file ended]\n")
	})
}

// TestExpand_RestoredLayer_HasThePodsOfItsWorkloads: before its source answers.
//
// Shows: C-1.3.8
func TestExpand_RestoredLayer_HasThePodsOfItsWorkloads(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := New(Config{
			Expander: newExpansion(), Restored: map[string]Restored{one: lastGoodOf(workloadFile(one, "a", "A1", "web: B1"))},
			Sources: []source.Source{&scripted{name: one, ends: true, answers: []answer{{after: time.Second, files: []source.File{workloadFile(one, "a", "A1", "web: B1")}}}}},
		})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		check(t, "batches", listen(c.Batches(ctx)), "00 RESTORE{A1,B1v0} (file)\n01 ADD{} (file)\n01 — [file ended]\n")
	})
}

// TestExpand_PodOfASource_Wins: it is a conflict; a claim that a source defines is used.
func TestExpand_PodOfASource_Wins(t *testing.T) {
	t.Parallel()
	c := New(Config{Expander: newExpansion(), Sources: []source.Source{
		&scripted{name: one, ends: true, answers: []answer{{files: []source.File{workloadFile(one, "a", "web: B1=#d #d")}}}},
		&scripted{name: two, ends: true, answers: []answer{{files: []source.File{namingFile(two, "b", "B2", "#d:9")}}}},
	}})
	m := c.Once(t.Context())
	check(t, "pods", places(m.Pods.Slice()), "B2=b")
	check(t, "conflicts", conflictTexts(m.Conflicts), "B b:1 over a:1: "+reasonPod)
	check(t, "claim", m.Object(pod.KindClaim, pod.Key{Namespace: "default", Name: "d"}).Origin.String(), "b:1")
}

// TestExpand_Claims_BindThePods: a pod is bound to the claim that its workload asks for, and only
// pods that may see the workload's source are.
func TestExpand_Claims_BindThePods(t *testing.T) {
	t.Parallel()
	c := New(Config{Expander: newExpansion(), Sources: []source.Source{
		&scripted{name: one, ends: true, answers: []answer{{files: []source.File{workloadFile(one, "a", "A1=#d", "web: B1=#d #d")}}}},
		&scripted{name: web, ends: true, answers: []answer{{files: []source.File{namingFile(web, "b", "C1=#d")}}}},
	}})
	m := c.Once(t.Context())
	check(t, "pods", boundText(m.Pods.Slice()), "A1{#d1} B1v0{#d1}")
	if len(m.Problems) != 1 || m.Problems[0].Pod.Name != "c" {
		t.Errorf("problems %v, want one of c", m.Problems)
	}
}

// TestExpand_TwoWorkloadsAskForOnePod_TheOwnerKeepsIt: also when a line is inserted above it.
//
// Shows: F43
func TestExpand_TwoWorkloadsAskForOnePod_TheOwnerKeepsIt(t *testing.T) {
	t.Parallel()
	e := newExpansion()
	start := []Layer{NewLayer(one, nil)}
	f, _ := newFold(start, nil, nil).withExpander(e)
	for _, step := range []struct{ things, want string }{
		{"web: B1", "B1v0=a"},
		{"web: B1;x: B2 C1", "B1v0=a C1v0=a"},
		{"x: B2 C1;web: B1", "B1v0=a C1v0=a"},
		{"x: B2 C1", "B2v0=a C1v0=a"},
	} {
		f, _ = f.step(0, f.layers[0].Read(set(workloadFile(one, "a", strings.Split(step.things, ";")...)), noon))
		check(t, step.things, places(f.merged.Pods.Slice()), step.want)
	}
}

// TestExpand_WorkloadsOfTwoLayersAskForOnePod_TheEarlierLayerWins: in any order of the readings, as
// pods of two sources do. The other workload's pod is a conflict, and follows when the first one is
// removed.
//
// Shows: F43
func TestExpand_WorkloadsOfTwoLayersAskForOnePod_TheEarlierLayerWins(t *testing.T) {
	t.Parallel()
	first, second := set(workloadFile(one, "a", "web: B1 C1")), set(workloadFile(two, "b", "x: B2 D1"))
	for name, order := range map[string][]int{"the earlier layer first": {0, 1}, "the later layer first": {1, 0}} {
		f, _ := newFold([]Layer{NewLayer(one, nil), NewLayer(two, nil)}, nil, nil).withExpander(newExpansion())
		for _, i := range order {
			f, _ = f.step(i, f.layers[i].Read([]source.Snapshot{first, second}[i], noon))
		}
		check(t, name, places(f.merged.Pods.Slice()), "B1v0=a C1v0=a D1v0=b")
		check(t, name+": conflicts", conflictTexts(f.merged.Conflicts), "B a:1 over b:1: "+reasonLayer)
		check(t, name+": pods of the layers", fmt.Sprint(f.merged.Layers[0].Pods, f.merged.Layers[1].Pods), "2 2")
		f, _ = f.step(0, f.layers[0].Read(set(), noon))
		check(t, name+": removed", places(f.merged.Pods.Slice()), "B2v0=b D1v0=b")
		check(t, name+": conflicts of the removed one", conflictTexts(f.merged.Conflicts), "")
	}
}

// TestExpanded_AfterOnce_FollowsTheExpander: a set that was checked without its workloads' pods
// runs with them.
func TestExpanded_AfterOnce_FollowsTheExpander(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := New(Config{Sources: []source.Source{&scripted{name: one, ends: true, answers: []answer{{files: []source.File{workloadFile(one, "a", "A1", "web: B1")}}}}}})
		check(t, "checked", places(c.Once(t.Context()).Pods.Slice()), "A1=a")
		e := newExpansion()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		time.AfterFunc(time.Second, func() { e.version.Add(1); e.due <- struct{}{} })
		check(t, "batches", listen(c.Expanded(ctx, e)), "00 SET{A1,B1v0} (*)\n01 UPDATE{B1v1} (file)\n")
	})
}

// TestExpand_UnchangedWorkloads_AreNotExpanded: a reading that changes no workload does not ask
// the expander.
func TestExpand_UnchangedWorkloads_AreNotExpanded(t *testing.T) {
	t.Parallel()
	e := newExpansion()
	f, _ := newFold([]Layer{NewLayer(one, nil)}, nil, nil).withExpander(e)
	f, _ = f.step(0, f.layers[0].Read(set(workloadFile(one, "a", "A1", "web: B1")), noon))
	before := e.calls
	f, pods := f.step(0, f.layers[0].Read(set(workloadFile(one, "a", "A2", "web: B1")), noon))
	if e.calls != before || len(pods) != 1 {
		t.Errorf("%d calls, and %d pods differ", e.calls-before, len(pods))
	}
	var none sorted.List[*pod.Spec]
	if f.merged.Pods.Is(none) {
		t.Error("no pods")
	}
}

// TestI9_BrokenFileWithoutALastGoodSet_KeepsThePodsOfItsWorkloads: those of a workload that can be
// read are the workload's.
//
// Shows: I9
func TestI9_BrokenFileWithoutALastGoodSet_KeepsThePodsOfItsWorkloads(t *testing.T) {
	t.Parallel()
	e := newExpansion()
	var kept []*pod.Spec
	for _, o := range []*pod.Object{workload(one, "a", 1, "web", "B1 C1"), workload(one, "a", 2, "db", "D1")} {
		pods, _ := e.Expand([]*pod.Object{o})
		kept = append(kept, pods...)
	}
	f, _ := newFold([]Layer{NewLayer(one, kept)}, kept, nil).withExpander(e)
	half := workloadFile(one, "a", "web: B1")
	half.Problems = []pod.Problem{{File: "a", Line: 2, Msg: "unknown field"}}
	f, _ = f.step(0, f.layers[0].Read(set(half), noon))
	check(t, "pods", places(f.merged.Pods.Slice()), "B1v0=a D1v0=a")
	check(t, "conflicts", conflictTexts(f.merged.Conflicts), "")
	f, _ = f.step(0, f.layers[0].Read(set(workloadFile(one, "a", "web: B1", "db: D1")), noon))
	check(t, "when it is fixed", places(f.merged.Pods.Slice()), "B1v0=a D1v0=a")
}
