package logs

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestKeep_PodIsRemoved_NewestAttemptsStay: Keep copies the ends of the two newest logs of each
// container. It follows no link out of the directory.
func TestKeep_PodIsRemoved_NewestAttemptsStay(t *testing.T) {
	t.Parallel()
	dir, to := t.TempDir(), filepath.Join(t.TempDir(), "kept")
	at := filepath.Join(dir, "default_web_1", "c")
	if err := os.MkdirAll(at, 0o755); err != nil {
		t.Fatal(err)
	}
	secret := filepath.Join(t.TempDir(), "shadow")
	long := append(bytes.Repeat([]byte("a"), 100), bytes.Repeat([]byte("b"), keptBytes)...)
	for name, text := range map[string][]byte{filepath.Join(at, "0.log"): []byte("0"), filepath.Join(at, "9.log"): []byte("9"), filepath.Join(at, "10.log"): long, filepath.Join(at, "9.log.gz"): nil, secret: []byte("root")} {
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(secret, filepath.Join(at, "11.log")); err != nil {
		t.Fatal(err)
	}
	err := Keep(dir, "default_web_1", to)
	if err == nil {
		t.Error("a link out of the directory is no error")
	}
	entries, _ := os.ReadDir(filepath.Join(to, "c"))
	if len(entries) != 1 || entries[0].Name() != "10.log" {
		t.Fatalf("%v", entries)
	}
	if text, _ := os.ReadFile(filepath.Join(to, "c", "10.log")); !bytes.Equal(text, long[100:]) {
		t.Errorf("%d bytes", len(text))
	}
	if err := os.Remove(filepath.Join(at, "11.log")); err != nil {
		t.Fatal(err)
	}
	if err := Keep(dir, "default_web_1", to); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(filepath.Join(to, "c", "9.log")); err != nil || string(text) != "9" {
		t.Errorf("%q %v", text, err)
	}
}

// TestKeep_PodHasPutAPipeOrALink_IsNotOpened: a pipe would block Keep, and a link could lead to the
// log of another pod.
//
// Shows: F84
func TestKeep_PodHasPutAPipeOrALink_IsNotOpened(t *testing.T) {
	t.Parallel()
	dir, to := t.TempDir(), filepath.Join(t.TempDir(), "kept")
	at, other := filepath.Join(dir, "default_web_1", "c"), filepath.Join(dir, "default_db_2", "c")
	for _, d := range []string{at, other} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(other, "0.log"), []byte("of another pod"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, pipe := range []string{filepath.Join(at, "1.log"), filepath.Join(dir, "default_web_1", "d")} {
		if err := unix.Mkfifo(pipe, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../../default_db_2/c/0.log", filepath.Join(at, "0.log")); err != nil {
		t.Fatal(err)
	}
	err := Keep(dir, "default_web_1", to)
	if !errors.Is(err, ErrNotRegular) || !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("error %v", err)
	}
	if entries, _ := os.ReadDir(filepath.Join(to, "c")); len(entries) > 0 {
		t.Errorf("copied %v", entries)
	}
}

// TestKeepNewest_ManyVersions_OldOnesGo: names that are no numbers stay.
func TestKeepNewest_ManyVersions_OldOnesGo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"2", "9", "10", "x"} {
		if err := os.MkdirAll(filepath.Join(dir, name, "pod"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := KeepNewest(dir, 2); err != nil {
		t.Fatal(err)
	}
	entries, _ := os.ReadDir(dir)
	var names string
	for _, e := range entries {
		names += e.Name() + " "
	}
	if names != "10 9 x " {
		t.Error(names)
	}
	if err := KeepNewest(filepath.Join(dir, "missing"), 1); err != nil {
		t.Error(err)
	}
}
