package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// emptyDir is a directory that lasts as long as its instance: it outlives the containers
// and the agent, and a new instance gets a new one (C-1.37.3). In memory it does not
// survive a reboot.
type emptyDir struct{ *v1.EmptyDirVolumeSource }

func (e emptyDir) traits() traits {
	return traits{dir: dirEmptyDir, relabel: true, mounted: e.Medium != v1.StorageMediumDefault}
}

func (emptyDir) path(own string) string { return own }

func (e emptyDir) setUp(ctx context.Context, p placed, s *setting) error {
	made, err := makeVolume(p.path, s.again)
	if err != nil {
		return err
	}
	if e.Medium != v1.StorageMediumDefault {
		if made, err = e.mount(p.path, s); err != nil {
			return err
		}
	}
	if !made && s.again {
		return nil // a container may have changed the group since
	}
	return setGroup(ctx, p.path, s.group(), nil, false)
}

// mount mounts the medium's file system, unless it is mounted already.
func (e emptyDir) mount(path string, s *setting) (made bool, err error) {
	switch m := string(e.Medium); {
	case e.Medium == v1.StorageMediumMemory:
		return s.mountMemory(path, s.memorySize(e.SizeLimit))
	case e.Medium == v1.StorageMediumHugePages, strings.HasPrefix(m, string(v1.StorageMediumHugePagesPrefix)):
		size, err := hugePageSize(s.want.Pod, m)
		if err != nil {
			return false, err
		}
		return mountHugePages(path, size)
	}
	return false, fmt.Errorf("unknown storage medium %q", e.Medium)
}

// makeVolume makes the directory of a volume, in which every user of every container may write
// (0777, as in the kubelet). The host's users cannot reach it, because they cannot enter the
// directories above it. With again an existing directory is not changed.
func makeVolume(path string, again bool) (made bool, err error) {
	err = os.Mkdir(path, 0o777)
	if errors.Is(err, os.ErrExist) {
		info, err := os.Lstat(path)
		switch {
		case err != nil:
			return false, err
		case !info.IsDir():
			return false, fmt.Errorf("%s is not a directory", path)
		case again:
			return false, nil // a container may have changed the mode since
		}
		mounted, err := overmounted(path)
		if err != nil || mounted {
			return false, err
		}
	} else if err != nil {
		return false, err
	}
	return true, os.Chmod(path, 0o777)
}
