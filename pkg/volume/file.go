package volume

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/pkg/pod"
)

// maxFileSize is the limit of bytes read from a file in a volume.
const maxFileSize = 64 << 10

// File returns a file of an emptyDir of an instance after SetUp, at most 64 KiB (C-1.38.4).
// Containers write there: a path out of the volume, a FIFO and any other non-regular file
// is an error. A missing file wraps fs.ErrNotExist.
func (v *Volumes) File(want *pod.Spec, instance int, volume, path string) ([]byte, error) {
	_, all, err := v.place(want, instance)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(all, func(p placed) bool { return p.Name == volume })
	if at < 0 || all[at].EmptyDir == nil {
		return nil, fmt.Errorf("volume %s: the pod has no such emptyDir", volume)
	}
	text, err := readBeneath(all[at].path, path)
	if err != nil {
		return nil, fmt.Errorf("volume %s: file %s: %w", volume, path, err)
	}
	return text, nil
}

// readBeneath reads a file below a directory.
func readBeneath(dir, path string) ([]byte, error) {
	if strings.HasPrefix(path, "/") || slices.Contains(strings.Split(path, "/"), "..") {
		return nil, errOutside
	}
	root, err := openVolume(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	seen, err := openBeneath(root, path)
	if err != nil {
		return nil, err
	}
	defer seen.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(seen.Fd()), &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, errors.New("is not a file")
	}
	f, err := os.OpenFile("/proc/self/fd/"+strconv.Itoa(int(seen.Fd())), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFileSize+1))
	if err == nil && len(text) > maxFileSize {
		return nil, fmt.Errorf("is larger than %d bytes", maxFileSize)
	}
	return text, err
}
