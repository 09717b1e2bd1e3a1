package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestStore_AnotherClone_GetsTheNewestBinaries: a whole run replaces the kept binaries and removes
// those of packages that are gone; a run of some packages removes none.
func TestStore_AnotherClone_GetsTheNewestBinaries(t *testing.T) {
	s := store(filepath.Join(t.TempDir(), "nodectl", "tests"))
	out, clone := t.TempDir(), 0
	for _, run := range []struct {
		made  []string // with their content behind "="
		whole bool
		want  []string
	}{
		{[]string{"0-0/a.test=1", "0-0/b.test=1", "1-0/a.test=1"}, true, []string{"0-0/a.test=1", "0-0/b.test=1", "1-0/a.test=1"}},
		{[]string{"0-0/a.test=2"}, false, []string{"0-0/a.test=2", "0-0/b.test=1", "1-0/a.test=1"}},
		{[]string{"0-0/a.test=2", "1-0/a.test=3"}, true, []string{"0-0/a.test=2", "1-0/a.test=3"}},
	} {
		var names []string
		for _, made := range run.made {
			name, text, _ := strings.Cut(made, "=")
			names = append(names, name)
			replace(t, filepath.Join(out, name), text)
		}
		if err := s.keep(out, names, run.whole); err != nil {
			t.Fatal(err)
		}
		clone++
		other := filepath.Join(t.TempDir(), "test")
		s.restore(other)
		if got := texts(t, other); !slices.Equal(got, run.want) {
			t.Errorf("after run %d another clone has %v, want %v", clone, got, run.want)
		}
		// go replaces a file and does not write into it.
		replace(t, filepath.Join(other, "0-0/a.test"), "other")
		if got := texts(t, string(s)); !slices.Equal(got, run.want) {
			t.Errorf("after a change in another clone, %v are kept, want %v", got, run.want)
		}
	}
}

func TestOpenStore_FullTierOrKeepIsNo_KeepsNothing(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", "/cache")
	if got := openStore(options{tier: "first"}); got != "/cache/nodectl/tests" {
		t.Errorf("first tier: %q", got)
	}
	if got := openStore(options{tier: "full"}); got != "" {
		t.Errorf("full tier: %q", got)
	}
	t.Setenv("KEEP", "no")
	if got := openStore(options{tier: "first"}); got != "" {
		t.Errorf("KEEP=no: %q", got)
	}
	out := filepath.Join(t.TempDir(), "test")
	store("").restore(out)
	if _, err := os.Stat(out); !os.IsNotExist(err) {
		t.Errorf("without a store something is restored: %v", err)
	}
	if err := store("").keep(out, []string{"0-0/a.test"}, true); err != nil {
		t.Errorf("keep without a store: %v", err)
	}
}

func replace(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	part := name + ".part"
	if err := os.WriteFile(part, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(part, name); err != nil {
		t.Fatal(err)
	}
}

// texts returns the files below dir with their content behind "=".
func texts(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for i, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		rel, err := filepath.Rel(dir, file)
		if err != nil {
			t.Fatal(err)
		}
		files[i] = rel + "=" + string(text)
	}
	return files
}
