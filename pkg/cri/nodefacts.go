package cri

import (
	"context"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Facts returns the runtime's current report about itself, without name and version (see Version):
// its conditions unchanged, and its handlers by name, each with its features.
func (r *Runtime) Facts(ctx context.Context) (pod.RuntimeFacts, error) {
	a, err := read(ctx, r, "Status", r.rt.Status, &runtimeapi.StatusRequest{})
	if err != nil {
		return pod.RuntimeFacts{}, err
	}
	var f pod.RuntimeFacts
	for _, c := range a.GetStatus().GetConditions() {
		is := pod.RuntimeCondition{Known: true, OK: c.GetStatus(), Reason: c.GetReason(), Message: plain(c.GetMessage())}
		switch c.GetType() {
		case runtimeapi.RuntimeReady:
			f.Runtime = is
		case runtimeapi.NetworkReady:
			f.Network = is
		}
	}
	for _, h := range a.GetRuntimeHandlers() {
		readOnly, users := h.GetFeatures().GetRecursiveReadOnlyMounts(), h.GetFeatures().GetUserNamespaces()
		f.Handlers = append(f.Handlers, v1.NodeRuntimeHandler{
			Name:     h.GetName(),
			Features: &v1.NodeRuntimeHandlerFeatures{RecursiveReadOnlyMounts: &readOnly, UserNamespaces: &users},
		})
	}
	slices.SortFunc(f.Handlers, func(a, b v1.NodeRuntimeHandler) int { return strings.Compare(a.Name, b.Name) })
	if a.GetFeatures() != nil {
		strict := a.GetFeatures().GetSupplementalGroupsPolicy()
		f.Features = &v1.NodeFeatures{SupplementalGroupsPolicy: &strict}
	}
	return f, nil
}

// Images returns every image in the runtime, also those that nodectl did not pull; an empty
// list, not nil, if it has none. A list too long for one message is read in pieces.
func (r *Runtime) Images(ctx context.Context) ([]pod.Image, error) {
	a, err := read(ctx, r, "ListImages", r.img.ListImages, &runtimeapi.ListImagesRequest{})
	list := a.GetImages()
	if tooLong(err) {
		list, err = pieces(ctx, r, "StreamImages", err, r.img.StreamImages,
			&runtimeapi.StreamImagesRequest{}, (*runtimeapi.StreamImagesResponse).GetImages)
	}
	if err != nil {
		return nil, err
	}
	all := make([]pod.Image, 0, len(list))
	for _, i := range list {
		names := make([]string, 0, len(i.GetRepoDigests())+len(i.GetRepoTags()))
		names = append(append(names, i.GetRepoDigests()...), i.GetRepoTags()...)
		all = append(all, pod.Image{ID: i.GetId(), Names: names, Size: int64(min(i.GetSize(), 1<<62)), Pinned: i.GetPinned()})
	}
	return all, nil
}

// ImageUsers returns every container in the runtime with its image, also those that nodectl
// did not make: all of them use their images.
func (r *Runtime) ImageUsers(ctx context.Context) ([]pod.ImageUser, error) {
	_, containers, err := r.lists(ctx, nil)
	if err != nil {
		return nil, err
	}
	all := make([]pod.ImageUser, 0, len(containers))
	for _, c := range containers {
		u := pod.ImageUser{ID: c.GetId(), Key: keyOfLabels(c.GetLabels()), Container: c.GetMetadata().GetName()}
		for _, name := range []string{c.GetImageId(), c.GetImageRef(), c.GetImage().GetImage(), c.GetImage().GetUserSpecifiedImage()} {
			if name != "" && !slices.Contains(u.Images, name) {
				u.Images = append(u.Images, name)
			}
		}
		all = append(all, u)
	}
	return all, nil
}

// RemoveImage removes an image with all its names. One that is not there is no error.
func (r *Runtime) RemoveImage(ctx context.Context, id string) error {
	_, err := act(ctx, r, "RemoveImage", r.cfg.Timeouts.Call, r.img.RemoveImage, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: id}})
	return unlessGone(err)
}
