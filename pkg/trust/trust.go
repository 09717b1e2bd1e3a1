// Package trust says who may change a file of this machine, or put another one in its
// place. What the agent reads as root from such a file is decided by its writers.
//
// Trusted are root, the owners that the caller names, root's group, and the group of the
// agent's own user where that is private to it (its number is the user's). The sticky bit
// keeps others from exchanging what lies in a directory.
//
// The one rule: it only looks.
package trust

import (
	"fmt"
	"os"
	"slices"
)

// Entry is what Judge has to know of a file, a directory or a link.
type Entry struct {
	Mode      uint32 // permission bits and the sticky bit, as the kernel has them
	UID, GID  uint32
	Dir, Link bool
	FD        int // an open descriptor of it, also of O_PATH; 0: it is looked up by its path
}

// Problem is who else may write: the zero one is nobody else.
type Problem struct {
	Path string // what they may write to
	What string // a predicate: "can be written by everybody (mode 0777)"
	Fix  string // a command line
}

// Error returns the problem as one sentence.
func (p *Problem) Error() string { return p.Path + " " + p.What }

// Judge says who beside root and owners may write to what e describes at path; nil is
// nobody.
func Judge(path string, e Entry, owners []int) *Problem {
	const sticky, group, others = 0o1000, 0o020, 0o002
	switch {
	case e.Link, e.Dir && e.Mode&sticky != 0: // a link's mode means nothing
	case e.Mode&others != 0:
		return &Problem{path, fmt.Sprintf("can be written by everybody (mode %04o)", e.Mode), "chmod o-w " + path}
	case e.Mode&group != 0 && !trustedGroup(e.GID):
		return &Problem{path, fmt.Sprintf("can be written by group %d (mode %04o)", e.GID, e.Mode), "chmod g-w " + path}
	case e.Mode&group != 0: // the bits of root's group are also the mask of an ACL
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

// trustedGroup reports whether who is of a group may write as root or the agent's user
// may.
func trustedGroup(gid uint32) bool {
	return gid == 0 || int(gid) == os.Getegid() && os.Getegid() == os.Geteuid()
}
