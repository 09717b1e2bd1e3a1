// Package image pulls the images of pods, removes unused ones, and records which pods may use an
// image that was pulled with credentials. Numbers such as C-1.39.5 are rules of the kubelet in
// docs/contract.md.
//
// A Puller pulls by the pull policy, with the credentials of the pod, the node and the node's
// credential providers. The engine's workers call PullImage and wait. Pods that need the same
// image with the same credentials share one pull, a flight. Few flights of one registry pull at
// the same time, so that a registry that hangs delays only its own images.
//
// An Inventory lists the images of the node and removes those that package reclaim chooses.
//
// The package passes credentials only to the runtime. It writes them to no log, error or file.
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
	"golang.org/x/time/rate"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/activity"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/wakeup"
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

// Runtime looks for images and pulls them. It returns a *pod.StartError for an error that the runtime
// reports about the image. It also does so for a call that takes too long; the error then wraps
// pod.ErrTimeout. Any other error means that the runtime is not available or that ctx has ended.
type Runtime interface {
	// FindImage returns the ID of the image with that name, "" if it is not present.
	FindImage(ctx context.Context, want *pod.Spec, name string) (id string, err error)
	// FetchImage pulls an image and returns its ID. It sends no credentials if user and
	// password are "".
	FetchImage(ctx context.Context, want *pod.Spec, name, user, password string) (id string, err error)
}

// Config is the configuration of a Puller.
type Config struct {
	Runtime Runtime
	// Endpoint names the runtime in the records about pulls, which outlive a change of runtime.
	// With "", no record is removed with its image.
	Endpoint string
	// Dir is the directory of the records about pulls. The Puller creates it.
	Dir string
	// DockerConfigs are the files that may hold the node's credentials, see DockerConfigs;
	// the first usable one is read.
	DockerConfigs []string
	// Providers are the node's credential providers; nil means none.
	Providers *Providers
	// PerRegistry is how many images are pulled from one registry at a time; 0 means
	// DefaultPerRegistry.
	PerRegistry int
	// QPS and Burst limit how many pulls start per second, from all registries together; a QPS
	// of 0 is no limit.
	QPS, Burst int
	// Verification is the policy about images that are present; "" is NeverVerifyPreloadedImages.
	Verification string
	// Allowlist has the images of NeverVerifyAllowlistedImages: names as pods write them, without
	// tag and digest; a final /* stands for any rest.
	Allowlist []string
	// Observe, unless nil, is called at the start and the end of every pull, from many
	// goroutines. It must not block.
	Observe func(Event)
	Log     *slog.Logger // nil discards
}

// Pull is a pull that has not ended.
type Pull struct {
	Image   string    // the name that the runtime gets
	Since   time.Time // when the first pod asked for it
	Waiting bool      // it waits for the limit of its registry, or for the pull rate
}

// Event is the start or the end of a pull.
type Event struct {
	Pull
	Over bool  // the pull has ended
	Err  error // why it failed, nil if it succeeded
}

// Puller pulls images. It pulls only while Run runs.
type Puller struct {
	cfg     Config
	records *records
	rate    *rate.Limiter
	wake    wakeup.Signal // signals that queue has grown

	mu      sync.Mutex
	flights map[flightKey]*flight
	queue   []*flight                 // flights that Run has not started
	limits  map[string]*registryLimit // by registry; only those with a flight
	closed  bool                      // Run has ended

	unknownMu sync.Mutex // held by recordUnknownPulls
}

// New returns a Puller.
func New(cfg Config) *Puller {
	cfg.Verification = cmp.Or(cfg.Verification, NeverVerifyPreloadedImages)
	cfg.PerRegistry = cmp.Or(cfg.PerRegistry, DefaultPerRegistry)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Observe == nil {
		cfg.Observe = func(Event) {}
	}
	perSecond := rate.Limit(cfg.QPS)
	if cfg.QPS == 0 {
		perSecond = rate.Inf
	}
	return &Puller{
		cfg: cfg, records: newRecords(cfg.Dir, cfg.Endpoint), rate: rate.NewLimiter(perSecond, cfg.Burst), wake: wakeup.New(),
		flights: map[flightKey]*flight{}, limits: map[string]*registryLimit{},
	}
}

// PullImage makes the images of a container present: those of the image volumes that it mounts
// (C-1.39.7), then its own, each by its pull policy (C-1.39.2). It calls progress, unless nil, for
// every step, from this goroutine; progress must not block. The end of ctx ends the call, and also
// a pull that no other pod waits for.
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
	if err := p.recordUnknownPulls(ctx, want); err != nil {
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
		case policy == v1.PullNever: // the same error for a present image of other pods does not reveal that it is present
			return &pod.StartError{Reason: reasonNever, Err: fmt.Errorf("Container image %q is not present with pull policy of Never", image), Final: true} //nolint:staticcheck // the kubelet's text
		}
	}
	if n.repo == ownRepository {
		return &pod.StartError{Reason: reasonPull, Err: fmt.Errorf("image %q: the name is reserved for the bundled runtime, no registry has it", image), Final: true}
	}
	progress(pod.PullProgress{Image: image})
	began := time.Now()
	defer activity.Begin(ctx, activity.Call{Kind: activity.Pull, Name: "pull image", Target: n.image, Host: n.registry})()
	f, err := p.share(ctx, want, n, p.credentials(ctx, n, secrets), func(queued bool) {
		progress(pod.PullProgress{Image: image, Pending: true, Queued: queued, Waited: time.Since(began)})
	})
	if err == nil {
		progress(pod.PullProgress{Image: image, Pulled: true, Took: f.took, Waited: time.Since(began), Bytes: f.bytes})
	}
	return err
}

// mayUse reports whether a pod with these pull secrets may use a present image although its registry
// is not asked (C-1.39.6). The verification policy decides (C-1.39.9).
func (p *Puller) mayUse(id string, n name, secrets []credential) bool {
	if p.cfg.exempt(n) {
		return true
	}
	ok, err := p.records.mayUse(id, n, secrets, p.cfg.exemptPreloaded())
	if err != nil {
		p.cfg.Log.Warn("Failed to read records of image pulls, asking the registry", "image", n.image, "error", err)
		return false
	}
	return ok
}

// name is a parsed image name. repo and registry include defaults, such as docker.io/library.
type name struct {
	image    string        // as in the pod, with :latest if it has no tag or digest (C-1.39.1); the runtime gets this
	repo     string        // registry and path, without tag and digest
	written  string        // as in the pod, without tag and digest
	registry string        // host, with the port if the name has one
	policy   v1.PullPolicy // for a pod without a pull policy
}

func parse(image string) (name, error) {
	ref, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return name{}, err
	}
	n := name{image: image, repo: ref.Name(), written: withoutTag(image, ref), registry: reference.Domain(ref), policy: v1.PullIfNotPresent}
	if reference.IsNameOnly(ref) {
		n.image += ":latest"
	}
	if _, digested := ref.(reference.Digested); !digested && strings.HasSuffix(n.image, ":latest") {
		n.policy = v1.PullAlways
	}
	return n, nil
}

// Pull pulls an image for a user, not for a pod: with the node's credentials, even if the image is
// present. It returns the image's ID. Its errors are those of PullImage.
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
