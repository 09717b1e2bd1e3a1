//go:build linux

package trust_test

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/pkg/trust"
	"github.com/nodectl/nodectl/test/suite"
)

// Groups and users that are neither root's nor the test's.
const (
	otherUser = 12345
	crew      = 23456
)

// Path finds each place on the way to a file where another user could replace it: the file,
// the directories above it, the links, and the way to their targets.
//
// Shows: D1
func TestPath_OthersOnTheWay_AreFound(t *testing.T) {
	t.Parallel()
	suite.NeedsRoot(t, "the test changes owners of files")
	group := func(path string, mode os.FileMode) func(*testing.T) {
		return func(t *testing.T) { own(t, path, 0, crew); chmod(t, path, mode) }
	}
	for name, c := range map[string]struct {
		bad  func(dir string) func(*testing.T)
		want string // "" means no problem
	}{
		"nothing":                     {func(string) func(*testing.T) { return func(*testing.T) {} }, ""},
		"a file of a group":           {func(d string) func(*testing.T) { return group(d+"/real/file", 0o660) }, "D/real/file can be written by group 23456 (mode 0660)"},
		"a directory of a group":      {func(d string) func(*testing.T) { return group(d+"/real", 0o775) }, "D/real can be written by group 23456 (mode 0775)"},
		"an ancestor of a group":      {func(d string) func(*testing.T) { return group(d, 0o770) }, "D can be written by group 23456 (mode 0770)"},
		"an ancestor that is sticky":  {func(d string) func(*testing.T) { return group(d, 0o770|os.ModeSticky) }, ""},
		"a group that may only read":  {func(d string) func(*testing.T) { return group(d+"/real", 0o750) }, ""},
		"root's group":                {func(d string) func(*testing.T) { return func(t *testing.T) { chmod(t, d+"/real", 0o770) } }, ""},
		"an ancestor for everybody":   {func(d string) func(*testing.T) { return func(t *testing.T) { chmod(t, d, 0o777) } }, "D can be written by all users (mode 0777)"},
		"an ancestor of another user": {func(d string) func(*testing.T) { return func(t *testing.T) { own(t, d, otherUser, 0) } }, "D belongs to uid 12345, neither root nor the caller"},
		"an owner who is trusted":     {func(d string) func(*testing.T) { return func(t *testing.T) { own(t, d+"/real", 1000, 0) } }, ""},
		"another user's link":         {func(d string) func(*testing.T) { return func(t *testing.T) { own(t, d+"/link", otherUser, 0) } }, "D/link is a symbolic link of uid 12345, neither root nor the caller"},
		"the way a link leads":        {func(d string) func(*testing.T) { return group(d+"/hop", 0o770) }, "D/hop can be written by group 23456 (mode 0770)"},
		"what a trusted owner's group has": {func(d string) func(*testing.T) {
			return func(t *testing.T) { own(t, d+"/real", 1000, 1000); chmod(t, d+"/real", 0o775) }
		}, "D/real can be written by group 1000 (mode 0775)"},
	} {
		dir := filepath.Join(t.TempDir(), "d")
		for _, d := range []string{dir, dir + "/real", dir + "/hop"} {
			must(t, os.Mkdir(d, 0o755))
		}
		must(t, os.WriteFile(dir+"/real/file", nil, 0o644))
		must(t, os.Symlink("hop/on", dir+"/link"))
		must(t, os.Symlink(dir+"/hop/../real", dir+"/hop/on"))
		c.bad(dir)(t)
		p, err := trust.Path(dir+"/link/file", []int{1000})
		got := ""
		if p != nil {
			got = strings.ReplaceAll(p.Error(), dir, "D")
		}
		if err != nil || got != c.want {
			t.Errorf("%s: %q, %v, want %q", name, got, err, c.want)
		}
	}
}

// If there is an ACL, the bits of root's group are its mask. Path finds a user or a group
// that the ACL names behind them.
func TestPath_ACLNamesAnotherUser_IsFound(t *testing.T) {
	t.Parallel()
	suite.NeedsRoot(t, "the test changes owners of files")
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o644))
	const user, group, write, read = 0x02, 0x08, 6, 4
	for name, c := range map[string]struct {
		tag  uint16
		perm uint16
		id   uint32
		want string
	}{
		"another user":  {user, write, otherUser, "can be written by uid 12345 (POSIX ACL)"},
		"another group": {group, write, crew, "can be written by group 23456 (POSIX ACL)"},
		"a reader":      {user, read, otherUser, ""},
		"an owner":      {user, write, 1000, ""},
		"root's group":  {group, write, 0, ""},
	} {
		acl := binary.LittleEndian.AppendUint32(nil, 2)
		for _, e := range [][3]uint32{{0x01, write, ^uint32(0)}, {0x02, read, 1}, {0x04, read, ^uint32(0)}, {0x08, read, 1}, {0x10, write, ^uint32(0)}, {0x20, read, ^uint32(0)}} {
			tag, perm, id := uint16(e[0]), uint16(e[1]), e[2]
			if tag == c.tag {
				perm, id = c.perm, c.id
			}
			acl = binary.LittleEndian.AppendUint16(acl, tag)
			acl = binary.LittleEndian.AppendUint16(acl, perm)
			acl = binary.LittleEndian.AppendUint32(acl, id)
		}
		if err := unix.Setxattr(file, "system.posix_acl_access", acl, 0); err != nil {
			t.Fatalf("the filesystem of %s has no ACLs: %v", file, err)
		}
		st, err := os.Lstat(file)
		must(t, err)
		p := trust.Check(file, trust.Of(st), []int{1000})
		got := ""
		if p != nil {
			got = p.What
		}
		if got != c.want || st.Mode().Perm() != 0o664 {
			t.Errorf("%s: %q with mode %v, want %q", name, got, st.Mode(), c.want)
		}
	}
}

// Check reads the ACL of the open file, whatever is at its path meanwhile. For a removed
// file it reads none from the path.
func TestJudge_FileIsExchanged_ACLIsOfWhatIsOpen(t *testing.T) {
	t.Parallel()
	suite.NeedsRoot(t, "the test gives a file to root's group")
	path := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(path, nil, 0o644))
	acl := binary.LittleEndian.AppendUint32(nil, 2)
	for _, e := range [][3]uint32{{0x01, 6, ^uint32(0)}, {0x02, 6, otherUser}, {0x04, 4, ^uint32(0)}, {0x10, 6, ^uint32(0)}, {0x20, 4, ^uint32(0)}} {
		acl = binary.LittleEndian.AppendUint16(acl, uint16(e[0]))
		acl = binary.LittleEndian.AppendUint16(acl, uint16(e[1]))
		acl = binary.LittleEndian.AppendUint32(acl, e[2])
	}
	must(t, unix.Setxattr(path, "system.posix_acl_access", acl, 0))
	for name, flags := range map[string]int{"a descriptor": unix.O_RDONLY, "one that cannot read": unix.O_PATH} {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
		must(t, err)
		t.Cleanup(func() { _ = unix.Close(fd) })
		e := trust.Entry{Mode: 0o664, FD: fd}
		must(t, os.Rename(path, path+".open"))
		if p := trust.Check(path, e, nil); p == nil || p.What != "can be written by uid 12345 (POSIX ACL)" {
			t.Errorf("%s of a file that is gone: %v", name, p)
		}
		must(t, os.WriteFile(path, nil, 0o644))
		if p := trust.Check(path, e, nil); p == nil || p.What != "can be written by uid 12345 (POSIX ACL)" {
			t.Errorf("%s of a file that was exchanged: %v", name, p)
		}
		must(t, os.Rename(path+".open", path))
	}
	if p := trust.Check(path+".gone", trust.Entry{Mode: 0o664}, nil); p == nil {
		t.Error("a file that is gone counts as one without an ACL")
	}
}

// Above does not check the end of the path; a loop of links ends.
func TestAbove_End_IsNotJudged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must(t, os.Mkdir(dir+"/open", 0o700))
	chmod(t, dir+"/open", 0o777)
	if p, err := trust.ParentPath(dir+"/open", []int{os.Getuid()}); p != nil || err != nil {
		t.Errorf("%v, %v", p, err)
	}
	must(t, os.WriteFile(dir+"/open/file", nil, 0o600))
	if p, err := trust.ParentPath(dir+"/open/file", []int{os.Getuid()}); p == nil || err != nil {
		t.Errorf("%v, %v", p, err)
	}
	must(t, os.Symlink("loop", dir+"/loop"))
	if p, err := trust.Path(dir+"/loop", []int{os.Getuid()}); err == nil {
		t.Errorf("a loop: %v", p)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func chmod(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	must(t, os.Chmod(path, mode))
}

func own(t *testing.T, path string, uid, gid int) {
	t.Helper()
	must(t, os.Lchown(path, uid, gid))
}
