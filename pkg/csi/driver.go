package csi

import (
	"context"
	"errors"
	"fmt"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/activity"
	"github.com/nodectl/nodectl/pkg/pluginconn"
)

// Limits of a driver's answers.
const (
	callTimeout = 2 * time.Minute // the kubelet's
	askTimeout  = 10 * time.Second
	maxMessage  = 1 << 20 // bytes of an answer
	maxTopology = 64      // keys of a node
)

// driver is a registered driver.
type driver struct {
	name, socket string
	conn         *grpc.ClientConn
	node         csipb.NodeClient
	info         nodeInfo

	// Guarded by Volumes.mu.
	calls  int  // operations that use the connection
	closed bool // no operation may begin
}

// nodeInfo is the driver's description of this node.
type nodeInfo struct {
	nodeID   string
	limit    int64 // volumes; 0: the driver names no limit
	topology map[string]string
}

// abilities are the optional features of a driver's node service.
type abilities struct {
	stages      bool
	mountsGroup bool // the driver gives the volume's files the pod's group
	expands     bool // the driver enlarges file systems
	measures    bool // the driver reports the usage of volumes
	conditions  bool // the driver reports whether volumes are healthy
	severalPods bool // the driver knows the access modes for a single writer and for several writers
}

// connect connects to a driver, and asks for its name and its description of this node.
func (v *Volumes) connect(ctx context.Context, name, socket string) (_ *driver, err error) {
	conn, err := pluginconn.New(socket, v.cfg.Dial, maxMessage)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = conn.Close()
		}
	}()
	ctx, stop := context.WithTimeout(ctx, askTimeout)
	defer stop()
	is, err := csipb.NewIdentityClient(conn).GetPluginInfo(ctx, &csipb.GetPluginInfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return nil, pluginconn.ShortError(err)
	}
	if is.GetName() != name {
		return nil, fmt.Errorf("the driver at %s is named %.80q, and registers as %q", socket, is.GetName(), name)
	}
	d := &driver{name: name, socket: socket, conn: conn, node: csipb.NewNodeClient(conn)}
	answer, err := d.node.NodeGetInfo(ctx, &csipb.NodeGetInfoRequest{})
	if err != nil {
		return nil, pluginconn.ShortError(err)
	}
	d.info, err = infoOf(answer)
	return d, err
}

// infoOf returns a driver's description of this node, or an error if the description is invalid.
func infoOf(answer *csipb.NodeGetInfoResponse) (nodeInfo, error) {
	i := nodeInfo{nodeID: answer.GetNodeId(), limit: answer.GetMaxVolumesPerNode(), topology: answer.GetAccessibleTopology().GetSegments()}
	switch {
	case i.nodeID == "":
		return i, errors.New("error adding CSI driver node info: driverNodeID must not be empty")
	case len(i.nodeID) > 256: // the limit of the CSI specification
		return i, fmt.Errorf("the node ID has %d bytes, more than 256", len(i.nodeID))
	case len(i.topology) > maxTopology:
		return i, fmt.Errorf("the topology of the node has %d keys, more than %d", len(i.topology), maxTopology)
	}
	return i, checkTopology(i.topology)
}

// abilities asks a driver for its abilities.
func (d *driver) abilities(ctx context.Context) (abilities, error) {
	ctx, stop := context.WithTimeout(ctx, askTimeout)
	defer stop()
	defer d.note(ctx, "NodeGetCapabilities", "", "")()
	answer, err := d.node.NodeGetCapabilities(ctx, &csipb.NodeGetCapabilitiesRequest{})
	if err != nil {
		return abilities{}, pluginconn.ShortError(err)
	}
	var a abilities
	for _, c := range answer.GetCapabilities() {
		switch c.GetRpc().GetType() {
		case csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME:
			a.stages = true
		case csipb.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP:
			a.mountsGroup = true
		case csipb.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER:
			a.severalPods = true
		case csipb.NodeServiceCapability_RPC_GET_VOLUME_STATS:
			a.measures = true
		case csipb.NodeServiceCapability_RPC_VOLUME_CONDITION:
			a.conditions = true
		case csipb.NodeServiceCapability_RPC_EXPAND_VOLUME:
			a.expands = true
		}
	}
	return a, nil
}

// note shows a call on the activity board, for "nodectl why", until the call ends.
func (d *driver) note(ctx context.Context, name, handle, path string) (end func()) {
	call := activity.Call{Kind: activity.Driver, Name: name, Target: handle, Host: d.name, Path: path}
	call.Limit, _ = ctx.Deadline()
	return activity.Begin(ctx, call)
}

// accessMode returns the access mode for a driver, from the first access mode of the volume.
func (a abilities) accessMode(modes []v1.PersistentVolumeAccessMode) csipb.VolumeCapability_AccessMode_Mode {
	mode := v1.ReadWriteOnce
	if len(modes) > 0 {
		mode = modes[0]
	}
	switch mode {
	case v1.ReadWriteOnce:
		if a.severalPods {
			return csipb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
		}
		return csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	case v1.ReadWriteOncePod:
		if a.severalPods {
			return csipb.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
		}
		return csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	case v1.ReadOnlyMany:
		return csipb.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	case v1.ReadWriteMany:
		return csipb.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	}
	return csipb.VolumeCapability_AccessMode_UNKNOWN
}

// isFinal reports whether a failed call has certainly ended, so that the driver does not continue
// it. The rule is the kubelet's.
func isFinal(err error) bool {
	switch status.Code(err) {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.ResourceExhausted, codes.Aborted:
		return false
	}
	_, answered := status.FromError(err)
	return answered
}
