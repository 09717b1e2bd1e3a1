package volume

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podenv"
	"github.com/nodectl/nodectl/pkg/podspec"
)

// A write that fails leaves the old files and nothing else, however often it is tried. It
// removes the files of a killed agent.
//
// Shows: F13
func TestF13_FailedWritesLeaveNothing(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root: it mounts a tmpfs that is soon full")
	}
	path := t.TempDir()
	must(t, syscall.Mount("tmpfs", path, "tmpfs", 0, "size=256k"))
	t.Cleanup(func() { must(t, syscall.Unmount(path, syscall.MNT_DETACH)) })
	root, err := os.OpenRoot(path)
	must(t, err)
	defer root.Close()
	w := writer{root: root}
	must(t, w.write(files{"a": {data: []byte("old"), mode: 0o644}}))
	names := func() (out []string) {
		entries, err := os.ReadDir(path)
		must(t, err)
		for _, e := range entries {
			out = append(out, e.Name())
		}
		return out
	}
	before := names()
	half := bytes.Repeat([]byte("x"), 100<<10)
	for range 20 {
		err := w.write(files{"a": {data: half, mode: 0o644}, "b": {data: half, mode: 0o644}, "c": {data: half, mode: 0o644}})
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("%v, want no space left", err)
		}
		if after := names(); !slices.Equal(after, before) {
			t.Fatalf("left %q, had %q", after, before)
		}
	}
	if text, err := os.ReadFile(filepath.Join(path, "a")); string(text) != "old" {
		t.Errorf("%q %v", text, err)
	}
	// The files of a killed agent fill the disk.
	must(t, root.Mkdir("..2026_03_01_12_00_00.1", 0o700))
	must(t, root.WriteFile("..2026_03_01_12_00_00.1/a", append(half, half...), 0o600))
	must(t, w.write(files{"a": {data: half, mode: 0o644}}))
	if after := names(); len(after) != 3 {
		t.Errorf("left %q", after)
	}
}

// Items may name a path and one below it: a file cannot be both.
//
// Shows: C-1.37.6
func TestC_1_37_6_FileBelowAFile(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		names []string
		want  string
	}{
		{[]string{"x", "x/y"}, `invalid path "x/y": "x" is a file`},
		{[]string{"a/b/c", "a/b.c", "a/b", "a/bc"}, `invalid path "a/b/c": "a/b" is a file`},
		{[]string{"./x//", "x/y"}, `invalid path "x/y": "x" is a file`},
		{[]string{"x", "x.y", "x-y/z", "xy/z", "y/x", "X/y"}, ""},
	} {
		all := files{}
		for _, name := range tt.names {
			all[name] = file{mode: 0o644}
		}
		path := t.TempDir()
		root, err := os.OpenRoot(path)
		must(t, err)
		defer root.Close()
		w := writer{root: root}
		err = w.write(all)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || err.Error() != tt.want) {
			t.Errorf("%q: %v, want %q", tt.names, err, tt.want)
		}
		if entries, _ := os.ReadDir(path); err != nil && len(entries) != 0 {
			t.Errorf("%q: left %v", tt.names, entries)
		}
	}
}

// Names without a value are found in one pass over the expression, as Expand parses it.
//
// Shows: C-1.37.7
func TestC_1_37_7_NamesWithoutValue(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		expr := strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"$", "(", ")", "A", "B", "C", "$(A)", "$$(B)", "$(C)", "/"}), 0, 12).Draw(t, "expr"), "")
		values := map[string]string{"A": "value", "B": ""}
		var want []string
		for _, name := range strings.FieldsFunc(expr, func(r rune) bool { return r == ')' }) {
			for i := range name { // every text that could be a name
				name := name[i:]
				if values[name] == "" && expanded(expr, name, "\x01") != expanded(expr, name, "\x02") {
					want = append(want, name)
				}
			}
		}
		if values[""] == "" && expanded(expr, "", "\x01") != expanded(expr, "", "\x02") {
			want = append(want, "")
		}
		slices.Sort(want)
		want = slices.Compact(want)
		if got := unresolved(expr, values); !slices.Equal(got, want) {
			t.Fatalf("%q: %q, want %q", expr, got, want)
		}
	})
	// Long enough that a pass per name would exceed the test's timeout.
	_, err := subPath(&v1.VolumeMount{SubPathExpr: strings.Repeat("$(A)", 1<<21) + "$(B)$(C)$(D)$(E)"}, nil)
	if err == nil || err.Error() != "subPathExpr: missing value for A, B, C, 2 more" {
		t.Errorf("%.300v", err)
	}
}

// Pods that use a claim for the first time at once mount the same directory.
//
// Shows: C-1.37
func TestC_1_37_ClaimIsMadeOnce(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	v := New(Config{RootDir: root})
	for i := range 200 {
		name := "c" + strconv.Itoa(i)
		object := &v1.PersistentVolumeClaim{}
		object.Name, object.Namespace = name, "default"
		path := filepath.Join(root, "volumes/default", name, "data")
		var found [4]os.FileInfo
		var wg sync.WaitGroup
		for k := range found {
			s := &pod.Spec{Key: pod.Key{Namespace: "default", Name: "web"}, Pod: &v1.Pod{}}
			s.Pod.Namespace, s.Pod.UID = "default", types.UID(fmt.Sprintf("%s-%d", name, k))
			s.Pod.Spec.Volumes = []v1.Volume{{Name: "d", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name}}}}
			s = podspec.Bind(s, podspec.NewData([]*pod.Object{{Kind: pod.KindClaim, Key: pod.Key{Namespace: "default", Name: name}, Object: object}}))
			wg.Go(func() {
				if err := v.SetUp(t.Context(), s, pod.Place{}, 1); err != nil {
					t.Error(err)
					return
				}
				dir, err := os.Open(path)
				if err != nil {
					t.Error(err)
					return
				}
				t.Cleanup(func() { dir.Close() }) // like a mount, it keeps the directory's inode in use
				found[k], err = dir.Stat()
				if err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		now, err := os.Stat(path)
		must(t, err)
		for _, f := range found {
			if f == nil || !os.SameFile(f, now) {
				t.Fatalf("%s: a pod has a directory that is no longer the claim's", name)
			}
		}
	}
}

func expanded(text, name, value string) string {
	out, _ := podenv.Expand(text, map[string]string{name: value})
	return out
}
