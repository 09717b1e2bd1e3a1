// Package image makes the images of pods present: by their pull policies, with the
// credentials that a pod, the node and the node's credential providers have, and
// with what is known of who may use an image that is there already.
//
// The engine's workers call PullImage and wait. Behind it pods that want the same
// image by the same credentials share one pull, a flight; a registry gets a few
// flights at a time, and one that hangs delays nobody else's.
//
// The one rule: a credential is told to the runtime and to nobody else. It is in no
// log, no error and no file.
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

// Waiting reasons of images (C-1.22.9); the others are the runtime's words.
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

// Runtime looks for images and pulls them. What an image's fault is comes back as
// *pod.StartError; any other error says nothing about the image. The end of ctx
// ends a call.
type Runtime interface {
	// FindImage returns the ID of the image of that name, "" when it is not present.
	FindImage(ctx context.Context, want *pod.Spec, name string) (id string, err error)
	// FetchImage pulls an image and returns its ID; without a user and a password,
	// without credentials.
	FetchImage(ctx context.Context, want *pod.Spec, name, user, password string) (id string, err error)
}

// Config is what a Puller has to know.
type Config struct {
	Runtime Runtime
	// Dir is where it is written down who pulled what; made when needed.
	Dir string
	// DockerConfigs are the files that may hold the node's credentials, see
	// DockerConfigs; the first one that can be used is.
	DockerConfigs []string
	// Providers are the node's credential providers; nil are none.
	Providers *Providers
	// PerRegistry is how many images are pulled from one registry at a time; 0 is
	// DefaultPerRegistry.
	PerRegistry int
	// Told hears of the beginning and the end of every pull; may be nil. It is called
	// from many goroutines and must not wait.
	Told func(Event)
	Log  *slog.Logger // nil is silent
}

// Pull is one pull under way.
type Pull struct {
	Image   string // as the runtime is asked for it
	Since   time.Time
	Waiting bool // for its turn at the registry
}

// Event is the beginning of a pull, or its end.
type Event struct {
	Pull
	Over bool
	Err  error // of a pull that is over: why it failed
}

// Puller makes images present. Run must be on for it to pull.
type Puller struct {
	cfg     Config
	records *records
	wake    chan struct{} // capacity 1: there is something in queue, or was

	mu      sync.Mutex
	flights map[flightKey]*flight
	queue   []*flight         // begun by nobody yet
	turns   map[string]*turns // by registry, while somebody uses or awaits one
	closed  bool

	settling sync.Mutex // held while it is found out what pulls left whose end nobody saw
}

// New returns a Puller.
func New(cfg Config) *Puller {
	cfg.PerRegistry = cmp.Or(cfg.PerRegistry, DefaultPerRegistry)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Told == nil {
		cfg.Told = func(Event) {}
	}
	return &Puller{
		cfg: cfg, records: newRecords(cfg.Dir), wake: make(chan struct{}, 1),
		flights: map[flightKey]*flight{}, turns: map[string]*turns{},
	}
}

// PullImage makes present what want's container is made of: the images of the image
// volumes that it mounts, and its own, each by its pull policy (C-1.39.2, C-1.39.7).
// told hears of every step, from this goroutine; it must not wait, and may be nil. The
// end of ctx ends the call, and a pull that nobody else waits for.
func (p *Puller) PullImage(ctx context.Context, want *pod.Spec, container string, told func(pod.PullNews)) error {
	if told == nil {
		told = func(pod.PullNews) {}
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
		if err := p.ensure(ctx, want, v.Image.Reference, v.Image.PullPolicy, told); err != nil {
			var start *pod.StartError
			if errors.As(err, &start) {
				return &pod.StartError{Reason: start.Reason, Err: fmt.Errorf("volume %s: %w", v.Name, start.Err), Final: start.Final}
			}
			return err
		}
	}
	return p.ensure(ctx, want, c.Image, c.ImagePullPolicy, told)
}

// ensure makes one image present.
func (p *Puller) ensure(ctx context.Context, want *pod.Spec, image string, policy v1.PullPolicy, told func(pod.PullNews)) error {
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
			told(pod.PullNews{Image: image, Present: true})
			return nil
		case policy == v1.PullNever: // also when it is there for others: that is not told
			return &pod.StartError{Reason: reasonNever, Err: fmt.Errorf("Container image %q is not present with pull policy of Never", image), Final: true} //nolint:staticcheck // the kubelet's text
		}
	}
	if n.repo == ownRepository {
		return &pod.StartError{Reason: reasonPull, Err: fmt.Errorf("image %q: the name belongs to the bundled runtime, and no registry has it", image), Final: true}
	}
	told(pod.PullNews{Image: image})
	began := time.Now()
	f, err := p.share(ctx, want, n, p.credentials(ctx, n, secrets))
	if err == nil {
		told(pod.PullNews{Image: image, Pulled: true, Took: f.took, Waited: time.Since(began), Bytes: f.bytes})
	}
	return err
}

// mayUse reports whether a pod with these pull secrets may use an image that is
// there without asking its registry (C-1.39.6).
func (p *Puller) mayUse(id string, n name, secrets []credential) bool {
	ok, err := p.records.mayUse(id, n, secrets)
	if err != nil {
		p.cfg.Log.Warn("Records of image pulls not read; the registry is asked", "image", n.image, "error", err)
		return false
	}
	return ok
}

// name is what an image name means (C-1.39.1).
type name struct {
	image    string        // as the runtime is asked for it: as written, with a tag or a digest
	repo     string        // full, without tag and digest
	registry string        // host, and port where one is given
	policy   v1.PullPolicy // where none is given
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
