package critest

import (
	"context"
	"crypto/sha256"
	"fmt"
	"path"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// pullTime is how long a pull takes.
const pullTime = time.Second

// present reports whether an image is present. The caller holds the mutex.
func (rt *Runtime) present(name string) bool {
	if set, ok := rt.images[name]; ok {
		return set
	}
	base := path.Base(name)
	return !strings.HasPrefix(base, "missing") && !strings.HasPrefix(base, "remote")
}

// imageID is the ID of an image of that name.
func imageID(name string) string { return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(name))) }

// imageName returns the name of an image given by name or by ID, "" for an unknown ID. The
// caller holds the mutex.
func (rt *Runtime) imageName(ref string) string {
	if !strings.HasPrefix(ref, "sha256:") {
		return ref
	}
	for name := range rt.images {
		if imageID(name) == ref {
			return name
		}
	}
	return ""
}

// ImageStatus implements CRI.
func (rt *Runtime) ImageStatus(_ context.Context, q *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	name := rt.imageName(q.GetImage().GetImage())
	if !rt.present(name) {
		return &runtimeapi.ImageStatusResponse{}, nil
	}
	rt.images[name] = true // makes its ID known
	user := rt.imageUsers[name]
	return &runtimeapi.ImageStatusResponse{Image: &runtimeapi.Image{
		Id: imageID(name), RepoTags: []string{name}, Uid: user.GetUid(), Username: user.GetUsername(),
	}}, nil
}

// PullImage implements CRI: names that begin with "missing" are in no registry.
func (rt *Runtime) PullImage(ctx context.Context, q *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	name := q.GetImage().GetImage()
	if strings.HasPrefix(path.Base(name), "missing") {
		return nil, status.Errorf(codes.NotFound, "failed to pull and unpack image %q: failed to resolve reference %q: %s: not found", name, name, name)
	}
	took := time.NewTimer(pullTime)
	defer took.Stop()
	select {
	case <-took.C:
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	rt.SetImage(name, true)
	return &runtimeapi.PullImageResponse{ImageRef: imageID(name)}, nil
}

// ListImages implements CRI.
func (rt *Runtime) ListImages(context.Context, *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	a := &runtimeapi.ListImagesResponse{}
	for name, present := range rt.images {
		if present {
			a.Images = append(a.Images, &runtimeapi.Image{Id: imageID(name), RepoTags: []string{name}})
		}
	}
	return a, nil
}

// RemoveImage implements CRI.
func (rt *Runtime) RemoveImage(_ context.Context, q *runtimeapi.RemoveImageRequest) (*runtimeapi.RemoveImageResponse, error) {
	rt.mu.Lock()
	name := rt.imageName(q.GetImage().GetImage())
	rt.mu.Unlock()
	if name != "" {
		rt.SetImage(name, false)
	}
	return &runtimeapi.RemoveImageResponse{}, nil
}
