package file

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/pkg/pod"
)

// identity is what tells one state of a file from another without reading it.
type identity struct {
	dev, ino             uint64
	size, mtime, changed int64 // bytes; nanoseconds since 1970
}

func identityOf(st *unix.Stat_t) identity {
	return identity{dev: uint64(st.Dev), ino: st.Ino, size: st.Size, mtime: st.Mtim.Nano(), changed: st.Ctim.Nano()}
}

// age is how long the file has been unchanged by its own word; negative on a
// file server whose clock is ahead.
func (id identity) age(now time.Time) time.Duration {
	return now.Sub(time.Unix(0, max(id.mtime, id.changed)))
}

// racy reports whether a later write may leave the identity as it is: stamps
// are as coarse as the kernel's tick, on some file systems as two seconds.
func (id identity) racy(now time.Time) bool {
	if id.mtime%int64(time.Second) == 0 && id.changed%int64(time.Second) == 0 {
		return id.age(now) < 2*time.Second
	}
	return id.age(now) < 50*time.Millisecond
}

type kind int

const (
	absent kind = iota
	regular
	directory
	refused // neither; the problem says what it is
)

// probe looks at path, following links, and opens nothing.
func probe(path string) (identity, kind, *pod.Problem) {
	var st unix.Stat_t
	err := unix.Stat(path, &st)
	if err == nil {
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			return identityOf(&st), regular, nil
		case unix.S_IFDIR:
			return identityOf(&st), directory, nil
		}
		return identityOf(&st), refused, notRegular(path, st.Mode)
	}
	var link unix.Stat_t
	lerr := unix.Lstat(path, &link)
	switch {
	case errors.Is(lerr, fs.ErrNotExist), errors.Is(lerr, unix.ENOTDIR):
		return identity{}, absent, nil
	case errors.Is(err, fs.ErrNotExist) && lerr == nil:
		return identityOf(&link), refused, &pod.Problem{File: path, Msg: "is a symbolic link to nothing"}
	case errors.Is(err, unix.ELOOP):
		return identityOf(&link), refused, &pod.Problem{File: path, Msg: "is a loop of symbolic links"}
	}
	return identityOf(&link), refused, cannot(path, err)
}

func notRegular(path string, mode uint32) *pod.Problem {
	what, hint := "special file", ""
	switch mode & unix.S_IFMT {
	case unix.S_IFIFO:
		what, hint = "named pipe", "use -f - to read standard input"
	case unix.S_IFSOCK:
		what = "socket"
	case unix.S_IFCHR, unix.S_IFBLK:
		what = "device"
	case unix.S_IFDIR:
		what = "directory"
	}
	return &pod.Problem{File: path, Msg: "is a " + what + "; only regular files are read", Hint: hint}
}

func cannot(path string, err error) *pod.Problem {
	return &pod.Problem{File: path, Msg: "cannot be read: " + reason(err)}
}

// reason is the system's word for err without the path and the call.
func reason(err error) string {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return errno.Error()
	}
	return err.Error()
}

// open is a regular file opened for reading.
type open struct {
	path string
	fd   int
	id   identity
}

// openRegular opens path without ever waiting and makes sure that it got a
// regular file of a size that is read: what was looked at a moment ago may be
// something else by now (F45).
func openRegular(path string) (*open, *pod.Problem) {
	fd, err := retryEINTR(func() (int, error) {
		return unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	})
	if err != nil {
		return nil, cannot(path, err)
	}
	f := &open{path: path, fd: fd}
	var st unix.Stat_t
	switch err := unix.Fstat(fd, &st); {
	case err != nil:
		f.close()
		return nil, cannot(path, err)
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		f.close()
		return nil, notRegular(path, st.Mode)
	case st.Size > SizeLimit:
		f.close()
		return nil, tooLarge(path)
	}
	f.id = identityOf(&st)
	return f, nil
}

func tooLarge(path string) *pod.Problem {
	return &pod.Problem{File: path, Msg: fmt.Sprintf("is larger than %d MiB, the limit for one file", SizeLimit>>20)}
}

func (f *open) close() { _ = unix.Close(f.fd) }

// read returns the whole content. stable is false when the file was written to
// meanwhile; f.id is then its new identity.
func (f *open) read() (data []byte, stable bool, problem *pod.Problem) {
	data = make([]byte, f.id.size+1) // one more, so that growth shows
	n := 0
	for n < len(data) {
		m, err := retryEINTR(func() (int, error) { return unix.Read(f.fd, data[n:]) })
		if err != nil {
			return nil, false, cannot(f.path, err)
		}
		if m == 0 {
			break
		}
		n += m
	}
	var st unix.Stat_t
	if err := unix.Fstat(f.fd, &st); err != nil {
		return nil, false, cannot(f.path, err)
	}
	was := f.id
	f.id = identityOf(&st)
	if f.id == was && int64(n) != was.size {
		return nil, false, &pod.Problem{File: f.path, Msg: "cannot be read: its size is not what the file system says"}
	}
	return data[:n], f.id == was, nil
}

func retryEINTR(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// writer is whether somebody has a file open for writing.
type writer int

const (
	noWriter writer = iota
	hasWriter
	unknownWriter // the file system or the file's owner does not let us ask
)

// writerOf asks by taking a read lease, which the kernel grants only while
// nobody has the file open for writing, and gives it back at once. A writer
// who opens the file in between waits for those microseconds; the SIGIO that
// the kernel then sends is one Go programs drop.
func writerOf(fd int) writer {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_RDLCK)
	switch {
	case err == nil:
		_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_UNLCK)
		return noWriter
	case errors.Is(err, unix.EAGAIN):
		return hasWriter
	}
	return unknownWriter
}

// mountID names the mount that path is on; 0 is unknown.
func mountID(path string) uint64 {
	var st unix.Statx_t
	if unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_MNT_ID, &st) != nil || st.Mask&unix.STATX_MNT_ID == 0 {
		return 0
	}
	return st.Mnt_id
}
