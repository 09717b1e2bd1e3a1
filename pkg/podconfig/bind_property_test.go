package podconfig

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podspec"
	"github.com/nodectl/nodectl/pkg/sorted"
	"github.com/nodectl/nodectl/pkg/source"
)

// drawBindingEvents draws readings of three layers with five pods and the objects they name, and
// the sets that some layers are restored from.
func drawBindingEvents(t *rapid.T) []event {
	var events []event
	if rapid.Bool().Draw(t, "restored") {
		for i, l := range live(drawBindingReadings(t), nil).layers {
			if rapid.IntRange(0, 3).Draw(t, "forgotten") > 0 {
				events = append(events, event{layer: i, restored: &Restored{Files: l.lastGood.Slice(), At: noon.Add(-time.Hour)}})
			}
		}
	}
	return append(events, drawBindingReadings(t)...)
}

func drawBindingReadings(t *rapid.T) []event {
	var events []event
	for range rapid.IntRange(1, 10).Draw(t, "readings") {
		layer := rapid.IntRange(0, 2).Draw(t, "layer")
		if rapid.IntRange(0, 7).Draw(t, "fails") == 0 {
			events = append(events, event{layer: layer, err: errors.New("timeout")})
			continue
		}
		var pods, objects []string
		for _, name := range "ABCDE" {
			if rapid.IntRange(0, 2).Draw(t, "there") == 0 {
				continue
			}
			refs := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"x", "y", "?z", "x.k", "?y.k", "!s", "!s.k", "#d"}), 0, 2, rapid.ID).Draw(t, "refs")
			pods = append(pods, fmt.Sprintf("%c%d=%s", name, rapid.IntRange(1, 2).Draw(t, "version"), strings.Join(refs, ",")))
		}
		for _, name := range []string{"x", "y", "z", "!s", "#d"} {
			if content := rapid.SampledFrom([]string{"", "1", "2", "-", "3!", "4!"}).Draw(t, "content"); content != "" {
				objects = append(objects, name+":"+content)
			}
		}
		l := layerNames[layer]
		files := []source.File{namingFile(l, l+"a", pods...), namingFile(l, l+"b", objects...)}
		if i := rapid.IntRange(0, 5).Draw(t, "breaks"); i < len(files) {
			files[i] = broken(files[i].File)
		}
		events = append(events, event{layer: layer, snapshot: set(files...)})
	}
	return events
}

// restoring converts the updates of a reading to those of a restored layer. Each ADD becomes a
// RESTORE. That of the layer itself comes last and may be empty.
func restoring(layer int, updates []PodUpdate) []PodUpdate {
	kind, location, _ := strings.Cut(layerNames[layer], ":")
	own := PodUpdate{Op: RESTORE, Source: kind, Location: location}
	var out []PodUpdate
	for _, u := range updates {
		switch {
		case u.Op == ADD && u.Location == location:
			own.Pods = u.Pods
			continue
		case u.Op == ADD:
			u.Op = RESTORE
		}
		out = append(out, u)
	}
	return append(out, own)
}

// expected is a plain model of the rules for one pod: which objects it is bound to, and
// whether it lacks any.
func expected(layers []Layer, s *pod.Spec) (data *pod.Data, lacks bool) {
	var objects []*pod.Object
	seen := map[ident]*pod.Object{}
	for _, r := range pod.Refs(s.Pod) {
		id := ident{r.Kind, pod.Key{Namespace: s.Namespace, Name: r.Name}}
		if _, done := seen[id]; !done {
			seen[id] = nil
			for _, l := range layers {
				if o := l.objects.winner(id); o != nil && l.state.Source == s.Origin.Source {
					seen[id], objects = o.value, append(objects, o.value)
					break
				}
			}
		}
		o := seen[id]
		if !r.Optional && (o == nil || r.Key != "" && o.Values()[r.Key] == nil) {
			lacks = true
		}
	}
	return podspec.NewData(objects), lacks
}

// TestI9_BindingRemovesNothing: after every reading each desired pod is bound as the
// rules say or, where it lacks an object, keeps its version from before. No pod is
// removed because an object was, and the incremental result equals the full one.
//
// Shows: I9
func TestI9_BindingRemovesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		live(drawBindingEvents(t), func(e event, old, next fold, b Batch) {
			for s := range next.winners.All() {
				was, now := old.merged.Pod(s.Key), next.merged.Pod(s.Key)
				data, lacks := expected(next.layers, s)
				switch {
				case was != nil && now == nil:
					t.Fatalf("%s was in the set, is desired, and was removed", s.Key)
				case lacks && now != was:
					t.Fatalf("%s lacks something, and is not what it was", s.Key)
				case !lacks && (now == nil || now.Pod != s.Pod || !now.Data.Same(data) || !now.Data.HasContents()):
					t.Fatalf("%s has all it names, and is %+v", s.Key, now)
				case !lacks && was != nil && was.Pod == now.Pod && was.Origin == now.Origin && was.Data.Same(now.Data) && was != now:
					t.Fatalf("%s did not change, and is another", s.Key)
				}
			}
			full := newFold(next.layers, nil, nil)
			if diff := cmp.Diff(problemText(full.merged.Problems), problemText(next.merged.Problems)); diff != "" {
				t.Fatalf("problems (-full +incremental):\n%s", diff)
			}
			if x, y := fmt.Sprint(full.bindings.names.Slice(), full.bindings.users.Slice()), fmt.Sprint(next.bindings.names.Slice(), next.bindings.users.Slice()); x != y {
				t.Fatalf("full %s\nincremental %s", x, y)
			}
			for s := range full.merged.Pods.All() {
				if now := next.merged.Pod(s.Key); now == nil || now.Pod != s.Pod || !now.Data.Same(s.Data) {
					t.Fatalf("%s: full %+v, incremental %+v", s.Key, s, now)
				}
			}
			if diff := cmp.Diff(boundText(full.merged.Pods.Slice()), boundText(slices.DeleteFunc(next.merged.Pods.Slice(), func(s *pod.Spec) bool { return full.merged.Pod(s.Key) == nil }))); diff != "" {
				t.Fatalf("set (-full +incremental):\n%s", diff)
			}
			updates := Diff(old.merged, next.merged)
			if e.restored != nil {
				updates = restoring(e.layer, updates)
			}
			if diff := cmp.Diff(textOf(updates), textOf(b.Updates)); diff != "" {
				t.Fatalf("updates (-full +incremental):\n%s", diff)
			}
		})
	})
}

// TestBind_ObjectChanges_CostDependsOnItsPods: the cost does not depend on how many pods name other
// objects.
func TestBind_ObjectChanges_CostDependsOnItsPods(t *testing.T) {
	cost := func(n int) float64 {
		layer := NewLayer(one, nil)
		var b source.Builder
		for i := range n {
			f := namingFile(one, fmt.Sprintf("p%05d", i), "A1=x", "x:1")
			for _, s := range f.Pods {
				s.Pod.Name = fmt.Sprintf("p%05d", i)
				s.Name = s.Pod.Name
				s.Pod.Spec.Containers[0].EnvFrom[0].ConfigMapRef.Name = fmt.Sprintf("x%05d", i)
			}
			for _, o := range f.Objects {
				o.Name = fmt.Sprintf("x%05d", i)
			}
			b.Put(f, nil)
		}
		c := New(Config{})
		f := newFold([]Layer{layer}, nil, nil)
		f, _, _ = c.take(f, message{snapshot: b.Snapshot()}, noon)
		if f.merged.Pods.Len() != n || f.bindings.unbound.Len() > 0 {
			t.Fatalf("%d of %d pods", f.merged.Pods.Len(), n)
		}
		edits := 100
		return testing.AllocsPerRun(20, func() {
			edits++
			o := thingOf(one, "p00007", "x", fmt.Sprint(edits))
			o.Name = "x00007"
			file, _ := sorted.Find(b.Snapshot().Files, "p00007", compareFile)
			file.Objects = []*pod.Object{o}
			b.Put(file, nil)
			var batch Batch
			f, batch, _ = c.take(f, message{snapshot: b.Snapshot()}, noon.Add(time.Second))
			if got := textOf(batch.Updates); !strings.HasPrefix(got, "UPDATE{P000071} ") {
				t.Fatal(got)
			}
		})
	}
	few, many := cost(50), cost(5000)
	if many > 3*few {
		t.Errorf("%.0f allocations among 50 pods, %.0f among 5,000", few, many)
	}
}

// TestBind_ObjectOfManyPods_IsReadOncePerVersion: an object that many pods name is created, changed and
// deleted. It is read once per version, not once per pod: reading copies its content.
func TestBind_ObjectOfManyPods_IsReadOncePerVersion(t *testing.T) {
	const pods, large, comes = 500, 1 << 19, 3
	small := allocated(func() { oneObjectOfManyPods(t, pods, 1) })
	took := allocated(func() { oneObjectOfManyPods(t, pods, large) })
	if reads := (int64(took) - int64(small)) / large; reads < comes || reads > 10*comes {
		t.Errorf("an object that comes %d times was copied some %d times, for %d pods", comes, reads, pods)
	}
}

// BenchmarkOneObjectOfManyPods: a large object, which is read once, takes hardly longer
// than a small one.
func BenchmarkOneObjectOfManyPods(b *testing.B) {
	for _, size := range []int{1, 1 << 19} {
		b.Run(fmt.Sprintf("bytes=%d", size), func(b *testing.B) {
			for b.Loop() {
				oneObjectOfManyPods(b, 5000, size)
			}
		})
	}
}

func oneObjectOfManyPods(t testing.TB, n, size int) {
	content := strings.Repeat("x", size)
	var specs []*pod.Spec
	for i, s := range slices.Repeat(namingFile(one, "a", "A1=x").Pods, n) {
		c := *s
		p := *s.Pod
		p.Name = fmt.Sprintf("p%05d", i)
		c.Pod, c.Name = &p, p.Name
		specs = append(specs, &c)
	}
	c := New(Config{})
	f := newFold([]Layer{NewLayer(one, nil)}, nil, nil)
	for i, things := range [][]string{{"x:" + content}, {"x:" + content + "2"}, nil, {"x:" + content}} {
		pods := source.File{File: "a", Pods: specs}
		f, _, _ = c.take(f, message{snapshot: set(pods, namingFile(one, "b", things...))}, noon)
		if lacks := len(f.merged.Problems) == n; f.merged.Pods.Len() != n || lacks != (things == nil) {
			t.Fatalf("step %d: %d pods, %d problems", i, f.merged.Pods.Len(), len(f.merged.Problems))
		}
	}
}
