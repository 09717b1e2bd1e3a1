package file

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
)

// identity identifies the state of a file: if the content changes, it usually changes too (see racy). A
// field that the system does not provide is 0.
type identity struct {
	dev, ino             uint64
	size, mtime, changed int64 // bytes; nanoseconds since 1970
}

// age returns how long the file has been unchanged, by its time stamps. It is negative if the clock of a
// file server is ahead.
func (id identity) age(now time.Time) time.Duration {
	return now.Sub(time.Unix(0, max(id.mtime, id.changed)))
}

// racy reports whether another write could leave the identity unchanged. Time stamps have the resolution
// of the kernel's tick, or of up to two seconds on some file systems.
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
	symlink // only the result of calls that do not follow links
	refused // none of these; state.problem says why
)

// state is the file status of a name or of an open file.
type state struct {
	id      identity
	kind    kind
	mode    uint32 // permission bits and the sticky bit
	uid     uint32
	gid     uint32
	mount   uint64       // 0 is unknown
	fd      int          // the descriptor while it is open; 0 is none
	problem *pod.Problem // why kind is refused
	err     error        // the error of the status call, if kind is refused because of that
}

// failedState returns the state of a name after stat has failed with err. link is the result of lstat.
func failedState(path string, err error, link state) state {
	switch {
	case link.kind == absent:
		return link
	case errors.Is(err, fs.ErrNotExist):
		link.problem = &pod.Problem{File: path, Msg: "is a symbolic link to a missing file"}
	case errors.Is(err, syscall.ELOOP):
		link.problem = &pod.Problem{File: path, Msg: "is a loop of symbolic links"}
	default:
		link.problem = cannotRead(path, err)
	}
	link.kind, link.err = refused, err
	return link
}

func isAbsent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

func notRegular(path, what string) *pod.Problem {
	hint := ""
	if what == "named pipe" {
		hint = "use -f - to read standard input"
	}
	return &pod.Problem{File: path, Msg: "is a " + what + "; only regular files are read", Hint: hint}
}

func cannotRead(path string, err error) *pod.Problem {
	return &pod.Problem{File: path, Msg: "cannot be read: " + reason(err)}
}

// reason returns the system's error text without the path and the call.
func reason(err error) string {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno.Error()
	}
	return err.Error()
}

func tooLarge(path string) *pod.Problem {
	return &pod.Problem{File: path, Msg: fmt.Sprintf("is larger than %d MiB, the limit for one file", SizeLimit>>20)}
}

// readAll returns the complete content. stable is false if the file changed meanwhile; f.id is then its
// new identity.
func (f *opened) readAll() (data []byte, stable bool, problem *pod.Problem) {
	data = make([]byte, f.id.size+1) // one byte more, to notice growth
	n := 0
	for n < len(data) {
		m, err := f.read(data[n:])
		if err != nil {
			return nil, false, cannotRead(f.path, err)
		}
		if m == 0 {
			break
		}
		n += m
	}
	st, err := f.state()
	if err != nil {
		return nil, false, cannotRead(f.path, err)
	}
	was := f.id
	f.id = st.id
	if f.id == was && int64(n) != was.size {
		return nil, false, &pod.Problem{File: f.path, Msg: "cannot be read: its size is not the one that the file system reports"}
	}
	return data[:n], f.id == was, nil
}

// writer says whether a process has a file open for writing.
type writer int

const (
	noWriter writer = iota
	hasWriter
	unknownWriter // the system, the file system or the file's owner does not permit the check
)
