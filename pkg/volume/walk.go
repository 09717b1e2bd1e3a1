package volume

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// deepest is the greatest depth of directories that is walked. No program can open a deeper file
// by one path: the kernel limits a path to 4096 bytes.
const deepest = 2048

// errTooDeep says that a tree is deeper than that.
var errTooDeep = fmt.Errorf("it is more than %d directories deep", deepest)

// walk calls f for everything below dir, a directory after its contents. It follows no link
// and enters no mount, and skips entries that vanish or change meanwhile. It ends with an
// error of f.
func walk(dir *os.File, depth int, f func(parent *os.File, name string, st *unix.Stat_t) error) error {
	if depth > deepest {
		return errTooDeep
	}
	for {
		names, err := dir.Readdirnames(batch)
		for _, name := range names {
			if err := visit(dir, name, depth, f); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func visit(dir *os.File, name string, depth int, f func(parent *os.File, name string, st *unix.Stat_t) error) error {
	var st unix.Stat_t
	err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return &os.PathError{Op: "stat", Path: filepath.Join(dir.Name(), name), Err: err}
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		child, err := openChild(dir, name)
		var mounted *MountedError
		switch {
		case errors.As(err, &mounted), err != nil && changed(err):
			return nil
		case err != nil:
			return err
		}
		err = walk(child, depth+1, f)
		child.Close()
		if err != nil {
			return err
		}
	}
	return f(dir, name, &st)
}
