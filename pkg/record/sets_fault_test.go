package record_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/record"
)

// Only the content of a damaged file is lost.
//
// Shows: F12
func TestF12_DamagedPartOfASetIsSetAside(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func([]byte) []byte{
		"Empty":     func([]byte) []byte { return nil },
		"Truncated": func(b []byte) []byte { return b[:len(b)/2] },
		"Flipped":   func(b []byte) []byte { b[len(b)/2] ^= 4; return b },
		"Longer":    func(b []byte) []byte { return append(b, '\n') },
		"NoSet":     func([]byte) []byte { return []byte("PASSWORD=" + secret) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			s := newSets(root)
			saveSet(t, s, setLayer, fileSet(setFile, 1))
			path := fileOfSet(t, root)
			saveSet(t, s, setLayer, fileSet("other", 1))
			saveSet(t, s, "another", fileSet(setFile, 3))
			data, _ := os.ReadFile(path)
			if err := os.WriteFile(path, change(data), 0o600); err != nil {
				t.Fatal(err)
			}
			matches := func(how string, all map[string]record.Set, err error) {
				if got := hashesOf(all[setLayer]) + " " + hashesOf(all["another"]); got != "other=v1-1 "+setFile+"=v1-3" {
					t.Errorf("%s: what is left is %s", how, got)
				}
				if err == nil || !strings.Contains(err.Error(), filepath.Base(path)) || strings.Contains(err.Error(), secret) {
					t.Errorf("%s: %v; want the file named, and nothing of what is in it", how, err)
				}
			}
			before := tree(t, root)
			all, err := record.ReadSets(root, record.NewKey(root, ""))
			matches("look", all, err)
			if after := tree(t, root); after != before {
				t.Errorf("looking changed\n%s\nto\n%s", before, after)
			}
			all, err = s.Load()
			matches("load", all, err)
			if aside, _ := filepath.Glob(path + ".corrupt-*"); len(aside) != 1 {
				t.Errorf("set aside: %v", aside)
			}
			if _, err = s.Load(); err != nil {
				t.Errorf("load again: %v", err)
			}
			saveSet(t, s, setLayer, fileSet(setFile, 5))
			if got := hashesOf(setOf(t, root, setLayer)); got != setFile+"=v1-5 other=v1-1" {
				t.Errorf("after a new Save: %s", got)
			}
		})
	}
}

// tree returns everything below root: modes, times, content.
func tree(t *testing.T, root string) string {
	t.Helper()
	var out strings.Builder
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		data, _ := os.ReadFile(path)
		fmt.Fprintf(&out, "%s %v %v %x\n", path, info.Mode(), info.ModTime(), data)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestLookSetsCreatesNothing(t *testing.T) {
	t.Parallel()
	root := filepath.Join(t.TempDir(), "root")
	if all, err := record.ReadSets(root, record.NewKey(root, "")); len(all) != 0 || err != nil {
		t.Errorf("no root: %v, %v", all, err)
	}
	if _, err := os.Stat(root); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the root was made: %v", err)
	}
}

// Without its header a layer gets its name and time from its files.
//
// Shows: F12
func TestF12_DamagedHeaderCostsItsTime(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	s := newSets(root)
	saveSet(t, s, setLayer, fileSet(setFile, 1))
	header := filepath.Join(filepath.Dir(fileOfSet(t, root)), "layer.json")
	if err := os.WriteFile(header, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	written := time.Unix(1_700_000_000, 0)
	if err := os.Chtimes(fileOfSet(t, root), written, written); err != nil {
		t.Fatal(err)
	}
	all, err := s.Load()
	if got := all[setLayer]; hashesOf(got) != setFile+"=v1-1" || !got.At.Equal(written) || err == nil || !strings.Contains(err.Error(), "layer.json") {
		t.Errorf("%s at %v, %v", hashesOf(got), got.At, err)
	}
	saveSet(t, s, setLayer)
	if got := setOf(t, root, setLayer); !got.At.Equal(setTime) {
		t.Errorf("after a new Save: %v", got.At)
	}
}

func TestFileUnderAnotherNameIsDamage(t *testing.T) {
	t.Parallel()
	for name, move := range map[string]func(path, other string) error{
		"ToAnotherFile": func(path, _ string) error {
			return os.Rename(path, filepath.Join(filepath.Dir(path), strings.Repeat("ab", 32)+".json"))
		},
		"ToAnotherLayer": func(path, other string) error {
			return os.Rename(path, filepath.Join(other, filepath.Base(path)))
		},
		"HeaderToAnotherLayer": func(path, other string) error {
			return os.Rename(filepath.Join(filepath.Dir(path), "layer.json"), filepath.Join(other, "layer.json"))
		},
		"FileAsHeader": func(path, other string) error { return os.Rename(path, filepath.Join(other, "layer.json")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			s := newSets(root)
			saveSet(t, s, setLayer, fileSet(setFile, 1))
			path := fileOfSet(t, root)
			saveSet(t, s, "other")
			headers, _ := filepath.Glob(filepath.Join(root, "sources", "*", "layer.json"))
			other := slices.DeleteFunc(headers, func(h string) bool { return filepath.Dir(h) == filepath.Dir(path) })
			if err := move(path, filepath.Dir(other[0])); err != nil {
				t.Fatal(err)
			}
			all, err := s.Load()
			if err == nil || hashesOf(all["other"]) != "" || strings.Contains(name, "To") && name != "HeaderToAnotherLayer" && hashesOf(all[setLayer]) != "" {
				t.Errorf("%v, %v", all, err)
			}
			for layer := range all {
				if layer != setLayer && layer != "other" {
					t.Errorf("layer %q", layer)
				}
			}
		})
	}
}

// A start never blocks on a path that is not a regular file, and never reads other files.
func TestOnlyRegularFilesAreOpened(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	s := newSets(root)
	saveSet(t, s, setLayer, fileSet(setFile, 1))
	good := fileOfSet(t, root)
	saveSet(t, s, setLayer, fileSet("huge", 1))
	for _, path := range setFiles(t, root) {
		if path != good && filepath.Base(path) != "layer.json" {
			if err := os.Truncate(path, 1<<40); err != nil {
				t.Fatal(err)
			}
		}
	}
	fifo := filepath.Join(filepath.Dir(good), strings.Repeat("cd", 32)+".json")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	all, err := s.Load()
	if got := hashesOf(all[setLayer]); got != setFile+"=v1-1" || err == nil || !strings.Contains(err.Error(), "not a regular file") || !strings.Contains(err.Error(), "larger than the limit of a set") {
		t.Errorf("%s, %v", got, err)
	}
}

// childVar is the environment variable with the root for a child process that saves sets
// until it is killed.
const childVar = "RECORD_TEST_SAVE"

// TestF1_KilledWhileSaving kills an agent that saves sets, again and again: each file is
// the old or the new one, and none is damaged.
//
// Shows: F1
func TestF1_KilledWhileSaving(t *testing.T) {
	if root := os.Getenv(childVar); root != "" {
		s := newSets(root)
		for n := 1; ; n++ {
			saveSet(t, s, setLayer, fileSet("a", n), fileSet("b", n), fileSet(fmt.Sprint("only ", n), n), pod.LastGoodSet{File: fmt.Sprint("only ", n-1)})
			fmt.Println("saved")
		}
	}
	root := t.TempDir()
	for round := range 15 {
		child := exec.Command(os.Args[0], "-test.run=^TestF1_KilledWhileSaving$")
		child.Env = append(os.Environ(), childVar+"="+root)
		out, err := child.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		// A different number of bytes per round varies the moment of the kill.
		_, err = io.ReadFull(out, make([]byte, 20+round))
		child.Process.Kill()
		child.Wait()
		if err != nil {
			t.Fatalf("the child does not save: %v", err)
		}
		got, err := record.ReadSets(root, record.NewKey(root, ""))
		if err != nil || len(got[setLayer].Files) < 3 {
			t.Errorf("killed in round %d: %s, %v", round, hashesOf(got[setLayer]), err)
		}
		var n int
		for _, f := range setOf(t, root, setLayer).Files {
			if strings.HasPrefix(f.File, "only") {
				n++
			}
			// The child starts at 1 again; remove the last round's file.
			saveSet(t, newSets(root), setLayer, pod.LastGoodSet{File: f.File})
		}
		if n < 1 || n > 2 {
			t.Errorf("a file that moves is in %d places", n)
		}
		for _, path := range setFiles(t, root) {
			if strings.HasSuffix(path, ".tmp") {
				t.Errorf("a half-written file is left after Load: %s", path)
			}
		}
	}
}

// Every state that a crash can leave while a file is replaced.
//
// Shows: F1
func TestF1_EveryStepOfSave(t *testing.T) {
	t.Parallel()
	for name, tmp := range map[string]func(whole []byte) []byte{
		"TempEmpty": func([]byte) []byte { return nil },
		"TempHalf":  func(b []byte) []byte { return b[:len(b)/2] },
		"TempWhole": func(b []byte) []byte { return b },
	} {
		for _, file := range []string{"header", "file"} {
			t.Run(name+"/"+file, func(t *testing.T) {
				t.Parallel()
				root, scratch := t.TempDir(), t.TempDir()
				saveSet(t, newSets(root), setLayer, fileSet(setFile, 1))
				saveSet(t, record.NewSets(scratch, record.NewKey(root, "")), setLayer, fileSet(setFile, 2))
				path := fileOfSet(t, root)
				if file == "header" {
					path = filepath.Join(filepath.Dir(path), "layer.json")
				}
				rel, _ := filepath.Rel(root, path)
				whole, err := os.ReadFile(filepath.Join(scratch, rel))
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path+".tmp", tmp(whole), 0o600); err != nil {
					t.Fatal(err)
				}
				if got := setOf(t, root, setLayer); hashesOf(got) != setFile+"=v1-1" || !got.At.Equal(setTime) {
					t.Errorf("before the rename: %s", hashesOf(got))
				}
				if err := os.WriteFile(path+".tmp", whole, 0o600); err != nil {
					t.Fatal(err)
				}
				if err := os.Rename(path+".tmp", path); err != nil {
					t.Fatal(err)
				}
				want := map[string]string{"header": "=v1-1", "file": "=v1-2"}[file]
				if got := setOf(t, root, setLayer); hashesOf(got) != setFile+want {
					t.Errorf("after it: %s", hashesOf(got))
				}
			})
		}
	}
}

// Shows: F12
func TestF12_FullDiskKeepsTheOldSet(t *testing.T) {
	root := smallDisk(t)
	s := newSets(root)
	saveSet(t, s, setLayer, fileSet("a", 1), fileSet("b", 1))
	filler := fill(t, root)
	later := setTime.Add(time.Hour)
	err := s.Save(setLayer, later, []pod.LastGoodSet{fileSet("a", 2), fileSet("new", 2), {File: "b"}})
	if !errors.Is(err, unix.ENOSPC) || strings.Contains(err.Error(), secret) || !strings.Contains(err.Error(), "2 of 3 files") {
		t.Errorf("save: %v, want that there is no room", err)
	}
	if got := setOf(t, root, setLayer); hashesOf(got) != "a=v1-1" || !got.At.Equal(setTime) {
		t.Errorf("the old set: %s at %v", hashesOf(got), got.At)
	}
	if left := setFiles(t, root); len(left) != 2 {
		t.Errorf("a part is left: %v", left)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	// A failed file is saved with the next Save.
	if err := s.Save(setLayer, later, nil); err != nil {
		t.Fatal(err)
	}
	if got := setOf(t, root, setLayer); hashesOf(got) != "a=v1-2 new=v1-2" || !got.At.Equal(later) {
		t.Errorf("with room again: %s at %v", hashesOf(got), got.At)
	}
}

// Shows: F13
func TestF13_ReadOnlyDiskStillGivesItsSets(t *testing.T) {
	root := smallDisk(t)
	s := newSets(root)
	saveSet(t, s, setLayer, fileSet(setFile, 1))
	if err := unix.Mount("", root, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if got := setOf(t, root, setLayer); hashesOf(got) != setFile+"=v1-1" {
		t.Errorf("load: %s", hashesOf(got))
	}
	saveSet(t, s, setLayer, fileSet(setFile, 1)) // exists already
	if err := s.Save(setLayer, setTime, []pod.LastGoodSet{fileSet(setFile, 2)}); !errors.Is(err, unix.EROFS) {
		t.Errorf("save: %v, want that the disk is read-only", err)
	}
}

// TestLoadSets_ManyFilesAreDamaged_EveryNamedFileIsThere: a load removes only files that earlier
// loads have set aside, even if the clock was set back since.
func TestLoadSets_ManyFilesAreDamaged_EveryNamedFileIsThere(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	s := newSets(root)
	damaged := func(n int) error {
		t.Helper()
		for i := range n {
			saveSet(t, s, setLayer, fileSet(fmt.Sprintf("file%d", i), 1))
		}
		files, err := filepath.Glob(filepath.Join(root, "sources", "*", "*.json"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if filepath.Base(file) == "layer.json" {
				continue
			}
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		_, err = s.Load()
		return err
	}
	aside := func() []string {
		t.Helper()
		all, err := filepath.Glob(filepath.Join(root, "sources", "*", "*.corrupt-*"))
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	saveSet(t, s, setLayer, fileSet("file0", 1))
	file := fileOfSet(t, root)
	for i := range 12 {
		if err := os.WriteFile(fmt.Sprintf("%s.corrupt-2999%02d", file, i), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range []int{30, 1} {
		err := damaged(n)
		if err == nil {
			t.Fatal("no damage is reported")
		}
		named := 0
		for _, file := range aside() {
			if strings.Contains(err.Error(), filepath.Base(file)) {
				named++
			}
		}
		if all := len(aside()); named != n || all != 9+n {
			t.Errorf("%d damaged: %d files that the error names are there, %d in all; want %d and %d", n, named, all, n, 9+n)
		}
	}
}
