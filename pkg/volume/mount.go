package volume

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// mountsBelow returns what is mounted on path and beneath, in the order of the
// kernel's table. Where the table cannot be read it says nothing: the way down still
// enters no mount.
func mountsBelow(path string) []*mountinfo.Info {
	real, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return nil // what is not there holds no mount; what cannot be read is said on the way down
	}
	all, err := mountinfo.GetMounts(mountinfo.PrefixFilter(filepath.Join(real, filepath.Base(path))))
	if err != nil {
		return nil
	}
	return all
}

// mountedAt returns a *MountedError when path, or something beneath it, is a
// mount point.
func mountedAt(path string) error {
	if all := mountsBelow(path); len(all) > 0 {
		return &MountedError{Path: all[0].Mountpoint}
	}
	return nil
}

// unmountOwn unmounts what we have mounted beneath path, the directory of a pod or of
// one instance of it; uid is the pod's directory. When something else is mounted there
// it returns a *MountedError and has unmounted nothing.
func (v *Volumes) unmountOwn(uid, path string) error {
	all := mountsBelow(path)
	if len(all) == 0 {
		return nil
	}
	pods, err := filepath.EvalSymlinks(v.pods)
	if err != nil {
		return err
	}
	for _, m := range all {
		if rel, ok := strings.CutPrefix(m.Mountpoint, filepath.Join(pods, uid)+"/"); !ok || !isOwn(rel, m) {
			return &MountedError{Path: m.Mountpoint}
		}
	}
	for _, m := range all {
		if err := unmount(m.Mountpoint); err != nil {
			return err
		}
	}
	return nil
}

// isOwn reports whether a mount is one that we make: a volume in memory, or a part of
// a volume. rel is where it is under the pod's directory. None of ours lies in
// another.
func isOwn(rel string, m *mountinfo.Info) bool {
	part := strings.Split(rel, "/")
	switch {
	case len(part) == 4 && part[1] == volumesDir:
		switch part[2] {
		case dirEmptyDir, dirSecret, dirDownward, dirProjected:
			return m.Root == "/" && (m.FSType == "tmpfs" || m.FSType == "hugetlbfs")
		case dirBound:
			return true
		}
	case len(part) == 5:
		return part[1] == subPathsDir
	}
	return false
}

// unmount unmounts all that is mounted on path itself; nothing mounted, or no such
// path, is success. A mount that is busy goes when it is no longer used.
func unmount(path string) error {
	for range maxTries {
		err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EBUSY) {
			err = unix.Unmount(path, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
		}
		switch {
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
			return nil
		case err != nil:
			return &os.PathError{Op: "unmount", Path: path, Err: err}
		}
	}
	return &MountedError{Path: path}
}

// SELinuxEnabled reports whether the node has SELinux.
func SELinuxEnabled() bool {
	var fs unix.Statfs_t
	return unix.Statfs("/sys/fs/selinux", &fs) == nil && fs.Type == unix.SELINUX_MAGIC
}
