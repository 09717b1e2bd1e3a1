//go:build unix

package cmd

import (
	"fmt"
	"io/fs"
	"slices"
	"syscall"
)

// writers says who beside root and owners may write a policy, or put another in
// its place in a directory, and the command that ends it.
func writers(st fs.FileInfo, owners []int) (what, fix string) {
	mode, others := st.Mode(), fs.FileMode(0o022)
	switch {
	case !st.IsDir():
	case mode&fs.ModeSticky != 0:
		others = 0
	default: // who is of the group can put nothing there that belongs to an owner
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
