package bundle

import (
	"context"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// callLimit bounds a call that only looks.
const callLimit = 2 * time.Second

// A conn speaks to a runtime's socket: CRI, and containerd's own services.
type conn struct {
	*grpc.ClientConn
	runtime cri.RuntimeServiceClient
	images  cri.ImageServiceClient
}

// dial makes a connection that is opened by its first call.
func dial(endpoint string) (*conn, error) {
	c, err := grpc.NewClient("unix://"+socketPath(endpoint),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)))
	if err != nil {
		return nil, err
	}
	return &conn{c, cri.NewRuntimeServiceClient(c), cri.NewImageServiceClient(c)}, nil
}

// socketPath returns the file an endpoint names, with or without its scheme.
func socketPath(endpoint string) string { return strings.TrimPrefix(endpoint, "unix://") }

// version asks the runtime who it is.
func (c *conn) version(ctx context.Context) (*cri.VersionResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	return c.runtime.Version(ctx, &cri.VersionRequest{})
}

// listens reports whether somebody accepts connections on the socket.
func listens(path string) bool {
	c, err := net.DialTimeout("unix", path, callLimit)
	if err != nil {
		return false
	}
	c.Close()
	return true
}

// sandboxes returns the pods' sandboxes; ready ones only, or all.
func (c *conn) sandboxes(ctx context.Context, ready bool) ([]*cri.PodSandbox, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	req := &cri.ListPodSandboxRequest{}
	if ready {
		req.Filter = &cri.PodSandboxFilter{State: &cri.PodSandboxStateValue{State: cri.PodSandboxState_SANDBOX_READY}}
	}
	resp, err := c.runtime.ListPodSandbox(ctx, req)
	return resp.GetItems(), err
}

// has reports whether the runtime's image list knows ref.
func (c *conn) imageID(ctx context.Context, ref string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	resp, err := c.images.ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: ref}})
	return resp.GetImage().GetId(), err
}
