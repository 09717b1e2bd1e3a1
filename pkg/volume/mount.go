package volume

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// mountsBelow returns the mounts on path and below, in the order of the kernel's table. If the
// table cannot be read it returns none; a removal enters no mount nevertheless.
func mountsBelow(path string) []*mountinfo.Info {
	real, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return nil // a missing path has no mounts; the walk reports unreadable ones
	}
	all, err := mountinfo.GetMounts(mountinfo.PrefixFilter(filepath.Join(real, filepath.Base(path))))
	if err != nil {
		return nil
	}
	return all
}

// mountedAt returns a *MountedError if path, or something below it, is a mount point.
func mountedAt(path string) error {
	if all := mountsBelow(path); len(all) > 0 {
		return &MountedError{Path: all[0].Mountpoint}
	}
	return nil
}

// unmountOwn unmounts the agent's mounts below path, the directory of a pod or of one instance of
// it; uid is the pod's directory. If there are other mounts it returns a *MountedError and
// unmounts nothing. Mounts of CSI drivers stay: their drivers unmount them.
func (v *Volumes) unmountOwn(uid, path string) error {
	all := mountsBelow(path)
	if len(all) == 0 {
		return nil
	}
	pods, err := filepath.EvalSymlinks(v.pods)
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(m *mountinfo.Info) bool {
		return strings.HasPrefix(m.Mountpoint, filepath.Join(pods, uid, volumesDir, dirDriver)+"/")
	})
	for _, m := range all {
		if rel, ok := strings.CutPrefix(m.Mountpoint, filepath.Join(pods, uid)+"/"); !ok || !isOwn(rel, m) {
			return &MountedError{Path: m.Mountpoint}
		}
	}
	for _, m := range all {
		take := unmount
		if strings.HasPrefix(m.FSType, "nfs") {
			take = v.mounter().Unmount
		}
		if err := take(m.Mountpoint); err != nil {
			return err
		}
	}
	return nil
}

// isOwn reports whether the agent itself mounts something on such a path; rel is the path under
// the pod's directory. It is a volume in memory, the target of a claim, a directory of an NFS
// server, or a subPath of a volume. These mounts are never nested.
func isOwn(rel string, m *mountinfo.Info) bool {
	part := strings.Split(rel, "/")
	switch {
	case len(part) == 4 && part[1] == volumesDir:
		switch part[2] {
		case dirEmptyDir, dirSecret, dirDownward, dirProjected:
			return m.Root == "/" && (m.FSType == "tmpfs" || m.FSType == "hugetlbfs")
		case dirBound, dirNFS:
			return true
		}
	case len(part) == 5:
		return part[1] == subPathsDir
	}
	return false
}

// unmount unmounts all mounts on path itself; no mount, or no such path, is success. A busy
// mount disappears when it is no longer used.
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
