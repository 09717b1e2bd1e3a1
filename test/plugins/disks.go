package plugins

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Disks is a CSI driver. Each volume is a directory, which it mounts.
type Disks struct {
	csipb.UnimplementedIdentityServer
	csipb.UnimplementedNodeServer
	process
	dir     string // of the volumes
	Mounted Effects
}

// NewDisks returns a driver that keeps its volumes in a directory. It does not run.
func NewDisks(n *Node, dir string) *Disks {
	return &Disks{process: process{node: n, name: "CSI driver"}, dir: dir}
}

// Start starts the driver.
func (d *Disks) Start() {
	d.startDriver(&registerapi.PluginInfo{Type: registerapi.CSIPlugin, Name: DiskDriver, SupportedVersions: []string{"1.0.0"}},
		func(s *grpc.Server) {
			csipb.RegisterIdentityServer(s, d)
			csipb.RegisterNodeServer(s, d)
		})
}

func (d *Disks) GetPluginInfo(context.Context, *csipb.GetPluginInfoRequest) (*csipb.GetPluginInfoResponse, error) {
	return &csipb.GetPluginInfoResponse{Name: DiskDriver}, nil
}

func (d *Disks) NodeGetInfo(context.Context, *csipb.NodeGetInfoRequest) (*csipb.NodeGetInfoResponse, error) {
	return &csipb.NodeGetInfoResponse{NodeId: "node-1"}, nil
}

func (d *Disks) NodeGetCapabilities(context.Context, *csipb.NodeGetCapabilitiesRequest) (*csipb.NodeGetCapabilitiesResponse, error) {
	return &csipb.NodeGetCapabilitiesResponse{Capabilities: []*csipb.NodeServiceCapability{{Type: &csipb.NodeServiceCapability_Rpc{
		Rpc: &csipb.NodeServiceCapability_RPC{Type: csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME},
	}}}}, nil
}

// bind mounts a directory once.
func (d *Disks) bind(from, to string) error {
	if err := errors.Join(os.MkdirAll(from, 0o755), os.MkdirAll(to, 0o750)); err != nil {
		return err
	}
	if is, err := mountinfo.Mounted(to); err != nil || is {
		return err
	}
	return unix.Mount(from, to, "", unix.MS_BIND, "")
}

func (d *Disks) unbind(target string) error {
	if err := unix.Unmount(target, unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return err
	}
	d.Mounted.drop(target)
	return nil
}

func (d *Disks) NodeStageVolume(_ context.Context, q *csipb.NodeStageVolumeRequest) (*csipb.NodeStageVolumeResponse, error) {
	d.Mounted.put(d.node, q.GetStagingTargetPath())
	return &csipb.NodeStageVolumeResponse{}, d.bind(filepath.Join(d.dir, q.GetVolumeId()), q.GetStagingTargetPath())
}

func (d *Disks) NodeUnstageVolume(_ context.Context, q *csipb.NodeUnstageVolumeRequest) (*csipb.NodeUnstageVolumeResponse, error) {
	return &csipb.NodeUnstageVolumeResponse{}, d.unbind(q.GetStagingTargetPath())
}

func (d *Disks) NodePublishVolume(_ context.Context, q *csipb.NodePublishVolumeRequest) (*csipb.NodePublishVolumeResponse, error) {
	d.Mounted.put(d.node, q.GetTargetPath())
	return &csipb.NodePublishVolumeResponse{}, d.bind(q.GetStagingTargetPath(), q.GetTargetPath())
}

func (d *Disks) NodeUnpublishVolume(_ context.Context, q *csipb.NodeUnpublishVolumeRequest) (*csipb.NodeUnpublishVolumeResponse, error) {
	return &csipb.NodeUnpublishVolumeResponse{}, d.unbind(q.GetTargetPath())
}
