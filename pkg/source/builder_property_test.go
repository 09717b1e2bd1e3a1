package source

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/nodectl/nodectl/pkg/pod"
)

// TestBuilderAgainstMap: after any calls of Put and Remove, a snapshot has the current
// files, and the ones before it do not change.
func TestBuilderAgainstMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b Builder
		type given struct {
			snapshot Snapshot
			want     string
		}
		disk, notices := map[string]string{}, map[string]string{}
		var all []given
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			name := fmt.Sprintf("%03d", rapid.IntRange(0, 120).Draw(t, "file"))
			switch rapid.IntRange(0, 5).Draw(t, "step") {
			case 0:
				b.Remove(name)
				delete(disk, name)
				delete(notices, name)
			case 1:
				s := b.Snapshot()
				if s.Revision != uint64(len(all)+1) || b.Dirty() {
					t.Fatalf("revision %d after %d snapshots, dirty %t", s.Revision, len(all), b.Dirty())
				}
				all = append(all, given{s, fmt.Sprint(disk, notices)})
			default:
				hash := rapid.SampledFrom([]string{"1", "2"}).Draw(t, "hash")
				var said []pod.Problem
				delete(notices, name)
				if rapid.Bool().Draw(t, "notice") {
					said, notices[name] = []pod.Problem{{File: name}}, "said"
				}
				b.Put(File{File: name, Pods: []*pod.Spec{spec(name, "p"+name, hash)}}, said)
				disk[name] = hash
			}
			if _, there := disk[name]; b.Has(name) != there {
				t.Fatalf("Has(%s) = %t", name, !there)
			}
		}
		if got, want := b.Files(), slices.Sorted(maps.Keys(disk)); !slices.Equal(got, want) {
			t.Fatalf("files %v, want %v", got, want)
		}
		for _, g := range all {
			held, said, last := map[string]string{}, map[string]string{}, ""
			for f := range g.snapshot.Files.All() {
				if f.File <= last {
					t.Fatalf("%s after %s", f.File, last)
				}
				last, held[f.File] = f.File, f.Pods[0].Hash
			}
			for _, p := range g.snapshot.Skipped {
				said[p.File] = "said"
			}
			if got := fmt.Sprint(held, said); got != g.want {
				t.Fatalf("revision %d:\n got %s\nwant %s", g.snapshot.Revision, got, g.want)
			}
		}
	})
}

// TestPutUnchangedAllocatesNothing: a file that was decoded again without a change
// costs a comparison.
func TestPutUnchangedAllocatesNothing(t *testing.T) {
	read := func() File {
		f := File{File: "a"}
		for i := range 100 {
			f.Pods = append(f.Pods, spec("a", fmt.Sprint(i), "1"))
		}
		return f
	}
	var b Builder
	b.Put(read(), nil)
	first := b.Snapshot()
	again := read()
	if n := testing.AllocsPerRun(10, func() {
		if b.Put(again, nil) {
			t.Fatal("an equal reading counts as a change")
		}
	}); n != 0 {
		t.Errorf("%.0f allocations", n)
	}
	if s := b.Snapshot(); !s.Files.Is(first.Files) {
		t.Error("the unchanged set is another list")
	}
}

func TestFilesOfPutsTogether(t *testing.T) {
	l := FilesOf(
		File{File: "b", Pods: []*pod.Spec{spec("b", "one", "1")}, Incomplete: true},
		File{File: "a"},
		File{File: "b", Pods: []*pod.Spec{spec("b", "two", "1")}, Broken: []pod.Key{{Name: "x"}}},
	)
	if l.Len() != 2 || l.At(0).File != "a" || len(l.At(1).Pods) != 2 || !l.At(1).Incomplete || len(l.At(1).Broken) != 1 {
		t.Errorf("%+v", l.Slice())
	}
}
