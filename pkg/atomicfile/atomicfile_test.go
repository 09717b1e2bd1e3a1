package atomicfile

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// names returns the names in dir.
func names(t *testing.T, dir string) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

func TestWrite_ReplacesTheFileAndLeavesNothingElse(t *testing.T) {
	t.Parallel()
	for _, o := range []Options{{}, {Sync: true}, {Temp: ".tmp"}, {Temp: ".tmp", Sync: true}, {Temp: ".new-*"}, {Mode: 0o644}, {Temp: ".new", Mode: 0o640}} {
		path := filepath.Join(t.TempDir(), "file")
		for _, text := range []string{"first", "2", ""} {
			if err := Write(path, []byte(text), o); err != nil {
				t.Fatalf("%+v: %v", o, err)
			}
			got, err := os.ReadFile(path)
			if err != nil || string(got) != text {
				t.Errorf("%+v: %q, %v, want %q", o, got, err, text)
			}
			info, err := os.Stat(path)
			if want := max(o.Mode, 0o600); err != nil || info.Mode() != want {
				t.Errorf("%+v: mode %v, want %v", o, info.Mode(), want)
			}
		}
		if got := names(t, filepath.Dir(path)); !slices.Equal(got, []string{"file"}) {
			t.Errorf("%+v: the directory holds %q", o, got)
		}
	}
}

func TestWrite_Fails_OldFileStaysAndNoTemporaryFileIsLeft(t *testing.T) {
	t.Parallel()
	for _, temp := range []string{"", ".tmp", ".new-*"} {
		path := filepath.Join(t.TempDir(), "file")
		if err := os.MkdirAll(filepath.Join(path, "in the way"), 0o700); err != nil { // a rename fails
			t.Fatal(err)
		}
		if err := Write(path, []byte("x"), Options{Temp: temp}); err == nil {
			t.Errorf("%q: a directory was replaced", temp)
		}
		if got := names(t, filepath.Dir(path)); !slices.Equal(got, []string{"file"}) {
			t.Errorf("%q: the directory holds %q", temp, got)
		}
		if err := Write(filepath.Join(path, "missing", "file"), nil, Options{Temp: temp}); err == nil {
			t.Errorf("%q: a directory that is missing is no error", temp)
		}
	}
}

func TestWrite_FixedTemporaryName_OverwritesALeftoverAndFollowsNoLink(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, other := filepath.Join(dir, "file"), filepath.Join(dir, "other")
	if err := os.WriteFile(path+".tmp", []byte(strings.Repeat("left", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Write(path, []byte("new"), Options{Temp: ".tmp"}); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "new" {
		t.Errorf("%q, %v", got, err)
	}
	if noFollow == 0 {
		return
	}
	if err := os.Symlink(other, path+".tmp"); err != nil {
		t.Fatal(err)
	}
	if err := Write(path, []byte("newer"), Options{Temp: ".tmp"}); err == nil {
		t.Error("a link was followed")
	}
	if _, err := os.Lstat(other); err == nil {
		t.Error("the target of a link was written")
	}
}

func TestRewrite_FileStaysOpenForReadsAndAppends(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	text := func(text string) func(io.Writer) error {
		return func(w io.Writer) error {
			_, err := io.WriteString(w, text)
			return err
		}
	}
	for range 2 {
		f, err := Rewrite(path, Options{Temp: ".tmp"}, text("whole\n"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString("more\n"); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 11)
		if _, err := f.ReadAt(got, 0); err != nil || string(got) != "whole\nmore\n" {
			t.Errorf("%q, %v", got, err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	over := errors.New("over")
	if _, err := Rewrite(path, Options{Temp: ".tmp"}, func(io.Writer) error { return over }); !errors.Is(err, over) {
		t.Errorf("error %v", err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "whole\nmore\n" {
		t.Errorf("after an error: %q, %v", got, err)
	}
	if err := os.MkdirAll(filepath.Join(path+"2", "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Rewrite(path+"2", Options{Temp: ".tmp"}, text("x")); err == nil {
		t.Error("a directory was replaced")
	}
	if got := names(t, filepath.Dir(path)); !slices.Equal(got, []string{"file", "file2"}) {
		t.Errorf("the directory holds %q", got)
	}
}

func TestSyncDir(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := SyncDir(dir); err != nil {
		t.Error(err)
	}
	if err := SyncDir(filepath.Join(dir, "missing")); !os.IsNotExist(err) {
		t.Errorf("error %v", err)
	}
}

func TestRemoveRandom_KilledWriters_OnlyTheirFilesGo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{".images-used.json-123", ".a-b.pem-4", ".dockercfg", ".x-1", "x.json-1", "x.json", "x.json.tmp", ".x.json-1a"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, ".dir.d-1"), 0o700); err != nil {
		t.Fatal(err)
	}
	RemoveRandom(dir)
	RemoveRandom(filepath.Join(dir, "missing"))
	if got, want := names(t, dir), []string{".dir.d-1", ".dockercfg", ".x-1", ".x.json-1a", "x.json", "x.json-1", "x.json.tmp"}; !slices.Equal(got, want) {
		t.Errorf("left: %q, want %q", got, want)
	}
}
