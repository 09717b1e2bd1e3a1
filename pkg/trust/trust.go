// Package trust finds which users can change or replace a file of this machine. The agent reads
// such files as root, so their writers control the agent.
//
// Trusted are root, the owners that the caller names, root's group, and the group of the
// agent's own user if that is private to it (its number is the user's). The sticky bit
// keeps others from replacing the files of a directory.
//
// The package only reads the file system.
package trust

import (
	"fmt"
	"os"
	"slices"
)

// Entry describes a file, a directory or a link for Check.
type Entry struct {
	Mode      uint32 // permission bits and the sticky bit, as the kernel has them
	UID, GID  uint32
	Dir, Link bool
	FD        int // an open descriptor of it, also of O_PATH; 0: look it up by its path
}

// Problem says who else may write; the zero value means no one else.
type Problem struct {
	Path string // the file they may write to
	What string // a predicate: "can be written by all users (mode 0777)"
	Fix  string // a command line
}

// Error returns the problem as one sentence.
func (p *Problem) Error() string { return p.Path + " " + p.What }

// Check returns a problem if users beside root and owners may write to the file that e
// describes at path; nil means none.
func Check(path string, e Entry, owners []int) *Problem {
	const sticky, group, others = 0o1000, 0o020, 0o002
	switch {
	case e.Link, e.Dir && e.Mode&sticky != 0: // the mode of a link has no meaning
	case e.Mode&others != 0:
		return &Problem{path, fmt.Sprintf("can be written by all users (mode %04o)", e.Mode), "chmod o-w " + path}
	case e.Mode&group != 0 && !trustedGroup(e.GID):
		return &Problem{path, fmt.Sprintf("can be written by group %d (mode %04o)", e.GID, e.Mode), "chmod g-w " + path}
	case e.Mode&group != 0: // if there is an ACL, the group bits are its mask
		acl, err := readACL(path, e.FD)
		if err != nil {
			return &Problem{path, fmt.Sprintf("has a POSIX ACL that cannot be read (%v)", err), "setfacl -b " + path}
		}
		if what := judgeACL(acl, owners); acl != nil && what != "" {
			return &Problem{path, what, "setfacl -b " + path}
		}
	}
	if e.UID == 0 || slices.Contains(owners, int(e.UID)) {
		return nil
	}
	if e.Link {
		return &Problem{path, fmt.Sprintf("is a symbolic link of uid %d, neither root nor the caller", e.UID), "chown -h root " + path}
	}
	return &Problem{path, fmt.Sprintf("belongs to uid %d, neither root nor the caller", e.UID), "chown root " + path}
}

// trustedGroup reports whether every member of a group may write as root or as the agent's
// user.
func trustedGroup(gid uint32) bool {
	return gid == 0 || int(gid) == os.Getegid() && os.Getegid() == os.Geteuid()
}
