package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/component-helpers/resource"

	"github.com/nodectl/nodectl/pkg/pod"
)

// maxFileCount limits the files that are counted in the volumes of a pod. Empty files and hard
// links use no blocks, so that a limit of bytes does not bound their number.
const maxFileCount = 2_000_000

var (
	// errOver ends the measurement of a volume over its limit.
	errOver = errors.New("over the limit")
	// errTooMany says that a volume has more than the limit of files.
	errTooMany = fmt.Errorf("the pod's volumes have more than %d files", maxFileCount)
)

// ExceededLimit measures the disk usage of an instance and returns a message about the first limit
// that it exceeds, "" for none (C-1.35.9). The order is: the sizeLimit of an emptyDir, the limits
// of all containers together, the limit of one container. Sizes are blocks, as du counts them.
//
// layers holds the bytes of the containers' writable layers, by name. With nil, only the limits of
// emptyDirs are checked. A tree is measured up to its limit only. A volume also counts as over
// its limit if it is too deep to measure, or if it brings the pod's files above maxFileCount.
func (v *Volumes) ExceededLimit(ctx context.Context, want *pod.Spec, instance int, layers map[string]int64) (string, error) {
	_, all, err := v.place(want, instance)
	if err != nil {
		return "", err
	}
	m := meter{ctx: ctx, left: v.fileLimit, limit: -1}
	limits, limited := resource.PodLimits(want.Pod, resource.PodResourcesOptions{})[v1.ResourceEphemeralStorage]
	if limited = limited && layers != nil; limited {
		m.limit = limits.Value()
	}
	for _, p := range all {
		if e := p.EmptyDir; e == nil || e.Medium != v1.StorageMediumDefault {
			continue
		}
		end := begin(ctx, "measure volume", p)
		over, err := m.emptyDir(p.path, p.Volume)
		end()
		if over != "" || err != nil {
			return over, err
		}
	}
	if !limited {
		return "", nil
	}
	of := func(c string) (int64, error) {
		if v.cfg.PodLogsDir == "" {
			return layers[c], nil
		}
		logs, err := m.tree(filepath.Join(v.cfg.PodLogsDir, logDirectory(want.Key, want.UID()), c), max(m.limit-m.used, 0))
		if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, errOver) {
			return 0, fmt.Errorf("logs of container %s: %w", c, err)
		}
		return layers[c] + logs, nil
	}
	overOwn := ""
	for _, c := range slices.Concat(want.Pod.Spec.Containers, want.Pod.Spec.InitContainers) {
		used, err := of(c.Name)
		if err != nil {
			return "", err
		}
		m.used += used
		limit, ok := c.Resources.Limits[v1.ResourceEphemeralStorage]
		if _, init := want.Container(c.Name); ok && overOwn == "" && used > limit.Value() && (!init || pod.Restartable(&c)) {
			overOwn = fmt.Sprintf("Container %s exceeded its local ephemeral storage limit %q. ", c.Name, limit.String())
		}
	}
	if m.used > m.limit {
		return m.overAll(), nil
	}
	return overOwn, nil
}

// meter measures the trees of one pod.
type meter struct {
	ctx   context.Context
	left  int   // files that may still be counted
	limit int64 // bytes of all containers together; -1: none
	used  int64 // bytes that were counted
}

func (m *meter) overAll() string {
	return fmt.Sprintf("Pod ephemeral local storage usage exceeds the total limit of containers %s. ", quantity.NewQuantity(m.limit, quantity.BinarySI))
}

// emptyDir measures an emptyDir on the disk if it counts against a limit, and returns which
// limit it exceeds.
func (m *meter) emptyDir(path string, v *v1.Volume) (string, error) {
	own := int64(-1)
	if l := v.EmptyDir.SizeLimit; l != nil && l.Sign() > 0 {
		own = l.Value()
	}
	most := own
	if rest := max(m.limit-m.used, 0); m.limit >= 0 && (own < 0 || rest < own) {
		most = rest
	}
	if most < 0 {
		return "", nil
	}
	used, err := m.tree(path, most)
	m.used += used
	switch {
	case errors.Is(err, os.ErrNotExist):
	case errors.Is(err, errOver) && most == own:
		return fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q. ", v.Name, v.EmptyDir.SizeLimit.String()), nil
	case errors.Is(err, errOver):
		return m.overAll(), nil
	case errors.Is(err, errTooDeep), errors.Is(err, errTooMany):
		return fmt.Sprintf("Usage of EmptyDir volume %q cannot be measured: %s. ", v.Name, err), nil
	case err != nil:
		return "", fmt.Errorf("volume %s: %w", v.Name, err)
	}
	return "", nil
}

// tree returns the bytes of the disk that a tree uses. It ends with errOver when they exceed
// limit, and with errTooMany when the pod has too many files.
func (m *meter) tree(path string, limit int64) (used int64, err error) {
	dir, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return 0, err
	}
	defer dir.Close()
	var top unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &top); err != nil {
		return 0, err
	}
	linked := map[uint64]bool{}
	used = top.Blocks * 512
	if used > limit {
		return used, errOver
	}
	err = walk(dir, 0, func(_ *os.File, _ string, st *unix.Stat_t) error {
		if m.ctx.Err() != nil {
			return context.Cause(m.ctx)
		}
		if m.left--; m.left < 0 {
			return errTooMany
		}
		if st.Dev != top.Dev {
			return nil
		}
		if st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFDIR {
			if linked[st.Ino] {
				return nil
			}
			linked[st.Ino] = true
		}
		if used += st.Blocks * 512; used > limit {
			return errOver
		}
		return nil
	})
	return used, err
}
