//go:build unix

package readonly

import (
	"fmt"
	"io/fs"
	"slices"
	"syscall"
)

// writers returns a text if users other than root and owners can write the file of a policy, or
// replace it in a directory. fix is the command that prevents it.
func writers(st fs.FileInfo, owners []int) (what, fix string) {
	mode, others := st.Mode(), fs.FileMode(0o022)
	switch {
	case !st.IsDir():
	case mode&fs.ModeSticky != 0:
		others = 0
	default: // members of the group cannot create a file that belongs to an owner
		others = 0o002
	}
	if mode&others != 0 {
		return fmt.Sprintf("can be written by others (mode %04o)", mode.Perm()), "chmod go-w"
	}
	if s, ok := st.Sys().(*syscall.Stat_t); ok && s.Uid != 0 && !slices.Contains(owners, int(s.Uid)) {
		return fmt.Sprintf("belongs to uid %d, neither root nor the caller", s.Uid), "chown root"
	}
	return "", ""
}
