package bundle

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodectl/nodectl/test/suite"
)

// An archive that others could have written, or replaced, is not imported: it would become
// the image of every pod that names it. It is reported once, and tried again when only its
// owner can write to it.
//
// Shows: D1
func TestImport_ArchiveOfOthers_IsNotImported(t *testing.T) {
	suite.NeedsRoot(t, "the test changes owners of files")
	const otherUser = 12345
	for name, c := range map[string]struct {
		bad  func(dir string) error
		want string
	}{
		"a directory for everybody": {func(dir string) error { return os.Chmod(dir, 0o777) }, "can be written by all users (mode 0777)"},
		"an ancestor of a group": {func(dir string) error {
			if err := os.Chown(filepath.Dir(dir), -1, otherUser); err != nil {
				return err
			}
			return os.Chmod(filepath.Dir(dir), 0o770)
		}, "can be written by group 12345 (mode 0770)"},
		"an archive for everybody": {func(dir string) error { return os.Chmod(filepath.Join(dir, "a.tar"), 0o666) }, "can be written by all users (mode 0666)"},
		"another user's archive":   {func(dir string) error { return os.Chown(filepath.Join(dir, "a.tar"), otherUser, -1) }, "belongs to uid 12345"},
		"another user's link": {func(dir string) error {
			if err := os.Rename(filepath.Join(dir, "a.tar"), filepath.Join(dir, "real")); err != nil {
				return err
			}
			if err := os.Symlink("real", filepath.Join(dir, "a.tar")); err != nil {
				return err
			}
			return os.Lchown(filepath.Join(dir, "a.tar"), otherUser, -1)
		}, "is a symbolic link of uid 12345"},
	} {
		dir := filepath.Join(t.TempDir(), "above", "images")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		old(t, filepath.Join(dir, "a.tar"))
		if err := c.bad(dir); err != nil {
			t.Fatal(err)
		}
		config := ImagesConfig{Dir: dir, Endpoint: served(t, true), Memory: filepath.Join(t.TempDir(), "memory")}
		m := NewImages(config)
		if err := m.Import(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
		if err := m.Import(t.Context()); err != nil {
			t.Errorf("%s, a second pass: %v", name, err)
		}
		// Once no other user can write to it, it is tried again: this runtime imports
		// nothing.
		for _, path := range []string{filepath.Dir(dir), dir} {
			if err := os.Chown(path, 0, 0); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(path, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Lchown(filepath.Join(dir, "a.tar"), 0, 0); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(dir, "a.tar"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := m.Import(t.Context()); err == nil || !strings.Contains(err.Error(), "does not import image archives") {
			t.Errorf("%s, mended: %v", name, err)
		}
		config.Insecure = true
		if err := os.Chmod(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		if err := NewImages(config).Import(t.Context()); err == nil || !strings.Contains(err.Error(), "does not import image archives") {
			t.Errorf("%s, lifted: %v", name, err)
		}
	}
}
