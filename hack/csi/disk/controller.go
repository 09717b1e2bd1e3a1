package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func (d *driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: d.name, VendorVersion: "1"}, nil
}

func (d *driver) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{
		{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE}}},
		{Type: &csi.PluginCapability_VolumeExpansion_{VolumeExpansion: &csi.PluginCapability_VolumeExpansion{Type: csi.PluginCapability_VolumeExpansion_ONLINE}}},
	}}, nil
}

func (d *driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

func (d *driver) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	answer := &csi.ControllerGetCapabilitiesResponse{}
	for _, t := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		answer.Capabilities = append(answer.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: t}},
		})
	}
	return answer, nil
}

func (d *driver) CreateVolume(_ context.Context, q *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if q.GetName() == "" || len(q.GetVolumeCapabilities()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "the request has no name or no capability")
	}
	for _, c := range q.GetVolumeCapabilities() {
		if c.GetBlock() != nil {
			return nil, status.Error(codes.InvalidArgument, "block volumes are not supported")
		}
	}
	id, size := idOf(q.GetName()), max(q.GetCapacityRange().GetRequiredBytes(), 1<<20)
	v, err := d.load(id)
	switch {
	case err == nil && v.Capacity < size:
		return nil, status.Errorf(codes.AlreadyExists, "volume %s has %d bytes", q.GetName(), v.Capacity)
	case status.Code(err) == codes.NotFound:
		v = volume{Name: q.GetName(), Capacity: size, Size: size}
		err = d.save(id, v)
	}
	if err != nil {
		return nil, err
	}
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: id, CapacityBytes: v.Capacity, VolumeContext: q.GetParameters()}}, nil
}

func (d *driver) DeleteVolume(_ context.Context, q *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	v, err := d.load(q.GetVolumeId())
	switch {
	case status.Code(err) == codes.NotFound:
		return &csi.DeleteVolumeResponse{}, nil
	case err != nil:
		return nil, err
	case v.Attached != "":
		return nil, status.Errorf(codes.FailedPrecondition, "volume %s is attached to %s", q.GetVolumeId(), v.Attached)
	}
	return &csi.DeleteVolumeResponse{}, d.remove(q.GetVolumeId())
}

func (d *driver) ControllerPublishVolume(_ context.Context, q *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	v, err := d.load(q.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if v.Attached != "" && v.Attached != q.GetNodeId() {
		return nil, status.Errorf(codes.FailedPrecondition, "volume %s is attached to %s", q.GetVolumeId(), v.Attached)
	}
	v.Attached = q.GetNodeId()
	if err := d.save(q.GetVolumeId(), v); err != nil {
		return nil, err
	}
	return &csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{"attached": v.Attached}}, nil
}

func (d *driver) ControllerUnpublishVolume(_ context.Context, q *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	v, err := d.load(q.GetVolumeId())
	if status.Code(err) == codes.NotFound {
		return &csi.ControllerUnpublishVolumeResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	v.Attached = ""
	return &csi.ControllerUnpublishVolumeResponse{}, d.save(q.GetVolumeId(), v)
}

func (d *driver) ValidateVolumeCapabilities(_ context.Context, q *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	if _, err := d.load(q.GetVolumeId()); err != nil {
		return nil, err
	}
	return &csi.ValidateVolumeCapabilitiesResponse{
		Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{VolumeCapabilities: q.GetVolumeCapabilities()},
	}, nil
}

func (d *driver) ControllerExpandVolume(_ context.Context, q *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	v, err := d.load(q.GetVolumeId())
	if err != nil {
		return nil, err
	}
	v.Capacity = max(v.Capacity, q.GetCapacityRange().GetRequiredBytes())
	if err := d.save(q.GetVolumeId(), v); err != nil {
		return nil, err
	}
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: v.Capacity, NodeExpansionRequired: true}, nil
}

// condition is the health of a volume: the file ID.abnormal has its defect.
func (d *driver) condition(id string) (*csi.VolumeCondition, error) {
	text, err := os.ReadFile(filepath.Join(d.dir, id+".abnormal"))
	if errors.Is(err, os.ErrNotExist) {
		return &csi.VolumeCondition{Message: "volume is healthy"}, nil
	}
	return &csi.VolumeCondition{Abnormal: true, Message: strings.TrimSpace(string(text))}, err
}
