package sourcetest

import (
	"context"
	"slices"
	"testing"

	"github.com/nodectl/nodectl/pkg/pod"
)

func nameIsKindAndLocation(t *testing.T, f Fixture) {
	kind, location, err := nameOf(f.Source)
	if err != nil {
		t.Fatalf("name %q is not KIND:LOCATION", f.Source.Name())
	}
	f.Put("a", "pod one x")
	first := Listen(t, f.Source).Set()
	want := pod.Origin{Source: kind, Location: location}.Layer()
	if got := first.Pod("one").Origin.Layer(); got != want {
		t.Errorf("the pod's layer is %q, the source's name %q", got, want)
	}
}

func firstSetIsComplete(t *testing.T, f Fixture) {
	f.Put("b", "pod two x\npod three x")
	f.Put("a", "pod one x")
	f.Put("c", "object conf x\nworkload web x")
	w := Listen(t, f.Source).Set()
	w.Holds(t, "one", "two", "three")
	w.Names(t, "one", "three", "two")
	objects := 0
	for file := range w.Files.All() {
		objects += len(file.Objects)
	}
	want := 2
	if f.PodsOnly {
		want = 0
	}
	if objects != want {
		t.Errorf("%d objects, want %d", objects, want)
	}
}

func emptyPlaceIsASet(t *testing.T, f Fixture) {
	w := Listen(t, f.Source).Set()
	w.Holds(t)
	w.Names(t)
}

func brokenAtFirst(t *testing.T, f Fixture) {
	f.Put("a", "pod one x")
	f.Break()
	l := Listen(t, f.Source)
	_ = l.Error()
	if f.Once {
		l.Ended()
		return
	}
	f.Mend()
	w := l.Set()
	w.Holds(t, "one")
	w.Names(t, "one")
}

func garbageAtFirst(t *testing.T, f Fixture) {
	f.Put("a", "]garbage[")
	w := Listen(t, f.Source).Next()
	if w.Err == nil {
		w.Holds(t, "!")
		hasProblem(t, w)
	}
}

func hasProblem(t *testing.T, w Result) {
	t.Helper()
	for file := range w.Files.All() {
		if (file.Incomplete || len(file.Broken) > 0) && (len(file.Problems) == 0 || file.Problems[0].Msg == "" || file.Problems[0].File == "") {
			t.Errorf("%s is broken and has no problem: %+v", file.File, file.Problems)
		}
	}
}

func endsWhenTheCallerLeaves(t *testing.T, f Fixture) {
	f.Put("a", "pod one x")
	yields := 0
	for range f.Source.Sets(t.Context()) {
		yields++
		break
	}
	if yields != 1 {
		t.Errorf("%d sets or errors, want 1", yields)
	}
}

func endsAfterItsSet(t *testing.T, f Fixture) {
	f.Put("a", "pod one x")
	l := Listen(t, f.Source)
	l.Set().Holds(t, "one")
	l.Ended()
}

func everyChange(t *testing.T, f Fixture) {
	f.Put("a", "pod one x\npod two x")
	l := Listen(t, f.Source)
	l.Set().Holds(t, "one", "two")
	for _, step := range []struct {
		does    func()
		holds   []string
		changes []string
	}{
		{func() { f.Put("b", "pod three x") }, []string{"one", "two", "three"}, []string{"three"}},
		{func() { f.Put("a", "pod one x\npod two y") }, []string{"one", "two", "three"}, []string{"two"}},
		{func() { f.Put("b", "pod three x\npod four x") }, []string{"one", "two", "three", "four"}, []string{"four"}},
		{func() { f.Put("a", "pod one x\n#") }, []string{"one", "three", "four"}, []string{"two"}},
		{func() { f.Put("b", "object conf x\npod three x") }, nil, nil},
		{func() { f.Remove("b") }, []string{"one"}, []string{"three"}},
	} {
		step.does()
		w := l.Settled()
		if step.holds != nil {
			w.Holds(t, step.holds...)
			w.Names(t, step.changes...)
		}
	}
}

func samePointers(t *testing.T, f Fixture) {
	f.Put("a", "pod one x\npod two x")
	l := Listen(t, f.Source)
	first := l.Set()
	f.Put("a", "pod one x\npod two y")
	second := l.Set()
	if first.Pod("one") != second.Pod("one") {
		t.Error("the unchanged pod is another pointer")
	}
	if first.Pod("two") == second.Pod("two") {
		t.Error("the changed pod is the same pointer")
	}
}

func immutable(t *testing.T, f Fixture) {
	f.Put("a", "pod one x")
	f.Put("b", "pod two x")
	l := Listen(t, f.Source)
	first := l.Set()
	files := first.Files.Slice()
	f.Put("a", "pod one y")
	l.Set()
	f.Remove("b")
	l.Settled().Holds(t, "one")
	first.Holds(t, "one", "two")
	for i := range files {
		if files[i].File != first.Files.At(i).File || !slices.Equal(files[i].Pods, first.Files.At(i).Pods) {
			t.Errorf("file %d of the first set became %+v", i, first.Files.At(i))
		}
	}
}

func garbage(t *testing.T, f Fixture) {
	f.Put("a", "pod one x")
	l := Listen(t, f.Source)
	first := l.Set()
	f.Put("a", "]garbage[")
	w := l.Next()
	if w.Err == nil {
		w.Holds(t, "!")
		hasProblem(t, w)
	}
	f.Put("a", "pod one x")
	mended := l.Set()
	mended.Holds(t, "one")
	if mended.Pod("one") != first.Pod("one") {
		t.Error("the pod of the repaired manifest is another pointer")
	}
	f.Put("a", "]garbage[")
	l.Next()
	f.Put("a", "# nothing")
	last := l.Set()
	last.Holds(t)
	if !slices.Contains(last.Changed, first.Pod("one").Key) {
		t.Errorf("the pod after the unreadable text is gone and not reported as broken: %v", last.Changed)
	}
}

func rejected(t *testing.T, f Fixture) {
	f.Put("a", "pod one x\npod two x")
	l := Listen(t, f.Source)
	first := l.Set()
	f.Put("a", "pod one x\nreject two bad field")
	w := l.Set()
	w.Holds(t, "one", "?two")
	hasProblem(t, w)
	if w.Pod("one") != first.Pod("one") {
		t.Error("the good pod beside a rejected one is another pointer")
	}
}

func brokenLater(t *testing.T, f Fixture) {
	f.Put("a", "pod one x")
	l := Listen(t, f.Source)
	first := l.Set()
	for range 2 {
		f.Break()
		_ = l.Error()
		if f.Looked != nil {
			f.Looked() // the same reason is not yielded again
		}
		f.Mend()
		w := l.Set()
		w.Holds(t, "one")
		w.Names(t)
		if w.Pod("one") != first.Pod("one") {
			t.Error("the pod is another pointer after the place came back")
		}
	}
}

func lastRemoved(t *testing.T, f Fixture) {
	f.Put("a", "pod one x")
	l := Listen(t, f.Source)
	l.Set()
	f.Remove("a")
	w := l.Settled()
	w.Holds(t)
	w.Names(t, "one")
}

func endsWithTheContext(t *testing.T, f Fixture) {
	f.Put("a", "pod one x")
	l := Listen(t, f.Source)
	l.Set()
	l.Leave()
	l.Ended()
	done, cancel := context.WithCancel(t.Context())
	cancel()
	for _, err := range f.Source.Sets(done) {
		t.Errorf("the source yielded (error %v) although the context was done", err)
	}
}

func endsWhileBroken(t *testing.T, f Fixture) {
	f.Break()
	l := Listen(t, f.Source)
	_ = l.Error()
	l.Leave()
	l.Ended()
}
