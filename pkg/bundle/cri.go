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

// callLimit is the deadline of a call that only reads.
const callLimit = 2 * time.Second

// A conn is a connection to a runtime's socket: for CRI, and for containerd's own services.
type conn struct {
	*grpc.ClientConn
	runtime cri.RuntimeServiceClient
	images  cri.ImageServiceClient
}

// dial returns a connection that its first call opens.
func dial(endpoint string) (*conn, error) {
	c, err := grpc.NewClient("unix://"+socketPath(endpoint),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)))
	if err != nil {
		return nil, err
	}
	return &conn{c, cri.NewRuntimeServiceClient(c), cri.NewImageServiceClient(c)}, nil
}

// socketPath returns the path of an endpoint, with or without its scheme.
func socketPath(endpoint string) string { return strings.TrimPrefix(endpoint, "unix://") }

// version calls CRI's Version.
func (c *conn) version(ctx context.Context) (*cri.VersionResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	return c.runtime.Version(ctx, &cri.VersionRequest{})
}

// listens reports whether a process accepts connections on the socket.
func listens(path string) bool {
	c, err := net.DialTimeout("unix", path, callLimit)
	if err != nil {
		return false
	}
	c.Close()
	return true
}

// sandboxes returns the pods' sandboxes: only ready ones, or all.
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
