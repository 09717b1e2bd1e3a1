package logs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// openDir opens the directory of a log. f.Dir may contain links of the host. Below f.Dir openDir follows
// no link, so that a pod that can write there cannot redirect it.
func openDir(f File) (dir *os.File, name string, err error) {
	rel := filepath.Clean(f.Path)
	if !filepath.IsLocal(rel) || rel == "." {
		return nil, "", fmt.Errorf("it is not below %s", f.Dir)
	}
	dir, err = os.OpenFile(f.Dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, "", err
	}
	parts := strings.Split(rel, "/")
	for _, part := range parts[:len(parts)-1] {
		fd, err := unix.Openat(int(dir.Fd()), part, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		_ = dir.Close()
		if err != nil {
			if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
				return nil, "", fmt.Errorf("%s is not a directory", part)
			}
			return nil, "", &os.PathError{Op: "open", Path: part, Err: err}
		}
		dir = os.NewFile(uintptr(fd), part)
	}
	return dir, parts[len(parts)-1], nil
}

// openLog opens a log in dir for reading. The log must be a regular file of root or the agent's user.
// openLog checks that before it opens the file: opening a pipe could block, opening a device could
// have effects, and a link could lead elsewhere.
func openLog(dir *os.File, name string) (*os.File, os.FileInfo, error) {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	place := os.NewFile(uintptr(fd), name)
	defer place.Close()
	info, err := place.Stat()
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("%s %w", name, ErrNotRegular)
	}
	var now unix.Stat_t
	if err := unix.Fstat(fd, &now); err != nil {
		return nil, nil, err
	}
	if now.Uid != 0 && int64(now.Uid) != int64(os.Geteuid()) {
		return nil, nil, fmt.Errorf("%s belongs to user %d: %w", name, now.Uid, os.ErrPermission)
	}
	// Open the checked file again, for reading, by its descriptor: another file may have its name
	// now.
	f, err := os.OpenFile("/proc/self/fd/"+strconv.Itoa(fd), os.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open %s: %w", name, err)
	}
	return f, info, nil
}
