package csi

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"k8s.io/apimachinery/pkg/util/validation"
)

// The kubelet's names below its directory.
const (
	pluginName  = "kubernetes.io/csi"
	podsDir     = "pods"
	volumesDir  = "volumes"
	pluginDir   = "kubernetes.io~csi"
	globalMount = "globalmount"
	mountDir    = "mount"

	devicesDir = "volumeDevices" // below the plugin's directory, and below those of pods
	stagingDir = "staging"
	publishDir = "publish"
	dataDir    = "data"
)

// Limits of names that drivers and users choose. Paths contain only the checksum of a handle.
const (
	maxName   = 63 // of a driver's name, as in the CSI specification
	maxHandle = 4 << 10
)

// volumeID names a volume: its driver, and the driver's name for it.
type volumeID struct {
	driver, handle string
	block          string // the name of the PersistentVolume of a block volume; "" for a file system
}

func (id volumeID) check() error {
	if err := checkName(id.driver); err != nil {
		return err
	}
	switch id.block {
	case "":
	case stagingDir, publishDir:
		return fmt.Errorf("a block volume cannot be named %q: that is the directory of all block volumes", id.block)
	default:
		if err := checkElement(id.block); err != nil {
			return err
		}
	}
	if id.handle == "" || len(id.handle) > maxHandle || strings.ContainsRune(id.handle, 0) {
		return fmt.Errorf("a volume handle of %d bytes is not valid: 1 to %d bytes without a zero byte are allowed", len(id.handle), maxHandle)
	}
	return nil
}

// unique is the volume's name in the status of a Node.
func (id volumeID) unique() string { return pluginName + "/" + id.driver + "^" + id.handle }

// attachment is the name of the VolumeAttachment of a volume and a node.
func (id volumeID) attachment(node string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(id.handle+id.driver+node)))
}

// inlineHandle is the handle of an inline volume of a pod.
func inlineHandle(uid, volume string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(uid+volume)))
}

// checkName returns an error for a driver's name that cannot be a directory, or that the CSI
// specification forbids.
func checkName(driver string) error {
	if len(driver) > maxName || len(validation.IsDNS1123Subdomain(strings.ToLower(driver))) > 0 {
		return fmt.Errorf("%.80q is not the name of a CSI driver", driver)
	}
	return nil
}

// checkElement returns an error for a name that is not a single element of a path.
func checkElement(name string) error {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") || len(name) > 255 {
		return fmt.Errorf("%.80q is not a plain file name", name)
	}
	return nil
}

// stageDir is the directory of a staged volume, with its vol_data.json.
func (v *Volumes) stageDir(id volumeID) string {
	if id.block != "" {
		return filepath.Join(v.cfg.Dir, "plugins", pluginName, devicesDir, id.block, dataDir)
	}
	return filepath.Join(v.cfg.Dir, "plugins", pluginName, id.driver, fmt.Sprintf("%x", sha256.Sum256([]byte(id.handle))))
}

// stageTarget is the path at which the driver stages a volume.
func (v *Volumes) stageTarget(id volumeID) string {
	if id.block != "" {
		return filepath.Join(v.cfg.Dir, "plugins", pluginName, devicesDir, stagingDir, id.block)
	}
	return filepath.Join(v.stageDir(id), globalMount)
}

// podDir is the directory of a pod's volumes of CSI drivers: of its block volumes, or of the others.
func (v *Volumes) podDir(uid string, block bool) string {
	kind := volumesDir
	if block {
		kind = devicesDir
	}
	return filepath.Join(v.cfg.Dir, podsDir, uid, kind, pluginDir)
}

// userDir is the directory of a volume for one pod, with its vol_data.json.
func (v *Volumes) userDir(u user) string { return filepath.Join(v.podDir(u.uid, u.block), u.name) }

// publishedDir has the devices of all pods' block volumes.
func (v *Volumes) publishedDir() string {
	return filepath.Join(v.cfg.Dir, "plugins", pluginName, devicesDir, publishDir)
}

// userTarget is the path at which the driver publishes a volume for one pod.
func (v *Volumes) userTarget(u user) string {
	if u.block {
		return filepath.Join(v.publishedDir(), u.name, u.uid)
	}
	return filepath.Join(v.userDir(u), mountDir)
}

// usersIn returns the volumes of a pod for which there is a directory.
func (v *Volumes) usersIn(uid string) (all []user) {
	for _, block := range []bool{false, true} {
		for _, name := range names(v.podDir(uid, block)) {
			all = append(all, user{uid, name, block})
		}
	}
	return all
}

// isDevice reports whether a path itself is a block device.
func isDevice(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode()&(os.ModeDevice|os.ModeCharDevice) == os.ModeDevice
}

// errLink is the error of a path that is a link or a file instead of a directory.
var errLink = errors.New("is not a directory: links are not followed")

// makeDir makes a directory below the kubelet's directory and its missing parents. None of them may
// be a link, which would send a driver to another place.
func (v *Volumes) makeDir(dir string) error {
	if err := os.MkdirAll(v.cfg.Dir, 0o755); err != nil {
		return err
	}
	below, err := filepath.Rel(v.cfg.Dir, dir)
	if err != nil || !filepath.IsLocal(below) {
		return fmt.Errorf("%s is not below %s", dir, v.cfg.Dir)
	}
	at := v.cfg.Dir
	for part := range strings.SplitSeq(below, "/") {
		at = filepath.Join(at, part)
		if err := os.Mkdir(at, 0o750); err != nil && !os.IsExist(err) {
			return err
		}
		if err := checkDir(at); err != nil {
			return err
		}
	}
	return nil
}

// checkDir returns an error for a path that is not itself a directory.
func checkDir(path string) error {
	info, err := os.Lstat(path)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s: %w", path, errLink)
	}
	return err
}

// mountAt returns the newest mount at exactly this path, or nil. It reads only the kernel's mount
// table, so that a hanging file system does not block it.
func mountAt(path string) (*mountinfo.Info, error) {
	real, err := filepath.EvalSymlinks(filepath.Dir(path))
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	all, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(filepath.Join(real, filepath.Base(path))))
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return all[len(all)-1], nil
}

// references returns the other mounts of a staged volume, or of a part of it. It leaves out mounts
// below the staging path: they belong to the driver.
func references(staged string) ([]string, error) {
	at, err := mountAt(staged)
	if err != nil || at == nil {
		return nil, err
	}
	all, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, m := range all {
		if m.Major == at.Major && m.Minor == at.Minor && isIn(m.Root, at.Root) && !isIn(m.Mountpoint, at.Mountpoint) {
			paths = append(paths, m.Mountpoint)
		}
	}
	slices.Sort(paths)
	return paths, nil
}

// isIn reports whether a clean path is a directory or below it.
func isIn(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}
