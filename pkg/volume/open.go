package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// errOutside says that a path leads out of its volume.
var errOutside = errors.New("leads out of the volume")

// openChild opens the directory name in parent. It must not be a link, and must be on the
// same mount as parent. The kernel checks both (openat2); if it is too old, the mount IDs
// are compared after opening.
func openChild(parent *os.File, name string) (*os.File, error) {
	fd, err := unix.Openat2(int(parent.Fd()), name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	path := filepath.Join(parent.Name(), name)
	switch {
	case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM):
		return openChildOld(parent, name)
	case errors.Is(err, unix.EXDEV):
		return nil, &MountedError{Path: path}
	case err != nil:
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// openChildOld is openChild for kernels before 5.6 and for sandboxes without openat2.
func openChildOld(parent *os.File, name string) (*os.File, error) {
	path := filepath.Join(parent.Name(), name)
	fd, err := unix.Openat(int(parent.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	child := os.NewFile(uintptr(fd), path)
	there, err := mountID(parent)
	if err == nil {
		var here string
		if here, err = mountID(child); err == nil && here != there {
			err = &MountedError{Path: path}
		}
	}
	if err != nil {
		child.Close()
		return nil, err
	}
	return child, nil
}

// mountID returns the ID of the mount of an open file.
func mountID(f *os.File) (string, error) {
	text, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(int(f.Fd())))
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		if id, ok := strings.CutPrefix(line, "mnt_id:"); ok {
			return strings.TrimSpace(id), nil
		}
	}
	return "", fmt.Errorf("the kernel does not report the mount of %s", f.Name())
}

// openVolume opens the path of a volume, of any file type, with O_PATH.
func openVolume(path string) (*os.File, error) {
	return os.OpenFile(path, unix.O_PATH|unix.O_CLOEXEC, 0)
}

// openBeneath opens the target of a clean path below dir with O_PATH: it reads nothing,
// starts no device and waits for no FIFO. It follows links that stay below dir; on kernels
// before 5.6 it follows none.
func openBeneath(dir *os.File, name string) (*os.File, error) {
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS}
	for range maxTries {
		fd, err := unix.Openat2(int(dir.Fd()), name, how)
		switch {
		case errors.Is(err, unix.EAGAIN):
			continue // a concurrent rename: the kernel could not check the path
		case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM):
			return openBeneathOld(dir, name)
		case errors.Is(err, unix.EXDEV):
			return nil, errOutside
		case err != nil:
			return nil, err
		}
		return os.NewFile(uintptr(fd), name), nil
	}
	return nil, unix.EAGAIN
}

// openBeneathOld goes from directory to directory and follows no link except our own to the
// current content of a volume.
func openBeneathOld(dir *os.File, name string) (*os.File, error) {
	buf := make([]byte, unix.NAME_MAX)
	if n, err := unix.Readlinkat(int(dir.Fd()), dataLink, buf); err == nil && isStamp(string(buf[:n])) {
		name = path.Join(string(buf[:n]), name)
	}
	fd := int(dir.Fd())
	for part := range strings.SplitSeq(name, "/") {
		next, err := unix.Openat(fd, part, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if fd != int(dir.Fd()) {
			unix.Close(fd)
		}
		if err != nil {
			return nil, err
		}
		fd = next
		var st unix.Stat_t
		if err = unix.Fstat(fd, &st); err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
			err = errOutside
		}
		if err != nil {
			unix.Close(fd)
			return nil, err
		}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// makeBeneath does as openBeneath, and makes missing directories. They get this mode whatever the
// agent's umask is.
func makeBeneath(dir *os.File, name string, mode uint32) (*os.File, error) {
	for range maxTries {
		f, err := openBeneath(dir, name)
		if !errors.Is(err, unix.ENOENT) {
			return f, err
		}
		err = makeMissing(dir, name, mode)
		if err != nil && !changed(err) {
			return nil, err
		}
	}
	return nil, errors.New("is a link to a missing file, or changes at each attempt")
}

// makeMissing makes the missing directories of name once.
func makeMissing(dir *os.File, name string, mode uint32) error {
	var missing []string
	at, err := dir, error(nil)
	for {
		missing = append(missing, path.Base(name))
		if name = path.Dir(name); name == "." {
			break
		}
		if at, err = openBeneath(dir, name); err == nil {
			defer at.Close()
			break
		}
		if !errors.Is(err, unix.ENOENT) {
			return err
		}
		at = dir
	}
	fd := int(at.Fd())
	for i := len(missing) - 1; i >= 0; i-- {
		if err := unix.Mkdirat(fd, missing[i], 0o700); err != nil {
			return err
		}
		next, err := unix.Openat(fd, missing[i], unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(next)
		if err := unix.Fchmod(next, mode); err != nil {
			return err
		}
		fd = next
	}
	return nil
}
