package plugins

import (
	"context"

	"google.golang.org/grpc"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Cards is a DRA driver. It keeps its claims while it is restarted, and loses them with a reboot.
type Cards struct {
	drapb.UnimplementedDRAPluginServer
	process
	Prepared Effects
}

// NewCards returns a driver that does not run.
func NewCards(n *Node) *Cards { return &Cards{process: process{node: n, name: "DRA driver"}} }

// Start starts the driver.
func (c *Cards) Start() {
	c.startDriver(&registerapi.PluginInfo{Type: registerapi.DRAPlugin, Name: CardDriver, SupportedVersions: []string{drapb.DRAPluginService}},
		func(s *grpc.Server) { drapb.RegisterDRAPluginServer(s, c) })
}

func (c *Cards) NodePrepareResources(_ context.Context, q *drapb.NodePrepareResourcesRequest) (*drapb.NodePrepareResourcesResponse, error) {
	answer := &drapb.NodePrepareResourcesResponse{Claims: make(map[string]*drapb.NodePrepareResourceResponse)}
	for _, claim := range q.GetClaims() {
		c.Prepared.put(c.node, claim.GetUid())
		answer.Claims[claim.GetUid()] = &drapb.NodePrepareResourceResponse{Devices: []*drapb.Device{
			{PoolName: "rack", DeviceName: "of-" + claim.GetName(), RequestNames: []string{"card"}, CdiDeviceIds: []string{CardDriver + "/card=of-" + claim.GetName()}},
		}}
	}
	return answer, nil
}

func (c *Cards) NodeUnprepareResources(_ context.Context, q *drapb.NodeUnprepareResourcesRequest) (*drapb.NodeUnprepareResourcesResponse, error) {
	answer := &drapb.NodeUnprepareResourcesResponse{Claims: make(map[string]*drapb.NodeUnprepareResourceResponse)}
	for _, claim := range q.GetClaims() {
		c.Prepared.drop(claim.GetUid())
		answer.Claims[claim.GetUid()] = &drapb.NodeUnprepareResourceResponse{}
	}
	return answer, nil
}
