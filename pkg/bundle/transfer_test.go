package bundle

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// slow has every image, and fails with code as often as the test asks for.
type slow struct {
	cri.ImageServiceClient
	code codes.Code
	left int
}

func (s *slow) ImageStatus(context.Context, *cri.ImageStatusRequest, ...grpc.CallOption) (*cri.ImageStatusResponse, error) {
	if s.left--; s.left >= 0 {
		return nil, status.Error(s.code, "made to fail")
	}
	return &cri.ImageStatusResponse{Image: &cri.Image{Id: "sha256:1"}}, nil
}

// TestImagesOfASlowRuntime: a call to a containerd that has just started is repeated after
// a timeout, but not after an error of its own.
func TestImagesOfASlowRuntime(t *testing.T) {
	for name, ask := range map[string]func(*conn) error{
		"whether one is there": func(c *conn) error {
			id, err := c.answers(t.Context(), "a")
			if err == nil && id == "" {
				t.Error("the image is not there")
			}
			return err
		},
		"until all are there": func(c *conn) error { return c.awaitImages(t.Context(), []string{"a", "b"}) },
	} {
		for _, code := range []codes.Code{codes.DeadlineExceeded, codes.Unavailable} {
			if err := ask(&conn{images: &slow{code: code, left: 2}}); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err := ask(&conn{images: &slow{code: codes.Unavailable, left: 1 << 30}}); status.Code(err) != codes.Unavailable {
			t.Errorf("%s: of a containerd that is not there it says %v", name, err)
		}
		if err := ask(&conn{images: &slow{code: codes.Internal, left: 1}}); status.Code(err) != codes.Internal {
			t.Errorf("%s: of what is wrong it says %v", name, err)
		}
	}
}
