package cri

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/distribution/reference"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Waiting reasons of images (C-1.22.9).
const (
	reasonInvalidImage = "InvalidImageName"
	reasonNeverPull    = "ErrImageNeverPull"
	reasonInspect      = "ImageInspectError"
	reasonPull         = "ErrImagePull"
)

// PullImage makes the image of want's container present by its pull policy
// (C-1.39.2). The end of ctx ends the pull; ctx's error then comes back, no
// StartError.
func (r *Runtime) PullImage(ctx context.Context, want *pod.Spec, container string) error {
	c, _ := want.Container(container)
	if c == nil {
		return unconfigurable(fmt.Errorf("pod %s has no container %q", want.Key, container))
	}
	if _, err := reference.ParseNormalizedNamed(c.Image); err != nil {
		return &pod.StartError{Reason: reasonInvalidImage, Err: fmt.Errorf("image %q: %w", c.Image, err), Final: true}
	}
	name := withTag(c.Image)
	if c.ImagePullPolicy != v1.PullAlways {
		img, err := r.image(ctx, name)
		switch {
		case err != nil:
			return imageError(ctx, reasonInspect, fmt.Errorf("look for image %s: %w", name, err))
		case img != nil:
			return nil
		case c.ImagePullPolicy == v1.PullNever:
			return &pod.StartError{Reason: reasonNeverPull, Err: fmt.Errorf("image %s is not present and imagePullPolicy is Never", name), Final: true}
		}
	}
	_, err := bounded(ctx, r, "PullImage", r.cfg.Timeouts.Pull, r.img.PullImage,
		&runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: name, UserSpecifiedImage: name}})
	if err != nil {
		return imageError(ctx, pullReason(err), pullError(name, err))
	}
	return nil
}

// image returns what the runtime knows of an image, nil when it is not
// present.
func (r *Runtime) image(ctx context.Context, name string) (*runtimeapi.Image, error) {
	a, err := read(ctx, r, "ImageStatus", r.img.ImageStatus, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: name}})
	if err != nil {
		return nil, unlessGone(err)
	}
	return a.GetImage(), nil
}

// imageError is a StartError unless the caller left or the runtime does not
// answer: neither says anything about the image.
func imageError(ctx context.Context, reason string, err error) error {
	if cause := ctx.Err(); cause != nil && errors.Is(err, cause) {
		return err
	}
	return cannot(reason, err)
}

// pullReason is the runtime's own word for the failure where CRI gives it one.
func pullReason(err error) string {
	for _, word := range []string{"RegistryUnavailable", "SignatureValidationFailed"} {
		if strings.HasPrefix(err.Error(), word) {
			return word
		}
	}
	return reasonPull
}

// pullLayers wrap the cause of a failed pull and repeat the image's name.
var pullLayers = regexp.MustCompile(`^(failed to [a-z ]+( image| reference)?( "[^"]*")?: )`)

// pullError says in one line why name could not be pulled: the cause, without
// the layers around it.
func pullError(name string, err error) error {
	var call *CallError
	if !errors.As(err, &call) || call.kind == ErrUnavailable || call.kind == ErrTimeout {
		return err
	}
	cause := call.Msg
	for {
		cut := pullLayers.ReplaceAllString(cause, "")
		if cut == cause || cut == "" {
			break
		}
		cause = cut
	}
	cause = strings.TrimPrefix(cause, name+": ")
	if ref, perr := reference.ParseDockerRef(name); perr == nil {
		cause = strings.TrimPrefix(cause, ref.String()+": ")
	}
	return fmt.Errorf("pull image %s: %w", name, &CallError{Method: call.Method, Msg: cause, kind: call.kind})
}

// withTag adds the default tag to a name that has neither tag nor digest
// (C-1.39.1).
func withTag(image string) string {
	ref, err := reference.ParseNormalizedNamed(image)
	if err != nil || !reference.IsNameOnly(ref) {
		return image
	}
	return image + ":latest"
}
