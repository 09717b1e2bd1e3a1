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

// maxLinks is how many links a path may lead through.
const maxLinks = 40

// Path says who beside root and owners may write to path, or to a directory or link on the
// way to it: the first is named; nil is nobody. Links are followed one by one, and the way
// to each is judged.
func Path(path string, owners []int) (*Problem, error) { return walk(path, owners, true) }

// Above is Path but for what path itself is at its end.
func Above(path string, owners []int) (*Problem, error) { return walk(path, owners, false) }

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
			if p := Judge(at, Of(st), owners); p != nil {
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
				continue // what it leads to is a directory that was judged on the way, or at
			}
			return nil, nil
		}
		at, rest = filepath.Join(at, rest[0]), rest[1:]
	}
}

// Of returns the entry of what was looked at.
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
