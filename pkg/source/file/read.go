package file

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
)

// identity distinguishes states of a file without reading it. A field that the system
// does not provide is 0.
type identity struct {
	dev, ino             uint64
	size, mtime, changed int64 // bytes; nanoseconds since 1970
}

// age returns how long the file has been unchanged, by its time stamps. It is negative on a
// file server whose clock is ahead.
func (id identity) age(now time.Time) time.Duration {
	return now.Sub(time.Unix(0, max(id.mtime, id.changed)))
}

// racy reports whether a later write may leave the identity unchanged. Time stamps are as
// coarse as the kernel's tick; on some file systems they are as coarse as two seconds.
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
	symlink // only where links are not followed
	refused // none of these; state.problem describes it
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
	problem *pod.Problem // why it is refused
	err     error        // the failure of the status call, if it is refused because of that
}

// failedState returns the state of a name whose status call failed with err. link is the state
// of the name itself, which may be a link.
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

// readAll returns the whole content. stable is false if the file changed meanwhile; f.id is
// then its new identity.
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
