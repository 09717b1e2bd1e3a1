package main

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// inlineSize is the size of an inline volume of a pod.
const inlineSize = 16 << 20

func (d *driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: d.node, MaxVolumesPerNode: 8}, nil
}

func (d *driver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	answer := &csi.NodeGetCapabilitiesResponse{}
	for _, t := range []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csi.NodeServiceCapability_RPC_VOLUME_CONDITION,
		csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		answer.Capabilities = append(answer.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: t}},
		})
	}
	return answer, nil
}

func (d *driver) NodeStageVolume(_ context.Context, q *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	v, err := d.load(q.GetVolumeId())
	switch {
	case err != nil:
		return nil, err
	case q.GetStagingTargetPath() == "":
		return nil, status.Error(codes.InvalidArgument, "the request has no staging path")
	case v.Attached != d.node, q.GetPublishContext()["attached"] != d.node:
		return nil, status.Errorf(codes.FailedPrecondition, "volume %s is attached to %q, and the request says %q", q.GetVolumeId(), v.Attached, q.GetPublishContext()["attached"])
	}
	return &csi.NodeStageVolumeResponse{}, show(d.data(q.GetVolumeId()), q.GetStagingTargetPath(), false)
}

func (d *driver) NodeUnstageVolume(_ context.Context, q *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	used, err := d.published(q.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if used {
		return nil, status.Errorf(codes.FailedPrecondition, "a pod still has volume %s", q.GetVolumeId())
	}
	return &csi.NodeUnstageVolumeResponse{}, hide(q.GetStagingTargetPath())
}

func (d *driver) NodePublishVolume(_ context.Context, q *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	id := q.GetVolumeId()
	if q.GetVolumeContext()["csi.storage.k8s.io/ephemeral"] == "true" {
		if id != filepath.Base(id) {
			return nil, status.Errorf(codes.InvalidArgument, "%q is not the ID of a volume", id)
		}
		if err := d.save(id, volume{Name: id, Capacity: inlineSize, Size: inlineSize, Ephemeral: true}); err != nil {
			return nil, err
		}
		return &csi.NodePublishVolumeResponse{}, show(d.data(id), q.GetTargetPath(), q.GetReadonly())
	}
	if _, err := d.load(id); err != nil {
		return nil, err
	}
	if staged, err := mountinfo.Mounted(q.GetStagingTargetPath()); err != nil || !staged {
		return nil, status.Errorf(codes.FailedPrecondition, "volume %s is not staged at %q: %v", id, q.GetStagingTargetPath(), err)
	}
	return &csi.NodePublishVolumeResponse{}, show(q.GetStagingTargetPath(), q.GetTargetPath(), q.GetReadonly())
}

func (d *driver) NodeUnpublishVolume(_ context.Context, q *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	if err := hide(q.GetTargetPath()); err != nil {
		return nil, err
	}
	v, err := d.load(q.GetVolumeId())
	switch {
	case status.Code(err) == codes.NotFound:
		return &csi.NodeUnpublishVolumeResponse{}, nil
	case err == nil && v.Ephemeral:
		err = d.remove(q.GetVolumeId())
	}
	return &csi.NodeUnpublishVolumeResponse{}, err
}

func (d *driver) NodeExpandVolume(_ context.Context, q *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	v, err := d.load(q.GetVolumeId())
	if err != nil {
		return nil, err
	}
	want := q.GetCapacityRange().GetRequiredBytes()
	if want > v.Capacity {
		return nil, status.Errorf(codes.OutOfRange, "volume %s has %d bytes, and %d are wanted", q.GetVolumeId(), v.Capacity, want)
	}
	if mounted, err := mountinfo.Mounted(q.GetVolumePath()); err != nil || !mounted {
		return nil, status.Errorf(codes.NotFound, "volume %s is not mounted at %q: %v", q.GetVolumeId(), q.GetVolumePath(), err)
	}
	v.Size = v.Capacity
	return &csi.NodeExpandVolumeResponse{CapacityBytes: v.Size}, d.save(q.GetVolumeId(), v)
}

func (d *driver) NodeGetVolumeStats(_ context.Context, q *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	v, err := d.load(q.GetVolumeId())
	if err != nil {
		return nil, err
	}
	mounted, err := mountinfo.Mounted(q.GetVolumePath())
	if errors.Is(err, fs.ErrNotExist) || err == nil && !mounted {
		return nil, status.Errorf(codes.NotFound, "volume %s is not mounted at %q", q.GetVolumeId(), q.GetVolumePath())
	}
	used, files := int64(0), int64(0)
	if err == nil {
		err = filepath.WalkDir(d.data(q.GetVolumeId()), func(_ string, e fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := e.Info()
			if err == nil && info.Mode().IsRegular() {
				used, files = used+info.Size(), files+1
			}
			return err
		})
	}
	if err != nil {
		return nil, err
	}
	health, err := d.condition(q.GetVolumeId())
	return &csi.NodeGetVolumeStatsResponse{
		Usage: []*csi.VolumeUsage{
			{Unit: csi.VolumeUsage_BYTES, Total: v.Size, Used: used, Available: max(v.Size-used, 0)},
			{Unit: csi.VolumeUsage_INODES, Total: 1 << 16, Used: files, Available: 1<<16 - files},
		},
		VolumeCondition: health,
	}, err
}
