package cri

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"github.com/distribution/reference"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Waiting reasons of images (C-1.22.9).
const (
	reasonInspect = "ImageInspectError"
	reasonPull    = "ErrImagePull"
)

// ImageBytes returns the size of the image of that name, 0 when it is not present.
func (r *Runtime) ImageBytes(ctx context.Context, want *pod.Spec, name string) (int64, error) {
	img, err := r.imageStatus(ctx, imageSpec(want, name))
	if err != nil {
		return 0, imageError(ctx, reasonInspect, fmt.Errorf("look for image %s: %w", name, err))
	}
	return int64(img.GetSize()), nil
}

// FindImage returns the ID of the image of that name as want's pod would get it, "" if it
// is not present. A failure of the runtime is a StartError with reason ImageInspectError; a
// runtime that does not answer is ErrUnavailable.
func (r *Runtime) FindImage(ctx context.Context, want *pod.Spec, name string) (string, error) {
	img, err := r.imageStatus(ctx, imageSpec(want, name))
	if err != nil {
		return "", imageError(ctx, reasonInspect, fmt.Errorf("look for image %s: %w", name, err))
	}
	return img.GetId(), nil
}

// FetchImage pulls an image for want's pod and returns its ID. It sends no credentials if
// user and password are "". The end of ctx ends it with ctx's error, and a runtime that does
// not answer is ErrUnavailable. Other failures are StartErrors. Their reason is the
// runtime's if CRI defines it, else ErrImagePull (C-1.22.9). No error holds credentials.
func (r *Runtime) FetchImage(ctx context.Context, want *pod.Spec, name, user, password string) (string, error) {
	q := &runtimeapi.PullImageRequest{
		Image: imageSpec(want, name),
		SandboxConfig: &runtimeapi.PodSandboxConfig{ // a runtime may choose by it how to pull
			Metadata:    &runtimeapi.PodSandboxMetadata{Name: want.Name, Namespace: want.Namespace, Uid: want.UID()},
			Labels:      r.sandboxLabels(want),
			Annotations: want.Pod.Annotations,
		},
	}
	if user != "" || password != "" {
		q.Auth = &runtimeapi.AuthConfig{Username: user, Password: password}
	}
	a, err := bounded(ctx, r, "PullImage", r.cfg.Timeouts.Pull, r.img.PullImage, q)
	if err != nil {
		err = withoutCredentials(err, user, password)
		return "", imageError(ctx, pullReason(err), pullError(name, err))
	}
	return a.GetImageRef(), nil
}

// imageSpec names an image as the kubelet does: with the pod's annotations.
func imageSpec(want *pod.Spec, name string) *runtimeapi.ImageSpec {
	return &runtimeapi.ImageSpec{Image: name, Annotations: want.Pod.Annotations}
}

// image returns the runtime's data of an image, nil if it is not present.
func (r *Runtime) image(ctx context.Context, name string) (*runtimeapi.Image, error) {
	return r.imageStatus(ctx, &runtimeapi.ImageSpec{Image: name})
}

func (r *Runtime) imageStatus(ctx context.Context, image *runtimeapi.ImageSpec) (*runtimeapi.Image, error) {
	a, err := read(ctx, r, "ImageStatus", r.img.ImageStatus, &runtimeapi.ImageStatusRequest{Image: image})
	if err != nil {
		return nil, unlessGone(err)
	}
	return a.GetImage(), nil
}

// imageError makes a StartError. If the caller left or the runtime does not answer, it
// returns the error unchanged, as that says nothing about the image.
func imageError(ctx context.Context, reason string, err error) error {
	if cause := ctx.Err(); cause != nil && errors.Is(err, cause) {
		return err
	}
	return cannot(reason, err)
}

// pullReason is the runtime's reason for the failure if CRI defines one.
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

// pullError is one line that says why name could not be pulled: the cause, without the
// layers around it.
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

// credentialText matches credentials in the messages of registries and runtimes: a user and
// password in a URL, secrets in a query or a header, a token.
var credentialText = regexp.MustCompile(`//[^/\s"@]+@` +
	`|(?i:\b(bearer|basic)\s+[a-z0-9._~+/=-]{8,})` +
	`|(?i:\b((access|refresh|identity|registry)?_?token|password|passwd|secret|signature|sig|x-amz-[a-z-]+|credential)(=|["']\s*:\s*["'])[^&\s"',}]+)` +
	`|\beyJ[A-Za-z0-9_-]{8,}[A-Za-z0-9._-]*`)

// withoutCredentials removes credentials from the text of a failed call: registries repeat
// parts of the request, and runtimes repeat registries.
func withoutCredentials(err error, user, password string) error {
	var call *CallError
	if !errors.As(err, &call) {
		return err
	}
	hidden := *call
	hidden.Msg = credentialText.ReplaceAllStringFunc(call.Msg, func(s string) string {
		if strings.HasPrefix(s, "//") {
			return "//***@"
		}
		if i := strings.IndexAny(s, " =:"); i > 0 {
			return s[:i+1] + "***"
		}
		return "***"
	})
	pair := base64.RawStdEncoding.EncodeToString([]byte(user + ":" + password))
	for _, secret := range []string{pair, url.QueryEscape(password), password} {
		if len(secret) >= 4 { // for a shorter one, the gaps would reveal it
			hidden.Msg = strings.ReplaceAll(hidden.Msg, secret, "***")
		}
	}
	return &hidden
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
