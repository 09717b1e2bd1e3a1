package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// hostPath is a volume that shows a path of the host. Its files belong to the host: the agent
// checks them, makes them if the type says so, and never removes them.
type hostPath struct{ *v1.HostPathVolumeSource }

func (hostPath) traits() traits { return traits{} }

func (h hostPath) path(string) string { return h.Path }

// setUp checks that the path is allowed and has its type, and makes it if the type says so
// (C-1.37.5). Without a type nothing is checked. Links are followed.
//
//	type               if missing     otherwise it must be
//	DirectoryOrCreate  made, 0755     a directory
//	FileOrCreate       made, 0644     a regular file; its directory must exist
//	Directory          error          a directory
//	File               error          a regular file
//	Socket             error          a socket
//	CharDevice         error          a character device
//	BlockDevice        error          a block device
func (h hostPath) setUp(_ context.Context, p placed, s *setting) error {
	if err := s.allowed(s.want, p.Name, h.HostPathVolumeSource); err != nil {
		return err
	}
	want := v1.HostPathUnset
	if h.Type != nil {
		want = *h.Type
	}
	path := h.Path
	if !filepath.IsAbs(path) {
		return fmt.Errorf("hostPath %s: has to be an absolute path", path)
	}
	err := checkHostPath(path, want)
	if errors.Is(err, fs.ErrNotExist) {
		switch want {
		case v1.HostPathDirectoryOrCreate:
			err = makeDirectory(path)
		case v1.HostPathFileOrCreate:
			err = makeFile(path)
		default:
			err = errors.New("does not exist")
		}
	}
	var place *fs.PathError
	if errors.As(err, &place) {
		err = place.Err // the message has the path already
	}
	if err != nil {
		return fmt.Errorf("hostPath %s: %w", path, err)
	}
	return nil
}

// allowed returns an error if a volume of the pod must not show a path of this node, as written
// or with its links followed. The last parts of the path may be missing.
func (v *Volumes) allowed(want *pod.Spec, volume string, at *v1.HostPathVolumeSource) error {
	if v.cfg.Allow == nil {
		return nil
	}
	if err := v.cfg.Allow(want, volume, at, false); err != nil {
		return err
	}
	real, err := realPath(at.Path)
	if err != nil {
		return fmt.Errorf("hostPath %s: %w", at.Path, err)
	}
	return v.cfg.Allow(want, volume, &v1.HostPathVolumeSource{Path: real, Type: at.Type}, true)
}

// realPath follows the links of a path, whose last parts may be missing.
func realPath(path string) (string, error) {
	path = filepath.Clean(path)
	real, err := filepath.EvalSymlinks(path)
	if !errors.Is(err, fs.ErrNotExist) || path == "/" || path == "." {
		return real, err
	}
	if _, err := os.Lstat(path); err == nil {
		return "", errors.New("is a link to a missing file")
	}
	above, err := realPath(filepath.Dir(path))
	return filepath.Join(above, filepath.Base(path)), err
}

// checkHostPath returns an error if path is not of type want.
func checkHostPath(path string, want v1.HostPathType) error {
	if want == v1.HostPathUnset {
		return nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	const device = fs.ModeDevice | fs.ModeCharDevice
	ok, name := false, ""
	switch mode := info.Mode(); want {
	case v1.HostPathDirectoryOrCreate, v1.HostPathDirectory:
		ok, name = mode.IsDir(), "a directory"
	case v1.HostPathFileOrCreate, v1.HostPathFile:
		ok, name = mode.IsRegular(), "a file"
	case v1.HostPathSocket:
		ok, name = mode&fs.ModeSocket != 0, "a socket"
	case v1.HostPathCharDev:
		ok, name = mode&device == device, "a character device"
	case v1.HostPathBlockDev:
		ok, name = mode&device == fs.ModeDevice, "a block device"
	default:
		return fmt.Errorf("type %q is not known", want)
	}
	if !ok {
		return fmt.Errorf("is not %s", name)
	}
	return nil
}

// makeDirectory makes path, and its missing parents. Path gets the mode 0755 whatever the agent's
// umask is, because containers that are not root read it; the umask applies to the parents. A
// directory that appears meanwhile is not changed.
func makeDirectory(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	err := os.Mkdir(path, 0o755)
	if errors.Is(err, fs.ErrExist) {
		return checkHostPath(path, v1.HostPathDirectory)
	}
	if err != nil {
		return err
	}
	// Chmod the open directory, so that a user who may write above it cannot redirect the
	// chmod to another file.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Chmod(0o755), f.Close())
}

// makeFile makes path, empty, 0644. A file that appears meanwhile is not changed.
func makeFile(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return checkHostPath(path, v1.HostPathFile)
	}
	if err != nil {
		return err
	}
	return errors.Join(f.Chmod(0o644), f.Close())
}
