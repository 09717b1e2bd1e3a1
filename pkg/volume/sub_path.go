package volume

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// bindSubPath mounts a part of a volume at a path under the instance, which no container
// can change, and returns that path (C-1.37.7). It mounts the descriptor that was opened
// below the volume. A container that replaces directories by links meanwhile gets an error, or
// another part of the same volume. A correct mount stays; a wrong or broken one is replaced.
func bindSubPath(dir string, p placed, container string, i int, sub string, allow func(root string) error) (string, error) {
	if err := oneName(container); err != nil {
		return "", fmt.Errorf("container %q: %w", container, err)
	}
	source, err := openSubPath(p, sub, allow)
	if errors.Is(err, unix.ENOENT) {
		err = errors.New("is not in the volume")
	}
	if err != nil {
		return "", err
	}
	defer source.Close()
	target := filepath.Join(dir, subPathsDir, p.Name, container, strconv.Itoa(i))
	return target, bind(source, target)
}

// openSubPath opens a part of a volume. It makes missing directories, with the mode of the
// volume's own, if containers may write to the volume. allow checks the path of the volume.
func openSubPath(p placed, sub string, allow func(root string) error) (*os.File, error) {
	root, err := openVolume(p.path)
	if errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("%s does not exist", p.path)
	}
	if err != nil {
		return nil, err
	}
	defer root.Close()
	real, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(root.Fd())))
	if err != nil {
		return nil, err
	}
	if err := allow(real); err != nil {
		return nil, err
	}
	if p.readOnly {
		return openBeneath(root, sub)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(root.Fd()), &st); err != nil {
		return nil, err
	}
	return makeBeneath(root, sub, st.Mode&^unix.S_IFMT)
}

// bind mounts source on target.
func bind(source *os.File, target string) error {
	var want unix.Stat_t
	if err := unix.Fstat(int(source.Fd()), &want); err != nil {
		return err
	}
	if isSame(&want, target) {
		return nil
	}
	if err := unmount(target); err != nil {
		return err
	}
	if err := makeTarget(target, want.Mode&unix.S_IFMT == unix.S_IFDIR); err != nil {
		return err
	}
	if err := unix.Mount("/proc/self/fd/"+strconv.Itoa(int(source.Fd())), target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount on %s: %w", target, err)
	}
	if !isSame(&want, target) {
		return errors.Join(fmt.Errorf("another file is mounted on %s", target), unmount(target))
	}
	return nil
}

// isSame reports whether path is the file of st.
func isSame(st *unix.Stat_t, path string) bool {
	var have unix.Stat_t
	return unix.Lstat(path, &have) == nil && have.Dev == st.Dev && have.Ino == st.Ino
}

// makeTarget makes a mount point: a directory, or a file for all other types.
func makeTarget(path string, dir bool) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	if info, err := os.Lstat(path); err == nil {
		if info.IsDir() == dir {
			return nil
		}
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	if dir {
		return os.Mkdir(path, 0o750)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	return f.Close()
}
