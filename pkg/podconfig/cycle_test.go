package podconfig

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/sorted"
	"github.com/nodectl/nodectl/pkg/source"
)

// ordering reads pods in the notation of podOf, each with ">" and the names of
// those it depends on behind it: "A1>bc".
func ordering(layer, name string, pods ...string) source.File {
	var specs []*pod.Spec
	for _, text := range pods {
		text, on, _ := strings.Cut(text, ">")
		s := with(podOf(text), func(p *v1.Pod) {
			p.Spec.NodeName = "n1"
			if on != "" {
				p.Annotations = map[string]string{pod.AnnotationDependsOn: strings.Join(strings.Split(on, ""), ",")}
			}
		})
		for _, other := range on {
			s.DependsOn = append(s.DependsOn, pod.Dependency{Name: string(other), Until: pod.Started})
		}
		specs = append(specs, hashed(s))
	}
	return source.File{File: name, Pods: in(layer, name, specs...)}
}

// orderText writes pods in the notation of ordering.
func orderText(m *Merged) string {
	var out []string
	for s := range m.Pods.All() {
		text := notation(s)
		if len(s.DependsOn) > 0 {
			text += ">"
		}
		for _, d := range s.DependsOn {
			text += d.Name
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}

// problemText writes problems, one a line.
func problemText(ps []pod.Problem) string {
	var out []string
	for _, p := range ps {
		out = append(out, fmt.Sprintf("%s:%d %s", p.File, p.Line, p.Msg))
	}
	return strings.Join(out, "\n")
}

// TestP21_CyclesAreRejected: the effects of a cycle of new pods, of known pods, and of
// both, over files and layers.
//
// Shows: P21
func TestP21_CyclesAreRejected(t *testing.T) {
	t.Parallel()
	type step struct {
		layer string
		files []source.File
		want  string // the set, then the updates
	}
	a := func(pods ...string) source.File { return ordering(one, "a", pods...) }
	b := func(pods ...string) source.File { return ordering(one, "b", pods...) }
	for name, c := range map[string]struct {
		kept     []*pod.Spec
		steps    []step
		problems string
	}{
		"a chain is none": {nil, []step{{one, []source.File{a("A1>bc", "B1>c", "C1"), b("D1>a")}, "A1>bc B1>c C1 D1>a"}}, ""},
		"itself":          {nil, []step{{one, []source.File{a("A1>a", "B1>a")}, "B1>a"}}, "a:1 pod default/a depends on itself: a -> a"},
		"all new, over two files": {nil, []step{{one, []source.File{a("A1>b", "D1"), b("B1>c", "C1>a")}, "D1"}},
			"a:1 pod default/a depends on itself: a -> b -> c -> a\nb:1 pod default/b depends on itself: b -> c -> a -> b\nb:2 pod default/c depends on itself: c -> a -> b -> c"},
		"a pod that only leads to a cycle stays": {nil, []step{{one, []source.File{a("A1>b", "B1>b", "C1>a")}, "A1>b C1>a"}}, "a:2 pod default/b depends on itself: b -> b"},
		"between two cycles": {nil, []step{{one, []source.File{a("A1>a", "B1>ac", "C1>c")}, "B1>ac"}},
			"a:1 pod default/a depends on itself: a -> a\na:3 pod default/c depends on itself: c -> c"},
		"the one that was there keeps its last good version": {nil, []step{
			{one, []source.File{a("A1>b"), b("B1")}, "A1>b B1"},
			{one, []source.File{a("A1>b"), b("B2>a")}, "A1>b B1"},
			{one, []source.File{a("A1>b"), b("B3>a")}, "A1>b B1"},
			{one, []source.File{a("A2"), b("B3>a")}, "A2 B3>a"},
		}, ""},
		"it is gone when its manifest is": {nil, []step{
			{one, []source.File{a("A1>b"), b("B1")}, "A1>b B1"},
			{one, []source.File{a("A1>b"), b("B2>a")}, "A1>b B1"},
			{one, []source.File{a("A1>b")}, "A1>b"},
		}, ""},
		"the new one is left out": {nil, []step{
			{one, []source.File{a("A1>b")}, "A1>b"},
			{one, []source.File{a("A1>b"), b("B1>a")}, "A1>b"},
		}, "b:1 pod default/b depends on itself: b -> a -> b"},
		"both edited": {nil, []step{
			{one, []source.File{a("A1", "B1")}, "A1 B1"},
			{one, []source.File{a("A2>b", "B2>a", "C1")}, "A1 B1 C1"},
		}, "a:1 pod default/a depends on itself: a -> b -> a\na:2 pod default/b depends on itself: b -> a -> b"},
		"the last good versions make another cycle": {nil, []step{
			{one, []source.File{a("A1>c", "B1")}, "A1>c B1"},
			{one, []source.File{a("A2>b", "B2>a", "C1>a")}, "A1>c B1"},
		}, "a:1 pod default/a depends on itself: a -> b -> a\na:2 pod default/b depends on itself: b -> a -> b\na:3 pod default/c depends on itself: c -> a -> c"},
		"over layers": {nil, []step{
			{one, []source.File{a("A1>b")}, "A1>b"},
			{two, []source.File{ordering(two, "x", "B1>a")}, ""},
		}, "a:1 pod default/a depends on itself: a -> b -> a\nx:1 pod default/b depends on itself: b -> a -> b"},
		"over layers, later": {nil, []step{
			{one, []source.File{a("A1>b")}, "A1>b"},
			{two, nil, "A1>b"},
			{two, []source.File{ordering(two, "x", "B1>a")}, "A1>b"},
		}, "x:1 pod default/b depends on itself: b -> a -> b"},
		"running pods stay at the first reading": {a("A1", "B1>a").Pods, []step{
			{one, []source.File{a("A2>b", "B1>a", "C1>c")}, "A1 B1>a"},
		}, "a:1 pod default/a depends on itself: a -> b -> a\na:3 pod default/c depends on itself: c -> c"},
		"a cycle of running pods stays": {a("A1>b", "B1>a").Pods, []step{
			{one, []source.File{a("A1>b", "B1>a")}, "A1>b B1>a"},
		}, "a:1 pod default/a depends on itself: a -> b -> a\na:2 pod default/b depends on itself: b -> a -> b"},
		"C-1.2.9 a pod that is being deleted waits for no other": {nil, []step{
			{one, []source.File{a("A1>b", "B1'>a")}, "A1>b B1'>a"},
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := New(Config{Recorded: c.kept})
			layers := []Layer{NewLayer(one, nil), NewLayer(two, nil)}
			f := newFold(layers, c.kept, nil)
			for i, s := range c.steps {
				f, _, _ = config.take(f, message{layer: slices.Index([]string{one, two}, s.layer), snapshot: set(s.files...)}, noon)
				if got := orderText(f.merged); got != s.want {
					t.Errorf("step %d: %q, want %q", i, got, s.want)
				}
			}
			if diff := cmp.Diff(c.problems, problemText(f.merged.Problems)); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
			for _, p := range f.merged.Problems {
				if p.Path != "metadata.annotations[nodectl.dev/depends-on]" || p.Hint == "" {
					t.Errorf("problem %+v", p)
				}
			}
		})
	}
}

// TestP21_NamesWithTheNodesSuffix: a name means the pod of that name, or else the one
// with the node's suffix; never one of another namespace.
//
// Shows: P21
func TestP21_NamesWithTheNodesSuffix(t *testing.T) {
	t.Parallel()
	spec := func(namespace, name string, on ...string) *pod.Spec {
		s := with(podOf("A1"), func(p *v1.Pod) { p.Namespace, p.Name, p.Spec.NodeName = namespace, name, "n1" })
		for _, name := range on {
			s.DependsOn = append(s.DependsOn, pod.Dependency{Name: name, Until: pod.Done})
		}
		return s
	}
	for name, c := range map[string]struct {
		pods []*pod.Spec
		want string
	}{
		"without":                    {[]*pod.Spec{spec("x", "a-n1", "b"), spec("x", "b-n1", "a")}, "x/a-n1 x/b-n1"},
		"with":                       {[]*pod.Spec{spec("x", "a-n1", "b-n1"), spec("x", "b-n1", "a")}, "x/a-n1 x/b-n1"},
		"another namespace":          {[]*pod.Spec{spec("x", "a-n1", "b"), spec("y", "b-n1", "a")}, ""},
		"as it is written, if there": {[]*pod.Spec{spec("x", "a-n1", "b"), spec("x", "b"), spec("x", "b-n1", "a")}, ""},
		"an API server's pod":        {[]*pod.Spec{spec("x", "a", "b"), spec("x", "b-n1", "a")}, "x/a x/b-n1"},
		"itself":                     {[]*pod.Spec{spec("x", "a-n1", "a")}, "x/a-n1"},
	} {
		m := Merge([]Layer{NewLayer(one, nil).Read(set(source.File{File: "a", Pods: c.pods}), noon)})
		var out []string
		for _, p := range m.Problems {
			out = append(out, strings.Fields(p.Msg)[1])
		}
		if got := strings.Join(out, " "); got != c.want || m.Pods.Len() != len(c.pods)-len(out) {
			t.Errorf("%s: %q rejected and %d pods left, want %q", name, got, m.Pods.Len(), c.want)
		}
	}
}

// TestP21_RestartDuringACycle_NoPodStopsOrStarts: after a restart of the agent during a cycle, the new
// agent neither stops a pod nor starts one that was left out.
//
// Shows: P21
func TestP21_RestartDuringACycle_NoPodStopsOrStarts(t *testing.T) {
	t.Parallel()
	runs := ordering(one, "a", "A1>b", "B1").Pods
	written := ordering(one, "a", "A1>b", "B2>a", "C1>c")
	c := New(Config{Recorded: runs})
	f := newFold([]Layer{NewLayer(one, runs), NewLayer(two, runs)}, runs, nil)
	f, b := c.restore(f, 0, Restored{Files: []pod.LastGoodSet{{File: "a", Pods: written.Pods}}, At: noon})
	if got := textOf(b.Updates) + " " + orderText(f.merged); got != "RESTORE{A1,B1} (file) A1>b B1" {
		t.Error(got)
	}
	f, b, _ = c.take(f, message{snapshot: set(written)}, noon)
	if got := textOf(b.Updates) + " " + orderText(f.merged); got != "ADD{} (file) A1>b B1" {
		t.Error(got)
	}
	// A second layer's set closes a cycle with the first one's restored pods.
	f = newFold([]Layer{NewLayer(one, nil), NewLayer(two, nil)}, nil, nil)
	f, _ = c.restore(f, 0, Restored{Files: []pod.LastGoodSet{{File: "a", Pods: ordering(one, "a", "A1>b").Pods}}, At: noon})
	f, b = c.restore(f, 1, Restored{Files: []pod.LastGoodSet{{File: "x", Pods: ordering(two, "x", "B1>a", "C1").Pods}}, At: noon})
	if got := textOf(b.Updates) + " " + orderText(f.merged); got != "REMOVE{A1} (file); RESTORE{C1} (file) C1" {
		t.Error(got)
	}
}

// TestP21_LargeCyclesAreNamedInPart: of thousands of pods on one cycle each has one
// problem, which names some of them. Ten times the pods take ten times the memory, not
// a hundred times: no pod follows the whole cycle.
//
// Shows: P21
func TestP21_LargeCyclesAreNamedInPart(t *testing.T) {
	merged := func(n int) uint64 {
		var pods []*pod.Spec
		for i := range n {
			s := with(podOf("A1"), func(p *v1.Pod) { p.Name = fmt.Sprint("p", i) })
			s.DependsOn = []pod.Dependency{{Name: fmt.Sprint("p", (i+1)%n), Until: pod.Ready}}
			pods = append(pods, s)
		}
		layer := NewLayer(one, nil).Read(set(source.File{File: "a", Pods: pods}), noon)
		var m *Merged
		took := allocated(func() { m = Merge([]Layer{layer}) })
		if m.Pods.Len() > 0 || len(m.Problems) != n {
			t.Fatalf("%d pods, %d problems", m.Pods.Len(), len(m.Problems))
		}
		first, want := "pod default/p0 depends on itself: p0 -> p1 -> p2 -> p3 -> p4 -> p5 -> p6 -> p7 -> p8 -> p9 -> p10 -> … (%d more)", "depends on itself, through some of %d pods"
		if got := m.Problems[0].Msg; got != fmt.Sprintf(first, n-10) {
			t.Errorf("%q", got)
		}
		for _, p := range m.Problems[1:] {
			if !strings.HasSuffix(p.Msg, fmt.Sprintf(want, n)) {
				t.Errorf("%q, want …%q", p.Msg, want)
			}
		}
		return took
	}
	if few, many := merged(500), merged(5000); many > 30*few {
		t.Errorf("a cycle of 500 takes %d bytes, of 5000 %d", few, many)
	}
}

// TestBreakCycles_LongNames_ProblemsAreNoLargerThanThePods: an attacker writes rings of
// pods with the longest names. The problems hold a few times the bytes of the names.
func TestBreakCycles_LongNames_ProblemsAreNoLargerThanThePods(t *testing.T) {
	t.Parallel()
	for _, ring := range []int{2, 10, 11, 100} {
		var pods []*pod.Spec
		name := func(i int) string { return fmt.Sprintf("p%06d%s", i, strings.Repeat("x", 246)) }
		written := 0
		for i := range 1000 - 1000%ring {
			s := with(podOf("A1"), func(p *v1.Pod) { p.Name = name(i) })
			s.DependsOn = []pod.Dependency{{Name: name(i - i%ring + (i+1)%ring), Until: pod.Started}}
			pods, written = append(pods, s), written+2*len(name(i))
		}
		m := Merge([]Layer{NewLayer(one, nil).Read(set(source.File{File: "a", Pods: pods}), noon)})
		if len(m.Problems) != len(pods) || m.Pods.Len() > 0 {
			t.Fatalf("rings of %d: %d problems, %d pods left", ring, len(m.Problems), m.Pods.Len())
		}
		size := 0
		for _, p := range m.Problems {
			size += len(p.Msg)
		}
		if size > 3*written {
			t.Errorf("rings of %d: problems of %d bytes about names of %d", ring, size, written)
		}
	}
}

// TestBreakCycles_NewCycleAfterEachRound_EndsAfterAFew: an attacker writes versions
// of pods so that each restored version closes the next cycle. With one round per pod,
// this many pods would take minutes.
func TestBreakCycles_NewCycleAfterEachRound_EndsAfterAFew(t *testing.T) {
	t.Parallel()
	const n = 15_000
	of := func(i, on int, namespace, version string) *pod.Spec {
		s := with(podOf("A"+version), func(p *v1.Pod) { p.Namespace, p.Name = namespace, fmt.Sprintf("p%05d", i) })
		if on >= 0 {
			s.DependsOn = []pod.Dependency{{Name: fmt.Sprintf("p%05d", on), Until: pod.Started}}
		}
		return s
	}
	var old, now []*pod.Spec
	for i := range n {
		on := i + 1
		if on == n {
			on = -1
		}
		old = append(old, of(i, on, "evil", "1"))
		if i == 0 {
			now = append(now, of(i, 1, "evil", "1"))
		} else {
			now = append(now, of(i, i-1, "evil", "2"))
		}
	}
	// A namespace without cycles reverses a dependency meanwhile.
	old = append(old, of(0, 1, "good", "1"), of(1, 2, "good", "1"), of(2, -1, "good", "1"))
	now = append(now, of(0, 2, "good", "2"), of(1, 0, "good", "2"), of(2, -1, "good", "2"))
	layer := NewLayer(one, nil)
	f := newFold([]Layer{layer}, nil, nil)
	for _, pods := range [][]*pod.Spec{old, now} {
		layer = layer.Read(set(source.File{File: "a", Pods: pods}), noon)
		f, _ = f.step(0, layer)
	}
	if f.merged.Pods.Len() != n+3 {
		t.Fatalf("%d pods are in the set", f.merged.Pods.Len())
	}
	for s := range f.merged.Pods.All() {
		version := "A1"
		if s.Namespace == "good" {
			version = "A2"
		}
		if got := notation(s); !strings.HasSuffix(got, version[1:]) {
			t.Fatalf("%s is in the set as %s, want version %s", s.Key, got, version)
		}
	}
	if len(f.merged.Problems) != n-1 {
		t.Errorf("%d problems, want one for each pod that was put back", len(f.merged.Problems))
	}
}

// allocated returns how many bytes f allocates. A test that calls it is not parallel.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// drawOrderings draws readings of two layers with five pods that depend on each other.
func drawOrderings(t *rapid.T) []event {
	var events []event
	for range rapid.IntRange(1, 8).Draw(t, "readings") {
		layer := rapid.IntRange(0, 1).Draw(t, "layer")
		var pods []string
		for _, name := range "abcde" {
			if rapid.IntRange(0, 3).Draw(t, "there") == 0 {
				continue
			}
			text := strings.ToUpper(string(name)) + fmt.Sprint(rapid.IntRange(1, 2).Draw(t, "version"))
			if on := rapid.SampledFrom([]string{"", "", "", "a", "b", "c", "d", "e", "bd", "ea"}).Draw(t, "on"); on != "" {
				text += ">" + on
			}
			pods = append(pods, text)
		}
		events = append(events, event{layer: layer, snapshot: set(ordering(layerNames[layer], "a", pods...))})
	}
	return events
}

// TestP21_AnyEdit_SetHasNoCycle: after any edit the set has no cycle, and pods of the set that are
// still defined stay in it. Only pods that a problem names differ from their files, and the updates
// lead from set to set.
//
// Shows: P21
func TestP21_AnyEdit_SetHasNoCycle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		have := map[pod.Key]*pod.Spec{}
		live(drawOrderings(t), func(e event, old, next fold, b Batch) {
			if again := breakCycles(next.merged.Pods, next.merged.Pods, sorted.List[*pod.Spec]{}, nil); len(again.problems) > 0 {
				t.Fatalf("%s: cycles are left: %v", orderText(next.merged), again.problems)
			}
			named := map[string]bool{}
			for _, p := range next.merged.Problems {
				named[strings.Fields(p.Msg)[1]] = true
			}
			for s := range next.winners.All() {
				now := next.merged.Pod(s.Key)
				if now != s && !named[s.Key.String()] {
					t.Fatalf("%s is not as it is written, and no problem says why", s.Key)
				}
				if now == nil && old.merged.Pod(s.Key) != nil && old.layers[e.layer].state.Ready {
					t.Fatalf("%s was in the set, is desired, and was removed", s.Key)
				}
			}
			full := breakCycles(next.winners, next.ordered, next.before, nil)
			if !maps.Equal(full.replacements, next.cycles.replacements) {
				t.Fatalf("incremental %v, full %v", next.cycles.replacements, full.replacements)
			}
			for _, u := range b.Updates {
				for _, s := range u.Pods {
					if u.Op == REMOVE {
						delete(have, s.Key)
					} else {
						have[s.Key] = s
					}
				}
			}
			if len(have) != next.merged.Pods.Len() {
				t.Fatalf("updates lead to %d pods, the set has %d", len(have), next.merged.Pods.Len())
			}
			for s := range next.merged.Pods.All() {
				if have[s.Key] == nil || different(have[s.Key], s) {
					t.Fatalf("updates lead to another version of %s", s.Key)
				}
			}
		})
	})
}

// TestC_1_3_6_CyclesDoNotDependOnTheOrderOfReadings: the first readings of layers lead to
// the same set in any order, which is that of reading each once.
//
// Shows: C-1.3.6
func TestC_1_3_6_CyclesDoNotDependOnTheOrderOfReadings(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		first, second := drawOrderings(t)[0], drawOrderings(t)[0]
		first.layer, second.layer = 0, 1
		kept := drawOrderings(t)[0].snapshot.Files.At(0).Pods
		play := func(events ...event) fold {
			c := New(Config{Recorded: kept})
			f := newFold([]Layer{NewLayer(one, kept), NewLayer(two, kept)}, kept, nil)
			for _, e := range events {
				f, _, _ = c.take(f, message{layer: e.layer, snapshot: e.snapshot}, noon)
			}
			return f
		}
		a, b := play(first, second), play(second, first)
		once := newFold(a.layers, kept, nil)
		for _, other := range []fold{b, once} {
			if orderText(a.merged) != orderText(other.merged) || problemText(a.merged.Problems) != problemText(other.merged.Problems) {
				t.Fatalf("%s\n%s\nor\n%s\n%s", orderText(a.merged), problemText(a.merged.Problems), orderText(other.merged), problemText(other.merged.Problems))
			}
		}
	})
}

// sortedPods returns a list of pods in the order of their keys.
func sortedPods(pods ...*pod.Spec) sorted.List[*pod.Spec] {
	slices.SortFunc(pods, func(a, b *pod.Spec) int { return a.Key.Compare(b.Key) })
	return sorted.Of(pods...)
}

// A static pod depends on a name. A user of the API server creates a pod of that name, which depends
// on the static pod. The static pod's dependency refers to another pod: it is on no cycle, when it
// is new and when it is edited.
func TestBreakCycles_PodOfAnotherSourceHasTheName_IsNotMeant(t *testing.T) {
	t.Parallel()
	spec := func(source, name, on string) *pod.Spec {
		s := with(podOf("A1"), func(p *v1.Pod) { p.Namespace, p.Name, p.Spec.NodeName = "x", name, "n1" })
		s.Origin.Source = source
		if on != "" {
			s.DependsOn = []pod.Dependency{{Name: on, Until: pod.Ready}}
		}
		return s
	}
	mine := spec("file", "web-n1", "db")
	all := sortedPods(spec("api", "db", "web"), mine, spec("file", "db-n1", ""))
	before := map[string]sorted.List[*pod.Spec]{
		"the pod is new":    {},
		"the pod is edited": sortedPods(spec("api", "db", "web"), spec("file", "web-n1", ""), spec("file", "db-n1", "")),
	}
	for name, before := range before {
		if c := breakCycles(all, all, before, nil); len(c.replacements)+len(c.problems) > 0 {
			t.Errorf("%s: replacements %v, problems %v", name, c.replacements, c.problems)
		}
		// Where the policy lets one kind name the objects of the other, it is a cycle.
		if c := breakCycles(sortedPods(spec("api", "db", "web"), mine), all, before, func(string, string) bool { return true }); len(c.problems) == 0 {
			t.Errorf("%s: a cycle that the policy allows is not found", name)
		}
	}
}
