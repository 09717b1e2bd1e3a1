//go:build unix

package trust

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// maxLinks is the limit of symbolic links in a path.
const maxLinks = 40

// Path returns the first problem on the way to path: a file, directory or link that users
// beside root and owners may write to; nil means none. It follows links one by one, and
// checks the way to each.
func Path(path string, owners []int) (*Problem, error) { return walk(path, owners, true) }

// ParentPath is like Path, but does not check the file at the end of path.
func ParentPath(path string, owners []int) (*Problem, error) { return walk(path, owners, false) }

func walk(path string, owners []int, last bool) (*Problem, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	at, rest, links := "/", strings.Split(path, "/"), 0
	for {
		st, err := os.Lstat(at)
		if err != nil {
			return nil, err
		}
		link := st.Mode()&fs.ModeSymlink != 0
		if last || link || len(rest) > 0 {
			if p := Check(at, Of(st), owners); p != nil {
				return p, nil
			}
		}
		if link {
			to, err := os.Readlink(at)
			if links++; err == nil && links > maxLinks {
				err = errors.New("too many links")
			}
			if err != nil {
				return nil, &fs.PathError{Op: "follow", Path: at, Err: err}
			}
			at = filepath.Dir(at)
			if filepath.IsAbs(to) {
				at = "/"
			}
			rest = append(strings.Split(to, "/"), rest...)
		}
		for len(rest) > 0 && (rest[0] == "" || rest[0] == ".") {
			rest = rest[1:]
		}
		if len(rest) == 0 {
			if link {
				continue // its target is a directory that was checked on the way, or at
			}
			return nil, nil
		}
		at, rest = filepath.Join(at, rest[0]), rest[1:]
	}
}

// Of returns the Entry for a file's information.
func Of(st fs.FileInfo) Entry {
	e := Entry{Mode: uint32(st.Mode().Perm()), Dir: st.IsDir(), Link: st.Mode()&fs.ModeSymlink != 0}
	if st.Mode()&fs.ModeSticky != 0 {
		e.Mode |= 0o1000
	}
	if s, ok := st.Sys().(*syscall.Stat_t); ok {
		e.UID, e.GID = s.Uid, s.Gid
	}
	return e
}
