package volume

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

// setGroup changes the group of a volume and all its files to the pod's (fsGroup), as the
// kubelet does: the group may read and write, or read only, and new files get the group
// too. If policy says so, a volume whose own directory is correct is not walked. It follows
// no link and enters no mount. It ends with ctx.
func setGroup(ctx context.Context, path string, group *int64, policy *v1.PodFSGroupChangePolicy, readOnly bool) error {
	if group == nil {
		return nil
	}
	dir, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer dir.Close()
	if policy != nil && *policy == v1.FSGroupChangeOnRootMismatch {
		var st unix.Stat_t
		if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
			return err
		}
		bits := groupBits(true, readOnly)
		if int64(st.Gid) == *group && st.Mode&bits == bits {
			return nil
		}
	}
	return setGroupBelow(ctx, dir, *group, readOnly)
}

// setGroupBelow is setGroup for an open directory. The directory itself comes last, so that
// its correct group means that the walk was finished.
func setGroupBelow(ctx context.Context, dir *os.File, group int64, readOnly bool) error {
	err := walk(dir, 0, func(parent *os.File, name string, st *unix.Stat_t) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return setGroupOf(parent, name, group, readOnly)
	})
	if err != nil {
		return err
	}
	return setGroupOf(dir, "", group, readOnly)
}

// groupBits are the permissions of the group.
func groupBits(dir, readOnly bool) uint32 {
	bits := uint32(0o660)
	if readOnly {
		bits = 0o440
	}
	if dir {
		bits |= 0o110 | unix.S_ISGID
	}
	return bits
}

// setGroupOf changes the group of the entry of that name in parent, or of parent itself if
// name is "". It checks and changes the same descriptor, so that a file put in its place
// meanwhile is not changed.
func setGroupOf(parent *os.File, name string, group int64, readOnly bool) error {
	path := filepath.Join(parent.Name(), name)
	fd := int(parent.Fd())
	if name != "" {
		var err error
		fd, err = unix.Openat(fd, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		if err != nil {
			return &os.PathError{Op: "open", Path: path, Err: err}
		}
		defer unix.Close(fd)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if err := unix.Fchownat(fd, "", -1, int(group), unix.AT_EMPTY_PATH); err != nil {
		return &os.PathError{Op: "chown", Path: path, Err: err}
	}
	kind := st.Mode & unix.S_IFMT
	if kind == unix.S_IFLNK {
		return nil
	}
	mode := st.Mode&^unix.S_IFMT | groupBits(kind == unix.S_IFDIR, readOnly)
	if err := unix.Chmod("/proc/self/fd/"+strconv.Itoa(fd), mode); err != nil {
		return &os.PathError{Op: "chmod", Path: path, Err: err}
	}
	return nil
}
