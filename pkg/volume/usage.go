package volume

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// largest is the limit of files counted in the volumes of a pod. Empty files and hard links
// use no blocks, so the limit of bytes does not bound them.
const largest = 2_000_000

var (
	// errOver ends the measurement of a volume over its limit.
	errOver = errors.New("over the limit")
	// errTooMany says that a volume has more than the limit of files.
	errTooMany = fmt.Errorf("the pod's volumes have more than %d files", largest)
)

// Over returns a volume on the disk that exceeds its sizeLimit, "" for none. It measures
// now, in blocks as du counts them, and only up to the limit (C-1.35.9). A volume that is
// too deep to measure counts as over its limit, and so does the one at which the pod's
// files are too many. It ends with ctx.
func (v *Volumes) Over(ctx context.Context, want *pod.Spec, instance int) (string, error) {
	_, all, err := v.place(want, instance)
	if err != nil {
		return "", err
	}
	left := v.most
	for _, p := range all {
		e := p.EmptyDir
		if e == nil || e.Medium != v1.StorageMediumDefault || e.SizeLimit == nil || e.SizeLimit.Sign() <= 0 {
			continue
		}
		names, err := measure(ctx, p.path, e.SizeLimit.Value(), left)
		left -= names
		switch {
		case errors.Is(err, os.ErrNotExist):
		case errors.Is(err, errOver):
			return fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q. ", p.Name, e.SizeLimit.String()), nil
		case errors.Is(err, errTooDeep), errors.Is(err, errTooMany):
			return fmt.Sprintf("Usage of EmptyDir volume %q cannot be measured: %s. ", p.Name, err), nil
		case err != nil:
			return "", fmt.Errorf("volume %s: %w", p.Name, err)
		}
	}
	return "", nil
}

// measure returns errOver if a tree uses more bytes of the disk than limit, and errTooMany
// if it has more than most files; names is the number of files it counted.
func measure(ctx context.Context, path string, limit int64, most int) (names int, err error) {
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
	used := top.Blocks * 512
	add := func(_ *os.File, _ string, st *unix.Stat_t) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if names++; names > most {
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
	}
	if used > limit {
		return 0, errOver
	}
	err = walk(dir, 0, add)
	return names, err
}
