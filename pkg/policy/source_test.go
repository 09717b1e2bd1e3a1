package policy_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/nodectl/nodectl/pkg/manifest"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/policy"
	"github.com/nodectl/nodectl/pkg/sorted"
	"github.com/nodectl/nodectl/pkg/source"
	"github.com/nodectl/nodectl/pkg/source/file"
	"github.com/nodectl/nodectl/pkg/source/sourcetest"
)

// script is a source that yields the snapshots it was given.
type script struct {
	name  string
	words []word
}

type word struct {
	snapshot source.Snapshot
	err      error
}

func (s *script) Name() string { return s.name }

func (s *script) Sets(context.Context) iter.Seq2[source.Snapshot, error] {
	return func(yield func(source.Snapshot, error) bool) {
		for _, w := range s.words {
			if !yield(w.snapshot, w.err) {
				return
			}
		}
	}
}

// TestDirectoryBehindAPolicyConforms: a source that is held to a policy is a
// source like any other.
func TestDirectoryBehindAPolicyConforms(t *testing.T) {
	sourcetest.Run(t, func(t *testing.T) sourcetest.Fixture {
		dir := filepath.Join(t.TempDir(), "m")
		must(t, os.Mkdir(dir, 0o700))
		inner := file.New(file.Config{Path: dir, CheckFrequency: time.Hour, Owners: []int{os.Getuid()}, Parse: sourcetest.Parse("file", dir)})
		return sourcetest.Fixture{
			Source: policy.Source(inner, edge(t, "namespaces: [default], images: []"), "file", dir),
			Put:    func(name, text string) { put(t, filepath.Join(dir, name+".yaml"), text) },
			Remove: func(name string) { must(t, os.Remove(filepath.Join(dir, name+".yaml"))) },
			Break:  func() { must(t, os.Rename(dir, dir+".away")) },
			Mend:   func() { must(t, os.Rename(dir+".away", dir)) },
		}
	})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// put makes a file in one step.
func put(t testing.TB, path, text string) {
	t.Helper()
	must(t, os.WriteFile(path+".tmp~", []byte(text), 0o600))
	must(t, os.Rename(path+".tmp~", path))
}

// TestErrorsPass: errors of the inner source are passed on.
func TestErrorsPass(t *testing.T) {
	t.Parallel()
	down := errors.New("down")
	files := source.FilesOf(source.File{File: "f", Pods: []*pod.Spec{podOf(t, "spec: {}")}})
	inner := &script{name: "file:/m", words: []word{{err: down}, {snapshot: source.Snapshot{Revision: 1, Files: files}}, {err: down}, {snapshot: source.Snapshot{Revision: 2, Files: files}}}}
	s := policy.Source(inner, edge(t, "namespaces: []"), "file", "/m")
	if s.Name() != "file:/m" {
		t.Errorf("the source is called %s", s.Name())
	}
	var got []string
	for s, err := range s.Sets(t.Context()) {
		if err != nil && !errors.Is(err, down) {
			t.Error(err)
		}
		said := fmt.Sprint(err)
		for f := range s.Files.All() {
			said = fmt.Sprintf("%d: %d, %d", s.Revision, len(f.Pods), len(f.Problems))
		}
		got = append(got, said)
	}
	if want := []string{"down", "1: 0, 1", "down", "2: 0, 1"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestStructureIsShared: over any sequence of readings, the result for a file equals
// that of judging it alone; while nothing is refused the lists themselves pass, and an
// unchanged file is never checked again.
func TestStructureIsShared(t *testing.T) {
	t.Parallel()
	good, bad := podOf(t, "metadata: {namespace: default}"), podOf(t, "metadata: {namespace: evil}")
	p := edge(t, "namespaces: [default]")
	rapid.Check(t, func(rt *rapid.T) {
		var b source.Builder
		inner := &script{name: "file:/m"}
		revision := 0
		for range rapid.IntRange(1, 12).Draw(rt, "snapshots") {
			for range rapid.IntRange(0, 60).Draw(rt, "edits") {
				name := fmt.Sprintf("%03d", rapid.IntRange(0, 150).Draw(rt, "file"))
				revision++
				f := source.File{File: name, Pods: []*pod.Spec{renew(good, name, revision)}}
				switch rapid.SampledFrom([]string{"good", "good", "good", "bad", "both", "gone", "wrong", "objects", "whole"}).Draw(rt, "edit") {
				case "bad":
					f.Pods = []*pod.Spec{renew(bad, name, revision)}
				case "both":
					f.Pods = append(f.Pods, renew(bad, name+"x", revision))
					f.Problems, f.Broken = []pod.Problem{{File: name, Msg: "wrong"}}, []pod.Key{{Name: "y"}}
				case "wrong":
					f.Pods, f.Problems, f.Broken = nil, []pod.Problem{{File: name, Line: revision}}, []pod.Key{{Name: fmt.Sprint(revision)}}
				case "objects":
					f.Pods, f.Objects = nil, []*pod.Object{
						{Key: pod.Key{Namespace: "default", Name: name}, Hash: fmt.Sprint(revision)}, {Key: pod.Key{Namespace: "evil", Name: name}, Hash: fmt.Sprint(revision)},
					}
				case "whole":
					f.Pods, f.Incomplete = nil, revision%2 == 0
				case "gone":
					b.Remove(name)
					continue
				}
				b.Put(f, nil)
			}
			inner.words = append(inner.words, word{snapshot: b.Snapshot()})
		}
		turn, refusedBefore := 0, false
		var before sorted.List[source.File]
		for s, err := range policy.Source(inner, p, "file", "/m").Sets(t.Context()) {
			if err != nil {
				rt.Fatal(err)
			}
			was := inner.words[turn].snapshot
			refusals := check(rt, was, s)
			if !refusals && !refusedBefore && !s.Files.Is(was.Files) {
				rt.Errorf("snapshot %d: everything is allowed, but the list of files is not the one that was read", turn)
			}
			refusedBefore = refusedBefore || refusals
			if turn > 0 {
				for f := range inner.words[turn-1].snapshot.Files.All() {
					now, found := sorted.Find(was.Files, f.File, byName)
					if found && samePods(f.Pods, now.Pods) {
						a, _ := sorted.Find(before, f.File, byName)
						b, _ := sorted.Find(s.Files, f.File, byName)
						if !samePods(a.Pods, b.Pods) {
							rt.Errorf("snapshot %d: %s did not change but was checked again", turn, f.File)
						}
					}
				}
			}
			before = s.Files
			turn++
		}
		if turn != len(inner.words) {
			rt.Fatalf("%d of %d snapshots arrived", turn, len(inner.words))
		}
	})
}

func byName(f source.File, name string) int {
	switch {
	case f.File < name:
		return -1
	case f.File > name:
		return 1
	}
	return 0
}

func samePods(a, b []*pod.Spec) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// renew returns a pod like s, called name, as another edit wrote it.
func renew(s *pod.Spec, name string, edit int) *pod.Spec {
	own := *s
	own.Name, own.Hash, own.Origin.File = name, fmt.Sprint("v1-", edit), name
	return &own
}

// check compares a checked snapshot with its input.
func check(t *rapid.T, was, is source.Snapshot) (refusals bool) {
	if is.Revision != was.Revision || !slices.Equal(is.Changed, was.Changed) || is.Files.Len() != was.Files.Len() {
		t.Fatalf("revision %d with %d files, want %d with %d", is.Revision, is.Files.Len(), was.Revision, was.Files.Len())
	}
	for i, f := range was.Files.Slice() {
		got := is.Files.At(i)
		pods, objects, broken := []*pod.Spec(nil), []*pod.Object(nil), slices.Clone(f.Broken)
		problems := len(f.Problems)
		for _, s := range f.Pods {
			if s.Namespace == "evil" {
				problems, broken, refusals = problems+1, append(broken, s.Key), true
			} else {
				pods = append(pods, s)
			}
		}
		for _, o := range f.Objects {
			if o.Namespace == "evil" {
				problems, refusals = problems+1, true
			} else {
				objects = append(objects, o)
			}
		}
		if got.File != f.File || got.Incomplete != f.Incomplete || !slices.Equal(got.Pods, pods) || !slices.Equal(got.Objects, objects) || !slices.Equal(got.Broken, broken) ||
			len(got.Problems) != problems || !slices.Equal(got.Problems[:len(f.Problems)], f.Problems) {
			t.Fatalf("%s: %+v", f.File, got)
		}
	}
	return refusals
}

// TestI9_RefusedEditKeepsWhatStood: of a file with several pods, the one whose
// edit is refused goes on as it was, the others go on being updated; a new pod that
// is refused is not there.
//
// Shows: I9
func TestI9_RefusedEditKeepsWhatStood(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "m")
	must(t, os.Mkdir(dir, 0o700))
	path := filepath.Join(dir, "all.yaml")
	inner := file.New(file.Config{Path: dir, CheckFrequency: time.Hour, Owners: []int{os.Getuid()}, Parse: func(data []byte, name string) (source.File, []pod.Problem) {
		return manifest.Parse(data, manifest.Options{Node: "n1", Source: "file", Location: dir, File: name, Static: true})
	}})
	write := func(a, b, more string) {
		put(t, path, fmt.Sprintf(`
{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: c, image: %q}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: b}, spec: {containers: [{name: c, image: %q}]}}
%s`, a, b, more))
	}
	write("ok.example.com/a:1", "ok.example.com/b:1", "")
	l := sourcetest.Listen(t, policy.Source(inner, edge(t, `images: ["ok.example.com/*"]`), "file", dir))
	layer := podconfig.NewLayer("file:"+dir, nil)
	stands := func() (images []string) {
		layer = layer.Read(l.Set().Snapshot, time.Unix(1, 0))
		merged := podconfig.Merge([]podconfig.Layer{layer})
		for s := range merged.Pods.All() {
			images = append(images, s.Pod.Spec.Containers[0].Image)
		}
		return images
	}
	expect := func(want ...string) {
		t.Helper()
		if got := stands(); !slices.Equal(got, want) {
			t.Errorf("%q stand, want %q", got, want)
		}
	}
	expect("ok.example.com/a:1", "ok.example.com/b:1")
	write("evil.com/a:2", "ok.example.com/b:2", "")
	expect("ok.example.com/a:1", "ok.example.com/b:2")
	write("evil.com/a:2", "ok.example.com/b:3", `---
{apiVersion: v1, kind: Pod, metadata: {name: c}, spec: {containers: [{name: c, image: evil.com/c}]}}`)
	expect("ok.example.com/a:1", "ok.example.com/b:3")
	write("ok.example.com/a:4", "ok.example.com/b:4", "")
	expect("ok.example.com/a:4", "ok.example.com/b:4")
}
