package bundle

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// saving writes an archive of that text.
func saving(text string) func(io.Writer) error {
	return func(to io.Writer) error {
		_, err := io.WriteString(to, text)
		return err
	}
}

// A user who may write to the directory has put a link there: the file that it leads to stays as
// it is, for a file, a device and a FIFO alike.
func TestWriteArchive_LinkOfAnother_IsNotFollowed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	secret, fifo := filepath.Join(dir, "shadow"), filepath.Join(dir, "fifo")
	if err := errors.Join(os.WriteFile(secret, []byte("root"), 0o600), syscall.Mkfifo(fifo, 0o600)); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"file.tar": secret, "fifo.tar": fifo, "nothing.tar": filepath.Join(dir, "new")} {
		path := filepath.Join(dir, name)
		if err := os.Symlink(target, path); err != nil {
			t.Fatal(err)
		}
		if err := writeArchive(path, saving("archive")); err == nil {
			t.Errorf("%s was written", name)
		}
		if _, err := os.Readlink(path); err != nil {
			t.Errorf("%s: the link is gone: %v", name, err)
		}
	}
	if text, err := os.ReadFile(secret); err != nil || string(text) != "root" {
		t.Errorf("the file that the link leads to has %q: %v", text, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "new")); err == nil {
		t.Error("a file was made behind the link")
	}
}

// An archive is for its owner alone, and one that cannot be written leaves the one before.
func TestWriteArchive_FailsHalfway_LeavesTheArchiveBefore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "image.tar")
	if err := writeArchive(path, saving("good")); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	broken := errors.New("containerd is gone")
	err := writeArchive(path, func(to io.Writer) error { return errors.Join(saving("half")(to), broken) })
	if !errors.Is(err, broken) {
		t.Error(err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "good" {
		t.Errorf("the archive before is %q: %v", text, err)
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) != 1 {
		t.Errorf("the directory has %v, %v", names, err)
	}
}

// A FIFO is written into, and stays when that fails.
func TestWriteArchive_FIFO_IsWrittenAndStays(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	broken := errors.New("containerd is gone")
	if err := writeArchive(path, func(to io.Writer) error { return errors.Join(saving("archive")(to), broken) }); !errors.Is(err, broken) {
		t.Error(err)
	}
	text := make([]byte, 7)
	if _, err := io.ReadFull(reader, text); err != nil || string(text) != "archive" {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the FIFO is gone: %v", err)
	}
}
