package readonly

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/test/suite"
)

// TestPolicy_WritableByOthers_IsRefused: a policy that another user could write or replace is
// refused, and so is anything but a regular file, without blocking on it.
func TestPolicy_WritableByOthers_IsRefused(t *testing.T) {
	t.Parallel()
	const otherUser = 12345
	me := os.Getuid()
	for _, c := range []struct {
		name string
		make func(dir, path string) error
		want string // "": the policy is accepted
	}{
		{"its owner's", func(string, string) error { return nil }, ""},
		{"in a directory where each has his own", func(dir, _ string) error { return os.Chmod(dir, 0o777|os.ModeSticky) }, ""},
		{"in a directory of a group", func(dir, _ string) error { return os.Chmod(dir, 0o775) }, ""},
		{"below a directory of a group, not another user's", func(dir, _ string) error {
			return firstOf(os.Chown(filepath.Dir(dir), -1, otherUser), os.Chmod(filepath.Dir(dir), 0o770))
		}, "which can be written by group 12345 (mode 0770)"},
		{"in a directory of a group, not another user's", func(dir, _ string) error {
			return firstOf(os.Chown(dir, -1, otherUser), os.Chmod(dir, 0o770))
		}, "which can be written by group 12345 (mode 0770)"},
		{"written by all", func(_, path string) error { return os.Chmod(path, 0o646) }, "can be written by others (mode 0646)"},
		{"written by a group", func(_, path string) error { return os.Chmod(path, 0o664) }, "can be written by others (mode 0664)"},
		{"sticky and written by all", func(_, path string) error { return os.Chmod(path, 0o666|os.ModeSticky) }, "can be written by others (mode 0666)"},
		{"in a directory for all", func(dir, _ string) error { return os.Chmod(dir, 0o777) }, "which can be written by others (mode 0777)"},
		{"another user's", func(_, path string) error { return os.Chown(path, otherUser, -1) }, "belongs to uid 12345, neither root nor the caller"},
		{"in another user's directory", func(dir, _ string) error { return os.Chown(dir, otherUser, -1) }, "which belongs to uid 12345, neither root nor the caller"},
		{"a pipe", func(_, path string) error { _ = os.Remove(path); return unix.Mkfifo(path, 0o600) }, "is not a regular file"},
		{"a directory", func(_, path string) error { _ = os.Remove(path); return os.Mkdir(path, 0o700) }, "is not a regular file"},
		{"a link to nothing", func(_, path string) error { _ = os.Remove(path); return os.Symlink("nothing", path) }, "no such file or directory"},
		{"a link to itself", func(_, path string) error { _ = os.Remove(path); return os.Symlink("policy.yaml", path) }, "too many links"},
		{"a link to another user's", func(dir, path string) error {
			_ = os.Rename(path, filepath.Join(dir, "real"))
			return firstOf(os.Symlink("real", path), os.Chown(filepath.Join(dir, "real"), otherUser, -1))
		}, "belongs to uid 12345"},
		{"too large", func(_, path string) error { return os.Truncate(path, maxPolicySize+1) }, "is larger than 1 MiB"},
		{"as large as can be", func(_, path string) error { return os.Truncate(path, maxPolicySize) }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if strings.Contains(c.name, "another user's") {
				suite.NeedsRoot(t, "a file belongs to another user")
			}
			dir := filepath.Join(t.TempDir(), "etc")
			path := filepath.Join(dir, "policy.yaml")
			if err := firstOf(os.Mkdir(dir, 0o755), os.WriteFile(path, []byte("x"), 0o644), c.make(dir, path)); err != nil {
				t.Fatal(err)
			}
			_, err := readPolicy(path, []int{me})
			switch {
			case c.want == "" && err != nil:
				t.Error(err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path)):
				t.Errorf("%v, want %s", err, c.want)
			}
		})
	}
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
