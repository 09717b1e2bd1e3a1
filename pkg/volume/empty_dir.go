package volume

import (
	"errors"
	"fmt"
	"os"

	v1 "k8s.io/api/core/v1"
)

// emptyDir is a directory that lives as long as its instance: it outlives the
// containers and the agent, and a new instance gets a fresh one (C-1.37.3).
type emptyDir struct{}

func (emptyDir) dir() string { return "kubernetes.io~empty-dir" }

func (emptyDir) path(_ v1.Volume, own string) string { return own }

// put makes the directory for every user of every container (0777, as the
// kubelet's); the directories above it keep the host's users out.
func (emptyDir) put(p placed, again bool) error {
	if m := p.EmptyDir.Medium; m != v1.StorageMediumDefault {
		return fmt.Errorf("emptyDir medium %s is not supported", m)
	}
	err := os.Mkdir(p.path, 0o777)
	if errors.Is(err, os.ErrExist) {
		info, err := os.Lstat(p.path)
		switch {
		case err != nil:
			return err
		case !info.IsDir():
			return fmt.Errorf("%s is not a directory", p.path)
		case again:
			return nil // a container may have changed the mode of what it uses
		}
	} else if err != nil {
		return err
	}
	return os.Chmod(p.path, 0o777)
}
