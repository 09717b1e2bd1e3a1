package volume

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

const (
	// maxDepth limits the directories held open on the way down; deeper ones are moved up
	// first.
	maxDepth = 128
	// maxTries limits the tries to remove an entry that another process keeps changing.
	maxTries = 64
	// batch is how many names are read at once.
	batch = 512
)

// MountedError says that there is a mount below the path to remove.
type MountedError struct{ Path string }

func (e *MountedError) Error() string {
	return e.Path + " is mounted: unmount it first"
}

// removeTree removes the path of names under base, with all below it. base is trusted and may
// itself be a link or a mount. Below it, removeTree follows no link and enters no mount: it opens
// each directory by name in its open parent, and the kernel refuses links and mounts. If something
// is mounted there when it starts, it removes nothing. It returns the cause of ctx when ctx ends:
// containers decide how many files there are.
func removeTree(ctx context.Context, base string, names ...string) error {
	path := filepath.Join(base, filepath.Join(names...))
	if err := mountedAt(path); err != nil {
		return err
	}
	last := len(names) - 1
	parent, err := openPath(base, names[:last]...)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer parent.Close()
	r := &remover{ctx: ctx, open: openChild}
	return r.remove(parent, names[last])
}

// directories returns the names of the directories in the path of names under base, without
// following links below base.
func directories(base string, names ...string) ([]string, error) {
	dir, err := openPath(base, names...)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	entries, err := dir.ReadDir(-1)
	if err != nil {
		return nil, err
	}
	var list []string
	for _, e := range entries {
		if e.IsDir() {
			list = append(list, e.Name())
		}
	}
	return list, nil
}

// openPath opens the directory at the path of names under base.
func openPath(base string, names ...string) (*os.File, error) {
	dir, err := os.OpenFile(base, os.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for _, name := range names {
		if err != nil {
			return nil, err
		}
		parent := dir
		dir, err = openChild(parent, name)
		parent.Close()
	}
	return dir, err
}

// remover removes one tree. One call of removeTree uses it.
type remover struct {
	ctx  context.Context
	open func(parent *os.File, name string) (*os.File, error)
	// top is the open directory of the tree, to which deep directories are moved; nil before it is
	// open.
	top   *os.File
	moved int
	depth int
}

// remove removes the entry of that name, with all below it if it is a directory. If another
// process swaps the entry meanwhile, it starts again.
func (r *remover) remove(parent *os.File, name string) error {
	if r.ctx.Err() != nil {
		return context.Cause(r.ctx)
	}
	path := filepath.Join(parent.Name(), name)
	var err error
	for range maxTries {
		err = unix.Unlinkat(int(parent.Fd()), name, 0)
		switch {
		case err == nil, errors.Is(err, unix.ENOENT):
			return nil
		case errors.Is(err, unix.EBUSY):
			return &MountedError{Path: path}
		case !errors.Is(err, unix.EISDIR):
			return &fs.PathError{Op: "remove", Path: path, Err: err}
		}
		if err = r.descend(parent, name); err != nil && !changed(err) {
			return err
		}
		err = unix.Unlinkat(int(parent.Fd()), name, unix.AT_REMOVEDIR)
		switch {
		case err == nil, errors.Is(err, unix.ENOENT):
			return nil
		case errors.Is(err, unix.EBUSY):
			return &MountedError{Path: path}
		case !changed(err):
			return &fs.PathError{Op: "remove", Path: path, Err: err}
		}
	}
	return &fs.PathError{Op: "remove", Path: path, Err: err}
}

// changed reports whether err says that the entry has changed: a directory became another
// type, vanished or was filled again.
func changed(err error) bool {
	return errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOENT) ||
		errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST)
}

// descend empties the directory of that name, or moves it to the top if it is too deep.
func (r *remover) descend(parent *os.File, name string) error {
	if r.top != nil && r.depth >= maxDepth {
		r.moved++
		to := ".nodectl-moved-" + strconv.Itoa(r.moved)
		if err := unix.Renameat(int(parent.Fd()), name, int(r.top.Fd()), to); err != nil {
			return &fs.PathError{Op: "move", Path: filepath.Join(parent.Name(), name), Err: err}
		}
		return nil
	}
	dir, err := r.open(parent, name)
	if err != nil {
		return err
	}
	defer dir.Close()
	if r.top == nil {
		r.top = dir
		defer func() { r.top = nil }()
	}
	r.depth++
	defer func() { r.depth-- }()
	return r.empty(dir)
}

// empty removes every entry of dir, until reading dir finds none. It reads dir maxTries times at
// most, not counting the readings after which directories were moved here.
func (r *remover) empty(dir *os.File) error {
	for tries := 0; tries < maxTries; {
		found, moved := 0, r.moved
		if _, err := dir.Seek(0, io.SeekStart); err != nil {
			return err
		}
		for {
			names, err := dir.Readdirnames(batch)
			for _, name := range names {
				if err := r.remove(dir, name); err != nil {
					return err
				}
			}
			found += len(names)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return err
			}
		}
		if found == 0 {
			return nil
		}
		if r.moved == moved {
			tries++
		}
	}
	return fmt.Errorf("%s: %w", dir.Name(), unix.ENOTEMPTY)
}
