package volume

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// openers are both ways to open a directory below another.
var openers = map[string]func(*os.File, string) (*os.File, error){"Openat2": openChild, "OldKernel": openChildOld}

// removeWith removes name under base by one of them.
func removeWith(t testing.TB, open func(*os.File, string) (*os.File, error), base, name string) error {
	t.Helper()
	dir, err := os.Open(base)
	must(t, err)
	defer dir.Close()
	r := &remover{ctx: t.Context(), open: open}
	return r.remove(dir, name)
}

// A process that still runs during TearDown swaps directories for links to elsewhere, thousands
// of times, both between check and open and all the time. Nothing elsewhere is ever
// removed.
//
// Shows: D1
func TestTakeNeverLeavesByASwappedLink(t *testing.T) {
	for name, open := range openers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			base := t.TempDir()
			outside := filepath.Join(t.TempDir(), "outside")
			must(t, os.MkdirAll(filepath.Join(outside, "sub"), 0o755))
			canaries := []string{filepath.Join(outside, "canary"), filepath.Join(outside, "sub", "canary")}
			for _, c := range canaries {
				must(t, os.WriteFile(c, nil, 0o644))
			}
			tree := filepath.Join(base, "1")
			spots := []string{filepath.Join(tree, "x"), filepath.Join(tree, "d", "x")}
			var swaps atomic.Int64
			// swap exchanges an entry of a directory with link, which leads outside.
			swap := func(link string, dir int, entry string) {
				if unix.Renameat2(unix.AT_FDCWD, link, dir, entry, unix.RENAME_EXCHANGE) == nil {
					swaps.Add(1)
				} else {
					os.Symlink(outside, link) // it was removed with the tree: make a new one
				}
			}
			var wg sync.WaitGroup
			stop := make(chan struct{})
			wg.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
						swap(filepath.Join(base, "link"), unix.AT_FDCWD, spots[i%len(spots)])
					}
				}
			})
			between := func(parent *os.File, name string) (*os.File, error) {
				swap(filepath.Join(base, "between"), int(parent.Fd()), name)
				return open(parent, name)
			}
			for round := 0; swaps.Load() < 4000 || round < 60; round++ {
				for _, spot := range spots {
					os.MkdirAll(filepath.Join(spot, "below"), 0o755)
					os.WriteFile(filepath.Join(spot, "below", "file"), nil, 0o644)
				}
				removeWith(t, between, base, "1") // may fail while the tree is filled again
			}
			close(stop)
			wg.Wait()
			for _, c := range canaries {
				if _, err := os.Lstat(c); err != nil {
					t.Fatalf("after %d swaps: %v", swaps.Load(), err)
				}
			}
			must(t, removeWith(t, open, base, "1"))
		})
	}
}

// A tree of any content is removed completely, and none of its link targets.
func TestTakeRemovesAnyTree(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	canary := filepath.Join(outside, "canary")
	must(t, os.WriteFile(canary, nil, 0o644))
	names := rapid.SampledFrom([]string{"a", "b", "…", ".hidden", "with space", "-rf", ".nodectl-moved-1", strings.Repeat("n", 255)})
	rapid.Check(t, func(rt *rapid.T) {
		base, err := os.MkdirTemp(outside, "base")
		must(t, err)
		defer os.RemoveAll(base)
		dirs := []string{filepath.Join(base, "1")}
		must(t, os.Mkdir(dirs[0], 0o755))
		for range rapid.IntRange(0, 30).Draw(rt, "entries") {
			path := filepath.Join(rapid.SampledFrom(dirs).Draw(rt, "in"), names.Draw(rt, "name"))
			switch rapid.IntRange(0, 5).Draw(rt, "kind") {
			case 0:
				if f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0); err == nil {
					f.Close()
				}
			case 1:
				os.Symlink(outside, path)
			case 2:
				os.Symlink("..", path)
			case 3:
				unix.Mkfifo(path, 0)
			default:
				if os.Mkdir(path, 0o700) == nil {
					dirs = append(dirs, path)
				}
			}
		}
		if err := removeTree(t.Context(), base, "1"); err != nil {
			rt.Fatal(err)
		}
		if left, err := os.ReadDir(base); err != nil || len(left) != 0 {
			rt.Fatalf("left: %v, %v", left, err)
		}
		if _, err := os.Lstat(canary); err != nil {
			rt.Fatal(err)
		}
	})
}

// A tree deeper than any path, with more directories than may be open.
func TestTakeRemovesDeepTrees(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	must(t, os.Mkdir(filepath.Join(base, "1"), 0o755))
	fd, err := unix.Open(filepath.Join(base, "1"), unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
	must(t, err)
	for range 3000 {
		must(t, unix.Mkdirat(fd, "deeper", 0o755))
		next, err := unix.Openat(fd, "deeper", unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
		must(t, err)
		unix.Close(fd)
		fd = next
	}
	unix.Close(fd)
	must(t, removeTree(t.Context(), base, "1"))
	if _, err := os.Lstat(filepath.Join(base, "1")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("still there: %v", err)
	}
}

func TestTakeRemovesManyFiles(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	dir := filepath.Join(base, "1")
	must(t, os.Mkdir(dir, 0o755))
	for i := range 3 * batch {
		must(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o644))
	}
	must(t, removeTree(t.Context(), base, "1"))
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("still there: %v", err)
	}
}

func TestTakeOfALinkRemovesTheLink(t *testing.T) {
	t.Parallel()
	base, outside := t.TempDir(), t.TempDir()
	canary := filepath.Join(outside, "canary")
	must(t, os.WriteFile(canary, nil, 0o644))
	must(t, os.Symlink(outside, filepath.Join(base, "1")))
	must(t, removeTree(t.Context(), base, "1"))
	if _, err := os.Lstat(canary); err != nil {
		t.Error(err)
	}
	// A link on the path to it is not followed.
	must(t, os.Symlink(outside, filepath.Join(base, "uid")))
	if err := removeTree(t.Context(), base, "uid", "canary"); err == nil {
		t.Error("a link was followed on the way")
	}
	if _, err := os.Lstat(canary); err != nil {
		t.Error(err)
	}
}

// A mount that appears after the mount table was read is not entered either, with both ways
// to open directories.
func TestTheWayDownNeverCrossesAMount(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may mount: this test needs a real mount")
	}
	for name, open := range openers {
		for _, kind := range []string{"Directory", "File"} {
			t.Run(name+kind, func(t *testing.T) {
				base, outside := t.TempDir(), t.TempDir()
				canary := filepath.Join(outside, "canary")
				must(t, os.WriteFile(canary, nil, 0o644))
				target, source := filepath.Join(base, "1", "a", "mnt"), outside
				must(t, os.MkdirAll(target, 0o755))
				if kind == "File" {
					must(t, os.Remove(target))
					must(t, os.WriteFile(target, nil, 0o644))
					source = canary
				}
				must(t, unix.Mount(source, target, "", unix.MS_BIND, ""))
				t.Cleanup(func() { unix.Unmount(target, unix.MNT_DETACH) })
				var mounted *MountedError
				if err := removeWith(t, open, base, "1"); !errors.As(err, &mounted) || mounted.Path != target {
					t.Errorf("got %v, want that %s is mounted", err, target)
				}
				if _, err := os.Lstat(canary); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// Sweep removes the directories of unknown pods, and nothing else.
//
// Shows: I6
func TestI6_SweepTakesUnknownPodsOnly(t *testing.T) {
	t.Parallel()
	root, logs := t.TempDir(), t.TempDir()
	v := New(Config{RootDir: root, PodLogsDir: logs})
	for _, dir := range []string{root + "/pods/known/1", root + "/pods/unknown/1", logs + "/default_a_known", logs + "/default_b_unknown", logs + "/default_c_other"} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	removed, err := v.Sweep(t.Context(), func(uid string) bool { return uid == "known" })
	if err != nil || len(removed) != 1 || removed[0] != "unknown" {
		t.Fatalf("removed %v, %v", removed, err)
	}
	for path, want := range map[string]bool{
		root + "/pods/known/1": true, root + "/pods/unknown": false,
		logs + "/default_a_known": true, logs + "/default_b_unknown": false, logs + "/default_c_other": true,
	} {
		if _, err := os.Stat(path); (err == nil) != want {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// A UID is any name of a directory: not a pattern, and not a part of another UID.
//
// Shows: I6
func TestI6_SweepTakesUIDsAsTheyAre(t *testing.T) {
	t.Parallel()
	root, logs := t.TempDir(), t.TempDir()
	v := New(Config{RootDir: root, PodLogsDir: logs})
	kept := []string{"good", "c_d", "x[y", "*_good"}
	keep := map[string]bool{}
	for _, uid := range kept {
		keep[uid] = true
	}
	strays := []string{"*", "?ood", "d", "good*", "[", "[y", "[a-z]ood", `\good`}
	for _, uid := range append(slices.Clone(strays), kept...) {
		must(t, os.MkdirAll(filepath.Join(root, "pods", uid), 0o700))
		must(t, os.MkdirAll(filepath.Join(logs, "default_web_"+uid, "app"), 0o700))
	}
	for _, other := range []string{"good", "default_d", "d"} {
		must(t, os.MkdirAll(filepath.Join(logs, other), 0o700))
	}
	removed, err := v.Sweep(t.Context(), func(uid string) bool { return keep[uid] })
	slices.Sort(strays)
	slices.Sort(removed)
	if err != nil || !slices.Equal(removed, strays) {
		t.Fatalf("removed %q, %v, want %q", removed, err, strays)
	}
	entries, err := os.ReadDir(logs)
	must(t, err)
	var left []string
	for _, e := range entries {
		left = append(left, e.Name())
	}
	want := []string{"d", "default_d", "default_web_*_good", "default_web_c_d", "default_web_good", "default_web_x[y", "good"}
	if !slices.Equal(left, want) {
		t.Errorf("logs left: %q, want %q", left, want)
	}
}

// On kernels without openat2 no link in a volume is followed, except our own to its current
// content.
//
// Shows: C-1.37.7
func TestC_1_37_7_SubPathsOnOldKernels(t *testing.T) {
	t.Parallel()
	path, outside := t.TempDir(), t.TempDir()
	must(t, os.WriteFile(filepath.Join(outside, "canary"), nil, 0o644))
	must(t, os.MkdirAll(filepath.Join(path, "a", "b"), 0o755))
	must(t, os.WriteFile(filepath.Join(path, "a", "b", "c"), nil, 0o644))
	must(t, os.Symlink(outside, filepath.Join(path, "out")))
	must(t, os.Symlink("a", filepath.Join(path, "in")))
	dir, err := openVolume(path)
	must(t, err)
	defer dir.Close()
	for name, want := range map[string]error{
		"a": nil, "a/b/c": nil, "out": errOutside, "in": errOutside, "out/canary": errOutside, "in/b": errOutside, "none": os.ErrNotExist, "a/none/x": os.ErrNotExist, "a/b/c/d": unix.ENOTDIR,
	} {
		f, err := openBeneathOld(dir, name)
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
		if err == nil {
			var st unix.Stat_t
			must(t, unix.Fstat(int(f.Fd()), &st))
			if !isSame(&st, filepath.Join(path, name)) {
				t.Errorf("%s: another file", name)
			}
			f.Close()
		}
	}
	shown := t.TempDir()
	root, err := os.OpenRoot(shown)
	must(t, err)
	defer root.Close()
	w := writer{root: root}
	must(t, w.write(files{"key": {data: []byte("v"), mode: 0o644}, "d/key": {mode: 0o644}}))
	dir2, err := openVolume(shown)
	must(t, err)
	defer dir2.Close()
	for _, name := range []string{"key", "d", "d/key"} {
		f, err := openBeneathOld(dir2, name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		f.Close()
	}
}
