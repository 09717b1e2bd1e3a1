package volume_test

import (
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

// Shows: C-1.37.5
func TestC_1_37_5_HostPathTypes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	write(t, at("file"), "host's")
	if err := os.Mkdir(at("dir"), 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", at("socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := unix.Mkfifo(at("fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"link-dir": "dir", "link-file": "file", "link-none": "none"} {
		if err := os.Symlink(to, at(link)); err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		kind v1.HostPathType
		path string
		want string // "" is success, else the suffix of the error
	}{
		{"", at("missing"), ""},
		{"", at("file"), ""},
		{"", "relative", "has to be an absolute path"},
		{v1.HostPathDirectory, at("dir"), ""},
		{v1.HostPathDirectory, at("link-dir"), ""},
		{v1.HostPathDirectory, at("file"), "is not a directory"},
		{v1.HostPathDirectory, at("missing"), "does not exist"},
		{v1.HostPathDirectoryOrCreate, at("dir"), ""},
		{v1.HostPathDirectoryOrCreate, at("new/deep/dir"), ""},
		{v1.HostPathDirectoryOrCreate, at("file"), "is not a directory"},
		{v1.HostPathDirectoryOrCreate, at("link-none"), "no such file or directory"},
		{v1.HostPathDirectoryOrCreate, at("file/below"), "not a directory"},
		{v1.HostPathFile, at("file"), ""},
		{v1.HostPathFile, at("link-file"), ""},
		{v1.HostPathFile, at("dir"), "is not a file"},
		{v1.HostPathFile, at("fifo"), "is not a file"},
		{v1.HostPathFile, at("missing"), "does not exist"},
		{v1.HostPathFileOrCreate, at("file"), ""},
		{v1.HostPathFileOrCreate, at("new-file"), ""},
		{v1.HostPathFileOrCreate, at("dir"), "is not a file"},
		{v1.HostPathFileOrCreate, at("nowhere/file"), "no such file or directory"},
		{v1.HostPathSocket, at("socket"), ""},
		{v1.HostPathSocket, at("file"), "is not a socket"},
		{v1.HostPathSocket, at("missing"), "does not exist"},
		{v1.HostPathCharDev, "/dev/null", ""},
		{v1.HostPathCharDev, at("file"), "is not a character device"},
		{v1.HostPathBlockDev, "/dev/null", "is not a block device"},
		{v1.HostPathBlockDev, at("missing"), "does not exist"},
		{"Floppy", at("file"), `type "Floppy" is not known`},
	}
	for i, tt := range tests {
		p := newPlace(t)
		s := withUID(spec(host("h", tt.path, tt.kind)), uid)
		err := p.SetUp(s, 1)
		if tt.want == "" {
			if err != nil || !p.Ready(s, 1) {
				t.Errorf("%d %s %s: %v, want success", i, tt.kind, tt.path, err)
			}
			continue
		}
		if err == nil || p.Ready(s, 1) {
			t.Errorf("%d %s %s: %v, ready %t; want an error", i, tt.kind, tt.path, err, p.Ready(s, 1))
			continue
		}
		if want := "volume h: hostPath " + tt.path + ": " + tt.want; err.Error() != want {
			t.Errorf("%d %s: got %q, want %q", i, tt.kind, err, want)
		}
	}
	for path, mode := range map[string]fs.FileMode{"new/deep/dir": 0o755 | fs.ModeDir, "new-file": 0o644, "dir": 0o700 | fs.ModeDir, "file": 0o644} {
		if info, err := os.Lstat(at(path)); err != nil || info.Mode() != mode {
			t.Errorf("%s: mode %v (%v), want %v", path, info.Mode(), err, mode)
		}
	}
	if exists(t, at("missing")) || exists(t, at("none")) {
		t.Error("something was made that no type asked for")
	}
	if text, err := os.ReadFile(at("file")); string(text) != "host's" {
		t.Errorf("the host's file now holds %q (%v)", text, err)
	}
}

func TestHostPathContentsAreNeverRemoved(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	dir := t.TempDir()
	write(t, filepath.Join(dir, "file"), "host's")
	made := filepath.Join(dir, "made")
	s := withUID(spec(host("a", dir, ""), host("b", made, v1.HostPathDirectoryOrCreate), empty("e")), uid)
	p.setUp(t, s, 1)
	write(t, filepath.Join(made, "inside"), "container's")
	if err := p.TearDown(t.Context(), uid, 1); err != nil {
		t.Fatal(err)
	}
	if err := p.Forget(t.Context(), key, uid); err != nil {
		t.Fatal(err)
	}
	if !exists(t, filepath.Join(dir, "file")) || !exists(t, filepath.Join(made, "inside")) {
		t.Error("what a hostPath shows is gone")
	}
}
