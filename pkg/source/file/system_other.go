//go:build !linux

package file

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/nodectl/nodectl/pkg/pod"
)

// knowsWriters says that on this system the source does not know which users can write a file.
// No pods run on such a system.
const knowsWriters = false

// dir is a directory that the source looks names up in.
type dir struct {
	path string
	file *os.File // nil if the directory is open only to look up names
}

// openDir opens the directory path: to list it, or only to look up names.
func openDir(path string, list bool) (*dir, error) {
	d := &dir{path: path}
	if st := statPath(path); st.kind == absent {
		return nil, fs.ErrNotExist
	} else if st.kind != directory {
		return nil, syscall.ENOTDIR
	}
	if !list {
		return d, nil
	}
	var err error
	d.file, err = os.Open(path)
	return d, err
}

// openBelow opens the directory path as openDir does, but not if path is a link.
func openBelow(path string, list bool) (*dir, error) {
	if at, err := os.Lstat(path); err == nil && !at.IsDir() {
		return nil, syscall.ENOTDIR
	}
	return openDir(path, list)
}

func (d *dir) close() {
	if d.file != nil {
		_ = d.file.Close()
	}
}

// state returns the state of the directory itself.
func (d *dir) state() (state, error) { return statPath(d.path), nil }

// stat returns the state of a name in d; its path is path. It follows links, and opens nothing.
func (d *dir) stat(_, path string) state { return statPath(path) }

// statPath returns the state of path. It follows links, and opens nothing.
func statPath(path string) state {
	info, err := os.Stat(path)
	if err == nil {
		return stateFrom(info, path)
	}
	link, lerr := os.Lstat(path)
	switch {
	case lerr == nil:
		return failedState(path, err, stateFrom(link, path))
	case isAbsent(lerr):
		return state{}
	}
	return failedState(path, err, state{kind: refused})
}

func stateFrom(info fs.FileInfo, path string) state {
	st := state{id: identity{size: info.Size(), mtime: info.ModTime().UnixNano()}, mode: uint32(info.Mode().Perm())}
	switch mode := info.Mode(); {
	case mode.IsRegular():
		st.kind = regular
	case mode.IsDir():
		st.kind = directory
	case mode&fs.ModeSymlink != 0:
		st.kind = symlink
	case mode&fs.ModeNamedPipe != 0:
		st.kind, st.problem = refused, notRegular(path, "named pipe")
	case mode&fs.ModeSocket != 0:
		st.kind, st.problem = refused, notRegular(path, "socket")
	case mode&fs.ModeDevice != 0:
		st.kind, st.problem = refused, notRegular(path, "device")
	default:
		st.kind, st.problem = refused, notRegular(path, "special file")
	}
	return st
}

// listed is one name of a directory.
type listed struct {
	entry fs.DirEntry
	kind  kind
}

func (n *listed) name() []byte { return []byte(n.entry.Name()) }

// stat returns the state of the name, whose path is path. It follows links.
func (n *listed) stat(path string) state { return statPath(path) }

// each calls visit for every name in the directory.
func (d *dir) each(_ []byte, visit func(*listed) error) error {
	entries, err := d.file.ReadDir(-1)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		n := &listed{entry: entry, kind: refused}
		switch {
		case entry.IsDir():
			n.kind = directory
		case entry.Type()&fs.ModeSymlink != 0:
			n.kind = symlink
		case entry.Type().IsRegular():
			n.kind = regular
		}
		if err := visit(n); err != nil {
			return err
		}
	}
	return nil
}

// opened is a regular file opened for reading.
type opened struct {
	path   string
	file   *os.File
	id     identity
	linked bool // reached by a symbolic link
}

func (f *opened) close() { _ = f.file.Close() }

func (f *opened) state() (state, error) {
	info, err := f.file.Stat()
	if err != nil {
		return state{}, err
	}
	return stateFrom(info, f.path), nil
}

func (f *opened) read(b []byte) (int, error) {
	n, err := f.file.Read(b)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// open opens path for reading. It does not call judge: the permissions are not known.
func (d *dir) open(_, path string, _ func(path string, st *state) violation) (*opened, violation, *pod.Problem) {
	flags := os.O_RDONLY
	if runtime.GOOS != "windows" {
		flags |= syscall.O_NONBLOCK // the file may have become a named pipe
	}
	file, err := os.OpenFile(path, flags, 0)
	if err != nil {
		return nil, violation{}, cannotRead(path, err)
	}
	f := &opened{path: path, file: file}
	st, err := f.state()
	var problem *pod.Problem
	switch {
	case err != nil:
		problem = cannotRead(path, err)
	case st.kind == directory:
		problem = notRegular(path, "directory")
	case st.kind != regular:
		problem = st.problem
	case st.id.size > SizeLimit:
		problem = tooLarge(path)
	}
	if problem != nil {
		f.close()
		return nil, violation{}, problem
	}
	f.id = st.id
	if link, err := os.Lstat(filepath.Clean(path)); err == nil {
		f.linked = link.Mode()&fs.ModeSymlink != 0
	}
	return f, violation{}, nil
}

// writerOf returns unknownWriter: the system has no such check.
func writerOf(*opened) writer { return unknownWriter }
