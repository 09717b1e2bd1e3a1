package volume

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// openChild opens the directory name in parent. It is no link, and on the same
// mount as parent: the kernel sees to both (openat2), and where it is too old,
// the number of the mount is compared after opening.
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

// openChildOld is openChild for kernels before 5.6 and for sandboxes that do
// not know openat2.
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

// mountID returns the number of the mount that an open file is on.
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
	return "", fmt.Errorf("the kernel does not tell what mount %s is on", f.Name())
}

// mountedAt returns a *MountedError when path, or something beneath it, is a
// mount point. Where the table of mounts cannot be read it says nothing: the
// way down still enters none.
func mountedAt(path string) error {
	real, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return nil // what is not there holds no mount; what cannot be read is said on the way down
	}
	real = filepath.Join(real, filepath.Base(path))
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		// 36 35 98:0 /root /mount/point options …
		fields := strings.SplitN(lines.Text(), " ", 6)
		if len(fields) < 6 {
			continue
		}
		point := unescape(fields[4])
		if rest, ok := strings.CutPrefix(point, real); ok && (rest == "" || rest[0] == '/') {
			return &MountedError{Path: point}
		}
	}
	return nil
}

// unescape undoes the octal escapes of the table of mounts.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if c, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(c))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
