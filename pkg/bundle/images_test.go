package bundle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestImageArchivesByName(t *testing.T) {
	for name, want := range map[string]struct{ stem, image string }{
		"web.tar":           {"web", "localhost/web"},
		"web.tar.gz":        {"web", "localhost/web"},
		"web.tgz":           {"web", "localhost/web"},
		"web-1.2.tar.zst":   {"web-1.2", "localhost/web-1-2"},
		"My App (new).tar":  {"My App (new)", "localhost/my-app--new"},
		"ütf.tar":           {"ütf", "localhost/tf"},
		"---.tar":           {"---", "localhost/image"},
		".web.tar":          {"", ""},
		".tar":              {"", ""},
		"web.tar.part":      {"", ""},
		"web.zip":           {"", ""},
		"notes.txt":         {"", ""},
		"web.tar~":          {"", ""},
		"docker-images.tar": {"docker-images", "localhost/docker-images"},
	} {
		if got := stem(name); got != want.stem {
			t.Errorf("stem of %q is %q, want %q", name, got, want.stem)
		}
		if want.stem != "" {
			if got := unnamed(name); got != want.image {
				t.Errorf("%q becomes %q, want %q", name, got, want.image)
			}
		}
	}
}

// old writes a file whose last write is long past.
func old(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	past := time.Now().Add(-time.Minute)
	if err := os.Chtimes(path, past, past); err != nil {
		t.Fatal(err)
	}
}

func TestImportWhereThereIsNothing(t *testing.T) {
	dir := t.TempDir()
	for name, sub := range map[string]string{"missing": "no", "empty": ""} {
		m := NewImages(ImagesConfig{Dir: filepath.Join(dir, sub), Endpoint: "/nowhere", Memory: filepath.Join(dir, "memory")})
		if err := m.Import(t.Context()); err != nil {
			t.Errorf("%s directory: %v", name, err)
		}
	}
}

// TestImportOnAnotherRuntime: one log line, however many archives and passes.
func TestImportOnAnotherRuntime(t *testing.T) {
	dir := t.TempDir()
	old(t, filepath.Join(dir, "a.tar"))
	old(t, filepath.Join(dir, "b.tar"))
	m := NewImages(ImagesConfig{Dir: dir, Endpoint: served(t, true), Memory: filepath.Join(t.TempDir(), "memory")})
	err := m.Import(t.Context())
	if err == nil || strings.Count(err.Error(), "\n") != 0 || !strings.Contains(err.Error(), "does not import image archives") {
		t.Errorf("first pass: %v", err)
	}
	if err := m.Import(t.Context()); err != nil {
		t.Errorf("second pass: %v", err)
	}
}

func TestImportNeverOpensAFIFO(t *testing.T) {
	dir := t.TempDir()
	mkfifo(t, filepath.Join(dir, "a.tar"))
	m := NewImages(ImagesConfig{Dir: dir, Endpoint: served(t, true), Memory: filepath.Join(t.TempDir(), "memory")})
	if err := m.Import(t.Context()); err != nil {
		t.Error(err)
	}
}

// A user who can write in the directory replaces an archive between the check and the open:
// a FIFO does not block the agent, and another file is not imported.
func TestTake_ArchiveExchangedAfterTheLook_IsRefused(t *testing.T) {
	for name, exchange := range map[string]func(path string){
		"a FIFO":       func(path string) { mkfifo(t, path) },
		"another file": func(path string) { old(t, path) },
		"a device": func(path string) {
			if err := os.Symlink("/dev/null", path); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "a.tar")
			old(t, path)
			m := NewImages(ImagesConfig{Dir: dir, Endpoint: "/nowhere", Memory: filepath.Join(dir, "memory")})
			seen, ok := m.archiveState("a.tar")
			if !ok {
				t.Fatal("the archive is not there")
			}
			if err := os.Rename(path, path+".old"); err != nil {
				t.Fatal(err)
			}
			exchange(path)
			if err := m.importOne(t.Context(), nil, "a.tar", seen); err == nil || !strings.Contains(err.Error(), "it was replaced by another file") {
				t.Errorf("take: %v", err)
			}
		})
	}
}

// The owner of an archive holds a write lease on it: the open fails instead of waiting
// until the kernel breaks the lease, and the archive is looked at again.
func TestImport_OwnerHoldsALease_IsTriedAgain(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.tar")
	old(t, path)
	m := NewImages(ImagesConfig{Dir: dir, Endpoint: served(t, true), Memory: filepath.Join(t.TempDir(), "memory")})
	owners, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer owners.Close()
	if _, err := unix.FcntlInt(owners.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Fatal(err)
	}
	seen, _ := m.archiveState("a.tar")
	if err := m.importOne(t.Context(), nil, "a.tar", seen); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("take: %v, want %v", err, unix.EWOULDBLOCK)
	}
	if again, errs := m.pass(t.Context()); again != settle || len(errs) > 0 || len(m.known) > 0 {
		t.Errorf("looked at again in %v, errors %v, known %v", again, errs, m.known)
	}
}

// An archive that others own is not opened: its owner could hold the import up by a lease.
func TestImport_OthersHoldALease_IsRefusedUnopened(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.tar")
	old(t, path)
	if err := os.Chown(path, 12345, 12345); err != nil {
		t.Skip("needs root to change a file's owner; make test has it:", err)
	}
	owners, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer owners.Close()
	if _, err := unix.FcntlInt(owners.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Fatal(err)
	}
	m := NewImages(ImagesConfig{Dir: dir, Endpoint: served(t, true), Memory: filepath.Join(t.TempDir(), "memory")})
	if again, errs := m.pass(t.Context()); again != 0 || len(errs) != 1 || len(m.untrusted) != 1 {
		t.Errorf("looked at again in %v, errors %v", again, errs)
	}
}

// However many archives a user puts into a directory that others can write, there is one
// report.
func TestImport_ManyArchivesOfOthers_AreOneReport(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "open")
	if err := os.Mkdir(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	m := NewImages(ImagesConfig{Dir: dir, Endpoint: served(t, true), Memory: filepath.Join(t.TempDir(), "memory")})
	reports := 0
	for i := range 20 {
		old(t, filepath.Join(dir, fmt.Sprintf("%d.tar", i)))
		_, errs := m.pass(t.Context())
		reports += len(errs)
	}
	if reports != 1 || len(m.untrusted) != 1 {
		t.Errorf("%d reports and %d entries of 20 archives, want 1 and 1", reports, len(m.untrusted))
	}
}

func TestWatchEndsWithItsContext(t *testing.T) {
	var log bytes.Buffer
	ctx, cancel := context.WithCancel(t.Context())
	m := NewImages(ImagesConfig{Dir: filepath.Join(t.TempDir(), "missing"), Endpoint: "/nowhere", Log: slog.New(slog.NewTextHandler(&log, nil))})
	done := make(chan error)
	go func() { done <- m.Watch(ctx) }()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if log.Len() > 0 {
		t.Errorf("the log has %s", &log)
	}
}

func mkfifo(t *testing.T, path string) {
	t.Helper()
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
}
