package volume

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	mountutils "k8s.io/mount-utils"
)

const (
	dirNFS = "kubernetes.io~nfs"
	// unmountTimeout is how long umount may take before it is forced: the server may be away.
	unmountTimeout = time.Minute // the kubelet's
	maxServer      = 253
)

// Mounter mounts and unmounts network file systems. A call may take minutes.
type Mounter interface {
	Mount(source, target string, options []string) error
	Unmount(target string) error
}

// hostMounter calls the node's mount and umount.
type hostMounter struct{}

// utils is made for the first volume only, because mountutils.New runs umount.
var utils = sync.OnceValue(func() mountutils.Interface { return mountutils.New("") })

func (hostMounter) Mount(source, target string, options []string) error {
	return utils().MountSensitiveWithoutSystemd(source, target, "nfs", options, nil)
}

func (hostMounter) Unmount(target string) error {
	force, ok := utils().(mountutils.MounterForceUnmounter)
	if !ok {
		return utils().Unmount(target)
	}
	return force.UnmountWithForce(target, unmountTimeout)
}

// mounter returns the Mounter of network file systems.
func (v *Volumes) mounter() Mounter {
	if v.cfg.Mounter != nil {
		return v.cfg.Mounter
	}
	return hostMounter{}
}

// nfs is a directory of an NFS server. The pod's group does not get its files, as with the kubelet.
type nfs struct{ *v1.NFSVolumeSource }

func (n nfs) traits() traits { return traits{dir: dirNFS, readOnly: n.ReadOnly} }

func (nfs) path(own string) string { return own }

func (n nfs) setUp(_ context.Context, p placed, s *setting) error {
	if isMountPoint(p.path) {
		return nil
	}
	return s.mountNFS(n.NFSVolumeSource, p, n.ReadOnly, nil)
}

// mountNFS mounts a directory of an NFS server on the volume's path. The text of an error is the
// kubelet's.
func (s *setting) mountNFS(from *v1.NFSVolumeSource, p placed, readOnly bool, options []string) error {
	source, err := nfsSource(from)
	if err == nil {
		options, err = nfsOptions(options, readOnly)
	}
	if err == nil {
		err = os.MkdirAll(p.path, 0o750)
	}
	if err == nil {
		if err = s.mounter().Mount(source, p.path, options); err != nil && isMountPoint(p.path) {
			err = errors.Join(err, s.mounter().Unmount(p.path))
		}
	}
	if err == nil && !isMountPoint(p.path) {
		err = fmt.Errorf("%s is not mounted", source)
	}
	if err != nil {
		return fmt.Errorf("MountVolume.SetUp failed for volume %q : %w", p.Name, err)
	}
	return nil
}

// nfsSource returns the directory as mount takes it. A server is a host name or an address: mount
// would take another text as an option, or as several servers.
func nfsSource(from *v1.NFSVolumeSource) (string, error) {
	server := from.Server
	a, err := netip.ParseAddr(server)
	switch {
	case err == nil && a.Is4():
	case err == nil && (a.Zone() == "" || isHost(a.Zone())):
		server = "[" + server + "]"
	case err == nil || !isHost(server):
		return "", fmt.Errorf("the NFS server %.80q is neither a host name nor an address", server)
	}
	if !path.IsAbs(from.Path) || strings.ContainsAny(from.Path, "\x00\n") {
		return "", fmt.Errorf("the path %.80q of the NFS server is not absolute", from.Path)
	}
	return server + ":" + from.Path, nil
}

// isHost reports whether a text can be a host name.
func isHost(name string) bool {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '.' || r == '_'
	}
	return name != "" && len(name) <= maxServer && name[0] != '-' && name[0] != '.' && strings.IndexFunc(name, func(r rune) bool { return !plain(r) }) < 0
}

// nfsOptions returns the mount options of a volume, and ro for a read-only one. An option that would
// mount another thing is refused.
func nfsOptions(options []string, readOnly bool) ([]string, error) {
	var all []string
	for _, o := range options {
		for part := range strings.SplitSeq(o, ",") {
			switch name, _, _ := strings.Cut(strings.TrimSpace(part), "="); name {
			case "bind", "rbind", "move", "remount":
				return nil, fmt.Errorf("the mount option %q is not for NFS", name)
			}
		}
		all = append(all, o)
	}
	if readOnly {
		all = append(all, "ro")
	}
	return all, nil
}
