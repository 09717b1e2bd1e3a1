// Package image pulls the images of pods: by their pull policies, with the credentials of
// the pod, the node and the node's credential providers. It records which pods may use an
// image that is present already.
//
// The engine's workers call PullImage and wait. Pods that want the same image with the same
// credentials share one pull, a flight. Each registry gets a few flights at a time; one
// that hangs delays only its own images.
//
// The one rule: credentials are passed to the runtime only. They are in no log, no error
// and no file.
package image

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/distribution/reference"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Waiting reasons of images that the kubelet sets itself (C-1.22.9); the others come from
// the runtime.
const (
	reasonInvalid = "InvalidImageName"
	reasonNever   = "ErrImageNeverPull"
	reasonPull    = "ErrImagePull"
)

// ownRepository is the repository of the pause image that comes with nodectl
// (hack/bundle). A pull by this name would let the owner of that domain replace the program
// of every new sandbox.
const ownRepository = "nodectl.dev/pause"

// DefaultPerRegistry is how many images are pulled from one registry at a time.
const DefaultPerRegistry = 3

// Runtime looks for images and pulls them. A fault of the image comes back as
// *pod.StartError; any other error says nothing about the image. The end of ctx ends a
// call.
type Runtime interface {
	// FindImage returns the ID of the image of that name, "" when it is not present.
	FindImage(ctx context.Context, want *pod.Spec, name string) (id string, err error)
	// FetchImage pulls an image and returns its ID; without a user and a password,
	// without credentials.
	FetchImage(ctx context.Context, want *pod.Spec, name, user, password string) (id string, err error)
}

// Config is the configuration of a Puller.
type Config struct {
	Runtime Runtime
	// Dir is where pulls are recorded; it is created when needed.
	Dir string
	// DockerConfigs are the files that may hold the node's credentials, see DockerConfigs;
	// the first usable one is read.
	DockerConfigs []string
	// Providers are the node's credential providers; nil means none.
	Providers *Providers
	// PerRegistry is how many images are pulled from one registry at a time; 0 means
	// DefaultPerRegistry.
	PerRegistry int
	// Observe is called at the start and the end of every pull; may be nil. It is called from
	// many goroutines and must not wait.
	Observe func(Event)
	Log     *slog.Logger // nil discards
}

// Pull is one pull under way.
type Pull struct {
	Image   string // as the runtime gets it
	Since   time.Time
	Waiting bool // for its turn at the registry
}

// Event is the start of a pull, or its end.
type Event struct {
	Pull
	Over bool
	Err  error // of a pull that has ended: why it failed
}

// Puller pulls images. It pulls only while Run runs.
type Puller struct {
	cfg     Config
	records *records
	wake    chan struct{} // capacity 1: signals that queue has grown

	mu      sync.Mutex
	flights map[flightKey]*flight
	queue   []*flight                 // flights that Run has not started
	limits  map[string]*registryLimit // by registry, while a flight has or awaits one
	closed  bool

	settling sync.Mutex // held while settle records unfinished pulls
}

// New returns a Puller.
func New(cfg Config) *Puller {
	cfg.PerRegistry = cmp.Or(cfg.PerRegistry, DefaultPerRegistry)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Observe == nil {
		cfg.Observe = func(Event) {}
	}
	return &Puller{
		cfg: cfg, records: newRecords(cfg.Dir), wake: make(chan struct{}, 1),
		flights: map[flightKey]*flight{}, limits: map[string]*registryLimit{},
	}
}

// PullImage makes the images of a container present, each by its pull policy (C-1.39.2,
// C-1.39.7): the images of the image volumes that it mounts, and its own. PullImage calls
// progress for every step, from this goroutine; progress must not wait, and may be nil. The end of
// ctx ends the call, and also a pull that no other pod waits for.
func (p *Puller) PullImage(ctx context.Context, want *pod.Spec, container string, progress func(pod.PullProgress)) error {
	if progress == nil {
		progress = func(pod.PullProgress) {}
	}
	c, _ := want.Container(container)
	if c == nil {
		return &pod.StartError{Reason: "CreateContainerConfigError", Err: fmt.Errorf("pod %s has no container %q", want.Key, container), Final: true}
	}
	for i := range want.Pod.Spec.Volumes {
		v := &want.Pod.Spec.Volumes[i]
		if v.Image == nil || !slices.ContainsFunc(c.VolumeMounts, func(m v1.VolumeMount) bool { return m.Name == v.Name }) {
			continue
		}
		if err := p.ensure(ctx, want, v.Image.Reference, v.Image.PullPolicy, progress); err != nil {
			var start *pod.StartError
			if errors.As(err, &start) {
				return &pod.StartError{Reason: start.Reason, Err: fmt.Errorf("volume %s: %w", v.Name, start.Err), Final: start.Final}
			}
			return err
		}
	}
	return p.ensure(ctx, want, c.Image, c.ImagePullPolicy, progress)
}

// ensure makes one image present.
func (p *Puller) ensure(ctx context.Context, want *pod.Spec, image string, policy v1.PullPolicy, progress func(pod.PullProgress)) error {
	n, err := parse(image)
	if err != nil {
		return &pod.StartError{Reason: reasonInvalid, Err: fmt.Errorf("image %q: %w", image, err), Final: true}
	}
	if err := p.settle(ctx, want); err != nil {
		return err
	}
	secrets := p.secretCredentials(want, n)
	if policy == "" {
		policy = n.policy
	}
	if policy != v1.PullAlways {
		id, err := p.cfg.Runtime.FindImage(ctx, want, n.image)
		switch {
		case err != nil:
			return err
		case id != "" && p.mayUse(id, n, secrets):
			progress(pod.PullProgress{Image: image, Present: true})
			return nil
		case policy == v1.PullNever: // not said where other pods may use it
			return &pod.StartError{Reason: reasonNever, Err: fmt.Errorf("Container image %q is not present with pull policy of Never", image), Final: true} //nolint:staticcheck // the kubelet's text
		}
	}
	if n.repo == ownRepository {
		return &pod.StartError{Reason: reasonPull, Err: fmt.Errorf("image %q: the name is reserved for the bundled runtime, no registry has it", image), Final: true}
	}
	progress(pod.PullProgress{Image: image})
	began := time.Now()
	f, err := p.share(ctx, want, n, p.credentials(ctx, n, secrets))
	if err == nil {
		progress(pod.PullProgress{Image: image, Pulled: true, Took: f.took, Waited: time.Since(began), Bytes: f.bytes})
	}
	return err
}

// mayUse reports whether a pod with these pull secrets may use an image that is present
// without asking its registry, by the kubelet's rule for pulled images (C-1.39.6).
func (p *Puller) mayUse(id string, n name, secrets []credential) bool {
	ok, err := p.records.mayUse(id, n, secrets)
	if err != nil {
		p.cfg.Log.Warn("Failed to read records of image pulls, asking the registry", "image", n.image, "error", err)
		return false
	}
	return ok
}

// name is a parsed image name: with the defaults for registry and tag (C-1.39.1).
type name struct {
	image    string        // as the runtime gets it: as written, with a tag or a digest
	repo     string        // full, without tag and digest
	registry string        // host, and port if the name has one
	policy   v1.PullPolicy // if the pod names none
}

func parse(image string) (name, error) {
	ref, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return name{}, err
	}
	n := name{image: image, repo: ref.Name(), registry: reference.Domain(ref), policy: v1.PullIfNotPresent}
	if reference.IsNameOnly(ref) {
		n.image += ":latest"
	}
	if _, digested := ref.(reference.Digested); !digested && strings.HasSuffix(n.image, ":latest") {
		n.policy = v1.PullAlways
	}
	return n, nil
}

// Pull pulls an image that no pod asks for, also if it is present, with the node's
// credentials, and returns its ID. Its errors are those of PullImage.
func (p *Puller) Pull(ctx context.Context, image string) (id string, err error) {
	want := &pod.Spec{Key: pod.Key{Namespace: "default", Name: "image-pull"}, Pod: &v1.Pod{}}
	if err := p.ensure(ctx, want, image, v1.PullAlways, func(pod.PullProgress) {}); err != nil {
		return "", err
	}
	n, err := parse(image)
	if err != nil {
		return "", err
	}
	return p.cfg.Runtime.FindImage(ctx, want, n.image)
}
