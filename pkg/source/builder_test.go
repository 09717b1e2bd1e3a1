package source

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodectl/nodectl/pkg/pod"
)

func spec(file, name, hash string) *pod.Spec {
	return &pod.Spec{Key: pod.Key{Namespace: "default", Name: name}, Hash: hash, Origin: pod.Origin{File: file}}
}

func names(keys []pod.Key) []string {
	out := []string{}
	for _, k := range keys {
		out = append(out, k.Name)
	}
	return out
}

func wantChanged(t *testing.T, s Snapshot, want ...string) {
	t.Helper()
	if got := names(s.Changed); !slices.Equal(got, append([]string{}, want...)) {
		t.Errorf("revision %d: changed %q, want %q", s.Revision, got, want)
	}
}

func TestBuilderNamesAddedChangedAndRemovedKeys(t *testing.T) {
	var b Builder
	wantChanged(t, b.Snapshot())
	b.Put(File{File: "b", Pods: []*pod.Spec{spec("b", "two", "1"), spec("b", "three", "1")}}, nil)
	b.Put(File{File: "a", Pods: []*pod.Spec{spec("a", "one", "1")}}, nil)
	first := b.Snapshot()
	wantChanged(t, first, "one", "three", "two")
	if first.Files.At(0).File != "a" || first.Files.At(1).File != "b" {
		t.Errorf("files are not in byte order: %v", b.Files())
	}
	b.Put(File{File: "b", Pods: []*pod.Spec{spec("b", "two", "2"), spec("b", "four", "1")}}, nil)
	second := b.Snapshot()
	wantChanged(t, second, "four", "three", "two")
	b.Remove("a")
	third := b.Snapshot()
	wantChanged(t, third, "one")
	if third.Revision != 4 {
		t.Errorf("revision %d, want 4", third.Revision)
	}
	if first.Files.Len() != 2 || len(first.Files.At(1).Pods) != 2 || first.Files.At(1).Pods[0].Hash != "1" {
		t.Errorf("an older snapshot was written to: %+v", first.Files)
	}
}

// TestBuilderSharesNothingBesideTheContent: the hash covers neither a pod's UID
// nor its status.
func TestBuilderSharesNothingBesideTheContent(t *testing.T) {
	with := func(uid, version string) []*pod.Spec {
		s := spec("a", "one", "1")
		s.Pod = &v1.Pod{}
		s.Pod.ObjectMeta = metav1.ObjectMeta{UID: types.UID(uid), ResourceVersion: version}
		return []*pod.Spec{s}
	}
	var b Builder
	b.Put(File{File: "a", Pods: with("u", "1")}, nil)
	wantChanged(t, b.Snapshot(), "one")
	for _, next := range []struct {
		uid, version string
		differs      bool
	}{{"u", "1", false}, {"v", "1", true}, {"v", "2", true}} {
		if differs := b.Put(File{File: "a", Pods: with(next.uid, next.version)}, nil); differs != next.differs {
			t.Errorf("%+v: differs %v", next, differs)
		}
	}
	wantChanged(t, b.Snapshot(), "one")
}

func TestBuilderSharesPointersAcrossABrokenReading(t *testing.T) {
	var b Builder
	b.Put(File{File: "a", Pods: []*pod.Spec{spec("a", "one", "1"), spec("a", "two", "1")}}, nil)
	first := b.Snapshot()
	if b.Put(File{File: "a", Pods: []*pod.Spec{spec("a", "one", "1"), spec("a", "two", "1")}}, nil) || b.Dirty() {
		t.Error("an equal reading counts as a change")
	}
	b.Put(File{File: "a", Incomplete: true, Problems: []pod.Problem{{File: "a", Msg: "garbage"}}}, nil)
	b.Snapshot()
	b.Put(File{File: "a", Pods: []*pod.Spec{spec("a", "one", "1"), spec("a", "two", "2")}}, nil)
	last := b.Snapshot()
	if last.Files.At(0).Pods[0] != first.Files.At(0).Pods[0] {
		t.Error("the unchanged pod is not the same pointer")
	}
	if last.Files.At(0).Pods[1] == first.Files.At(0).Pods[1] {
		t.Error("the changed pod is the same pointer")
	}
}

// Changed names a key that a broken file kept and no longer keeps, although neither of
// the two snapshots has it.
//
// Shows: I9
func TestI9_BuilderNamesKeysThatStopStanding(t *testing.T) {
	broken := File{File: "a", Incomplete: true, Problems: []pod.Problem{{Msg: "garbage"}}}
	for name, end := range map[string]func(*Builder){
		"the file is mended without it": func(b *Builder) { b.Put(File{File: "a"}, nil) },
		"the file is removed":           func(b *Builder) { b.Remove("a") },
	} {
		t.Run(name, func(t *testing.T) {
			var b Builder
			b.Put(File{File: "a", Pods: []*pod.Spec{spec("a", "one", "1")}}, nil)
			b.Snapshot()
			b.Put(broken, nil)
			b.Snapshot()
			end(&b)
			wantChanged(t, b.Snapshot(), "one")
		})
	}
	t.Run("a rejected pod is removed", func(t *testing.T) {
		var b Builder
		one := spec("a", "one", "1")
		b.Put(File{File: "a", Pods: []*pod.Spec{one, spec("a", "two", "1")}}, nil)
		b.Snapshot()
		b.Put(File{File: "a", Pods: []*pod.Spec{spec("a", "two", "1")}, Broken: []pod.Key{one.Key}}, nil)
		wantChanged(t, b.Snapshot(), "one")
		b.Put(File{File: "a", Pods: []*pod.Spec{spec("a", "two", "1")}}, nil)
		wantChanged(t, b.Snapshot(), "one")
	})
}

func TestBuilderShowsNoticesAndSkipsWithoutChangedKeys(t *testing.T) {
	var b Builder
	b.Put(File{File: "a"}, []pod.Problem{{File: "a", Msg: "unknown field"}})
	b.Skip([]pod.Problem{{File: "z"}, {File: "README"}})
	s := b.Snapshot()
	if len(s.Skipped) != 3 || s.Skipped[0].File != "README" || s.Skipped[2].Msg != "unknown field" {
		t.Errorf("skipped: %+v", s.Skipped)
	}
	b.Skip([]pod.Problem{{File: "README"}, {File: "z"}})
	if b.Dirty() {
		t.Error("the same skips count as a change")
	}
	b.Put(File{File: "a"}, nil)
	if s := b.Snapshot(); len(s.Skipped) != 2 || len(s.Changed) != 0 {
		t.Errorf("after the notice went: %+v", s)
	}
}

func TestBuilderSharesObjects(t *testing.T) {
	object := func(hash string) *pod.Object {
		return &pod.Object{Kind: "ConfigMap", Key: pod.Key{Namespace: "default", Name: "c"}, Hash: hash}
	}
	var b Builder
	b.Put(File{File: "a", Objects: []*pod.Object{object("1")}}, nil)
	first := b.Snapshot().Files.At(0).Objects[0]
	if b.Put(File{File: "a", Objects: []*pod.Object{object("1")}}, nil) {
		t.Error("an equal object counts as a change")
	}
	b.Put(File{File: "a", Objects: []*pod.Object{object("2")}}, nil)
	s := b.Snapshot()
	if s.Files.At(0).Objects[0] == first || len(s.Changed) != 0 {
		t.Errorf("changed object: %+v", s)
	}
}

// TestIsWorse_WorkloadIsMissing_IsTrue: a file that lacks a workload is worse than its previous
// reading, as one that lacks a pod is. One that lacks a config object is not.
func TestIsWorse_WorkloadIsMissing_IsTrue(t *testing.T) {
	t.Parallel()
	object := func(kind, name string) *pod.Object {
		return &pod.Object{Kind: kind, Key: pod.Key{Namespace: "default", Name: name}, Hash: "1"}
	}
	web, db, config := object(pod.KindDeployment, "web"), object(pod.KindDeployment, "db"), object(pod.KindConfigMap, "web")
	var b Builder
	b.Put(File{File: "a", Objects: []*pod.Object{web, config}}, nil)
	for name, c := range map[string]struct {
		f    File
		want bool
	}{
		"the same":              {File{File: "a", Objects: []*pod.Object{web, config}}, false},
		"one more":              {File{File: "a", Objects: []*pod.Object{web, db}}, false},
		"without the workload":  {File{File: "a", Objects: []*pod.Object{config, db}}, true},
		"nothing":               {File{File: "a"}, true},
		"with a rejected one":   {File{File: "a", Objects: []*pod.Object{web, config}, BrokenObjects: []pod.ObjectKey{db.ObjectKey()}}, true},
		"another file, nothing": {File{File: "b"}, false},
	} {
		if got := b.IsWorse(c.f); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestMeter_Workload_CountsItsTemplate: the size of a workload counts its template, as that of a pod
// counts its spec.
func TestMeter_Workload_CountsItsTemplate(t *testing.T) {
	t.Parallel()
	d := &appsv1.Deployment{}
	d.Spec.Template.Annotations = map[string]string{"a": strings.Repeat("x", maxLastGoodWeight/2)}
	o := &pod.Object{Kind: pod.KindDeployment, Object: d}
	var m Meter
	if !m.Objects(o) || m.Objects(o, o) {
		t.Errorf("weight %d", m.weight)
	}
}
