package file

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/pkg/pod"
)

// knowsWriters says that on this system modes and owners show which users can write a file.
const knowsWriters = true

const stateMask = unix.STATX_BASIC_STATS | unix.STATX_MNT_ID

// dir is an open directory. A lookup of a name through it finds a file in this directory, even if the
// directory is renamed meanwhile.
type dir struct {
	path string
	fd   int
}

// openDir opens the directory path: to list it, or only to look up names.
func openDir(path string, list bool) (*dir, error) { return openDirAs(path, list, 0) }

// openBelow opens the directory path as openDir does, but not if path is a link.
func openBelow(path string, list bool) (*dir, error) { return openDirAs(path, list, unix.O_NOFOLLOW) }

func openDirAs(path string, list bool, flags int) (*dir, error) {
	if list {
		flags |= unix.O_RDONLY | unix.O_NONBLOCK
	} else {
		flags |= unix.O_PATH
	}
	fd, err := openAt(unix.AT_FDCWD, path, flags|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	return &dir{path, fd}, nil
}

func openAt(fd int, name string, flags int) (int, error) {
	return retryEINTR(func() (int, error) { return unix.Openat(fd, name, flags|unix.O_CLOEXEC, 0) })
}

func (d *dir) close() { _ = unix.Close(d.fd) }

// state returns the state of the directory itself.
func (d *dir) state() (state, error) { return stateOf(d.fd, d.path) }

// stat returns the state of base, a name in d; its path is path. It follows links, and opens
// nothing.
func (d *dir) stat(base, path string) state { return statAt(d.fd, base, path) }

// statPath returns the state of path. It follows links, and opens nothing.
func statPath(path string) state { return statAt(unix.AT_FDCWD, path, path) }

func statAt(fd int, name, path string) state {
	var stx unix.Statx_t
	err := statxName(fd, name, 0, &stx)
	return followed(fd, name, path, &stx, err)
}

func followed(fd int, name, path string, stx *unix.Statx_t, err error) state {
	if err == nil {
		return stateFrom(stx, path)
	}
	var link unix.Statx_t
	lerr := statxName(fd, name, unix.AT_SYMLINK_NOFOLLOW, &link)
	switch {
	case lerr == nil:
		return failedState(path, err, stateFrom(&link, path))
	case isAbsent(lerr):
		return state{}
	}
	return failedState(path, err, state{kind: refused})
}

func stateOf(fd int, path string) (state, error) {
	var stx unix.Statx_t
	if err := statxName(fd, "", unix.AT_EMPTY_PATH, &stx); err != nil {
		return state{}, err
	}
	st := stateFrom(&stx, path)
	st.fd = fd
	return st, nil
}

func statxName(fd int, name string, flags int, stx *unix.Statx_t) error {
	for {
		if err := unix.Statx(fd, name, flags, stateMask, stx); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func stateFrom(stx *unix.Statx_t, path string) state {
	st := state{
		id: identity{
			dev: uint64(stx.Dev_major)<<32 | uint64(stx.Dev_minor), ino: stx.Ino, size: int64(stx.Size),
			mtime: nanoseconds(stx.Mtime), changed: nanoseconds(stx.Ctime),
		},
		mode: uint32(stx.Mode) &^ unix.S_IFMT, uid: stx.Uid, gid: stx.Gid,
	}
	if stx.Mask&unix.STATX_MNT_ID != 0 {
		st.mount = stx.Mnt_id
	}
	switch stx.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		st.kind = regular
	case unix.S_IFDIR:
		st.kind = directory
	case unix.S_IFLNK:
		st.kind = symlink
	case unix.S_IFIFO:
		st.kind, st.problem = refused, notRegular(path, "named pipe")
	case unix.S_IFSOCK:
		st.kind, st.problem = refused, notRegular(path, "socket")
	case unix.S_IFCHR, unix.S_IFBLK:
		st.kind, st.problem = refused, notRegular(path, "device")
	default:
		st.kind, st.problem = refused, notRegular(path, "special file")
	}
	return st
}

func nanoseconds(t unix.StatxTimestamp) int64 { return t.Sec*1e9 + int64(t.Nsec) }

// listed is one name of a directory, valid until the next one.
type listed struct {
	dir  *dir
	raw  []byte // the name and a NUL
	kind kind   // refused: unknown until stat
	stx  *unix.Statx_t
}

func (n *listed) name() []byte { return n.raw[:len(n.raw)-1] }

// stat returns the state of the name, whose path is path. It follows links, and does not
// allocate.
func (n *listed) stat(path string) state {
	for {
		_, _, errno := unix.Syscall6(unix.SYS_STATX, uintptr(n.dir.fd), uintptr(unsafe.Pointer(&n.raw[0])), 0, stateMask,
			uintptr(unsafe.Pointer(n.stx)), 0)
		switch errno {
		case 0:
			return stateFrom(n.stx, path)
		case unix.EINTR:
		default:
			return followed(n.dir.fd, string(n.name()), path, n.stx, errno)
		}
	}
}

// each calls visit for every name in the directory, in no order; buf is its buffer.
func (d *dir) each(buf []byte, visit func(*listed) error) error {
	n := &listed{dir: d, stx: new(unix.Statx_t)}
	for {
		size, err := retryEINTR(func() (int, error) { return unix.Getdents(d.fd, buf) })
		if err != nil || size <= 0 {
			return err
		}
		for rest := buf[:size]; len(rest) > 0; {
			// The record: inode 8, offset 8, its length 2, type 1, name, NUL, padding.
			record := rest[:binary.NativeEndian.Uint16(rest[16:])]
			rest = rest[len(record):]
			n.raw = record[19 : 20+bytes.IndexByte(record[19:], 0)]
			if name := n.name(); string(name) == "." || string(name) == ".." {
				continue
			}
			if n.kind = listedKinds(record[18]); n.kind == refused {
				var stx unix.Statx_t
				if statxName(d.fd, string(n.name()), unix.AT_SYMLINK_NOFOLLOW, &stx) == nil {
					n.kind = stateFrom(&stx, "").kind
				}
			}
			if err := visit(n); err != nil {
				return err
			}
		}
	}
}

func listedKinds(t byte) kind {
	switch t {
	case unix.DT_REG:
		return regular
	case unix.DT_DIR:
		return directory
	case unix.DT_LNK:
		return symlink
	}
	return refused
}

// opened is a regular file opened for reading.
type opened struct {
	path   string
	fd     int
	id     identity
	linked bool // reached by a symbolic link
}

func (f *opened) close() { _ = unix.Close(f.fd) }

func (f *opened) state() (state, error) { return stateOf(f.fd, f.path) }

func (f *opened) read(b []byte) (int, error) {
	return retryEINTR(func() (int, error) { return unix.Read(f.fd, b) })
}

// open opens base, a name in d, for reading; its path is path. It first opens an O_PATH descriptor and
// checks that. So it opens only regular files for reading (F45), never blocks, and reads the same file
// that judge got. It follows links one by one, and calls judge for each of them and for the directory of
// each target. judge may be nil; open continues after a violation.
func (d *dir) open(base, path string, judge func(path string, st *state) violation) (*opened, violation, *pod.Problem) {
	w := &resolver{dir: d.fd, file: -1, base: base, at: path, judge: judge}
	defer w.leave(d.fd)
	st, err := w.end()
	switch {
	case err != nil:
		return nil, w.violation, cannotRead(path, err)
	case st.kind == directory:
		return nil, w.violation, notRegular(path, "directory")
	case st.kind != regular:
		st.problem.File = path // not the target of a link
		return nil, w.violation, st.problem
	case st.id.size > SizeLimit:
		return nil, w.violation, tooLarge(path)
	}
	fd, err := openAt(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(w.file), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return nil, w.violation, cannotRead(path, err)
	}
	return &opened{path: path, fd: fd, id: st.id, linked: w.links > 0}, w.violation, nil
}

// resolver resolves a name to its file.
type resolver struct {
	dir, file int    // descriptors; -1 is none
	base      string // name in dir
	at        string // the path of base, for messages
	links     int    // how many links it has followed
	judge     func(path string, st *state) violation
	violation violation // the first one that judge found
}

// end follows all links and returns the state of the last target.
func (w *resolver) end() (state, error) {
	for first := w.dir; ; {
		if err := w.openBase(unix.O_NOFOLLOW); err != nil {
			return state{}, err
		}
		st, err := stateOf(w.file, w.at)
		if err != nil {
			return state{}, err
		}
		if st.kind == symlink && ofProc(w.file) {
			// A link in /proc may lead to an open file of a process that has no path.
			if err := w.openBase(0); err != nil {
				return state{}, err
			}
			if st, err = stateOf(w.file, w.at); err != nil {
				return state{}, err
			}
		}
		w.see(w.at, &st)
		if st.kind != symlink {
			return st, nil
		}
		if w.links++; w.links > 40 {
			return state{}, unix.ELOOP
		}
		if err := w.follow(first); err != nil {
			return state{}, err
		}
	}
}

// openBase opens an O_PATH descriptor of base.
func (w *resolver) openBase(flags int) (err error) {
	drop(w.file)
	w.file, err = openAt(w.dir, w.base, unix.O_PATH|flags)
	return err
}

// follow moves to the directory and the name that the link points to.
func (w *resolver) follow(first int) error {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(w.file, "", buf)
	if err != nil {
		return err
	}
	at, base := filepath.Split(strings.TrimRight(string(buf[:n]), "/"))
	if base == "" || base == "." || base == ".." {
		return unix.EISDIR
	}
	fd, err := openAt(w.dir, cmp.Or(at, "."), unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	if w.dir != first {
		drop(w.dir)
	}
	w.dir, w.base = fd, base
	if !filepath.IsAbs(at) {
		at = filepath.Join(filepath.Dir(w.at), at)
	}
	w.at = filepath.Join(at, base)
	st, err := stateOf(fd, at)
	if err == nil {
		w.see(filepath.Clean(at), &st)
	}
	return err
}

// see calls judge for one file, link or directory on the path.
func (w *resolver) see(path string, st *state) {
	if w.judge == nil || !w.violation.none() {
		return
	}
	c := w.judge(path, st)
	if w.links > 0 && st.kind == directory {
		c = c.of(path)
	} else if w.links > 0 && !c.none() {
		c.text = "leads to " + path + ", which " + c.text
	}
	w.violation = c
}

func (w *resolver) leave(first int) {
	drop(w.file)
	if w.dir != first {
		drop(w.dir)
	}
}

func drop(fd int) {
	if fd >= 0 {
		_ = unix.Close(fd)
	}
}

func ofProc(fd int) bool {
	var fs unix.Statfs_t
	return unix.Fstatfs(fd, &fs) == nil && fs.Type == unix.PROC_SUPER_MAGIC
}

func retryEINTR(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// writerOf reports whether a process has f open for writing. It takes a read lease and releases it at
// once: the kernel grants a lease only while no process has the file open for writing. A process that
// opens the file during these microseconds waits, and the kernel sends SIGIO, which Go programs ignore.
func writerOf(f *opened) writer {
	_, err := unix.FcntlInt(uintptr(f.fd), unix.F_SETLEASE, unix.F_RDLCK)
	switch {
	case err == nil:
		_, _ = unix.FcntlInt(uintptr(f.fd), unix.F_SETLEASE, unix.F_UNLCK)
		return noWriter
	case errors.Is(err, unix.EAGAIN):
		return hasWriter
	}
	return unknownWriter
}
