package csi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/pkg/atomicfile"
)

// The keys of a vol_data.json: the kubelet's, and three of our own, which the kubelet ignores.
const (
	keyVolume     = "specVolID"
	keyHandle     = "volumeHandle"
	keyDriver     = "driverName"
	keyNode       = "nodeName"
	keyAttachment = "attachmentID"
	keyLifecycle  = "volumeLifecycleMode"
	keyLabel      = "seLinuxMountContext"

	keyProgress = "nodectl.dev/progress" // "begun", or "done" with the boot ID of the machine
	keyAttach   = "nodectl.dev/attach"   // "false": no controller attaches the volume
	keyInPod    = "nodectl.dev/volume"   // the volume's name in the pod
)

// The values of volumeLifecycleMode.
const (
	persistent = "Persistent"
	ephemeral  = "Ephemeral"
)

const (
	dataFile = "vol_data.json"
	maxData  = 64 << 10 // bytes of a vol_data.json
)

// data is the content of a vol_data.json, which identifies the volume that is mounted beside it.
type data map[string]string

// progress returns the progress of the last call to the driver. A file that a kubelet wrote has no
// progress: the call may have succeeded. After a reboot every mount is gone.
func (d data) progress(boot string) Progress {
	switch how, at, _ := strings.Cut(d[keyProgress], " "); {
	case d == nil:
		return None
	case how == "done" && at == boot && boot != "":
		return Done
	}
	return Begun
}

// own reports whether nodectl, not a kubelet, wrote the file.
func (d data) own() bool { return d[keyProgress] != "" }

// with returns d with another progress.
func (d data) with(p Progress, boot string) data {
	d = maps.Clone(d)
	d[keyProgress] = "begun"
	if p == Done {
		d[keyProgress] = "done " + boot
	}
	return d
}

// id returns the ID of the volume. ok is false for a file that does not name one. block is the name of
// the PersistentVolume if the file belongs to a block volume.
func (d data) id(block string) (id volumeID, ok bool) {
	id = volumeID{d[keyDriver], d[keyHandle], block}
	return id, id.check() == nil
}

// idOf returns the ID for the file of a pod's volume.
func (d data) idOf(u user) (id volumeID, ok bool) {
	if u.block {
		return d.id(u.name)
	}
	return d.id("")
}

// errNoData is the error of a vol_data.json with other content.
var errNoData = errors.New("does not describe a volume of a CSI driver")

// readData reads the vol_data.json of a directory, or returns nil if there is none. It does not follow
// a link.
func readData(dir string) (data, error) {
	path := filepath.Join(dir, dataFile)
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: is not a regular file", path)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxData+1))
	if err != nil {
		return nil, err
	}
	var d data
	if len(text) > maxData || json.Unmarshal(text, &d) != nil {
		return nil, fmt.Errorf("%s: %w", path, errNoData)
	}
	if _, ok := d.id(""); !ok {
		return nil, fmt.Errorf("%s: %w", path, errNoData)
	}
	return d, nil
}

// writeData writes the vol_data.json of a directory, with the kubelet's file mode.
func writeData(dir string, d data) error {
	text, err := json.Marshal(d)
	if err != nil {
		return err
	}
	if len(text) > maxData {
		return fmt.Errorf("%s has %d bytes, more than %d", filepath.Join(dir, dataFile), len(text), maxData)
	}
	return atomicfile.Write(filepath.Join(dir, dataFile), append(text, '\n'), atomicfile.Options{Mode: 0o644, Temp: ".tmp", Sync: true})
}

// removeDir removes a directory with its file, and the target of the driver's calls. It removes
// nothing else, and enters no mount.
func removeDir(dir, target string) error {
	for _, path := range []string{target, filepath.Join(dir, dataFile+".tmp"), filepath.Join(dir, dataFile), dir} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
