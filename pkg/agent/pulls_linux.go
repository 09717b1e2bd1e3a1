package agent

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/nodectl/nodectl/pkg/bundle"
	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/image"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/wakeup"
)

// pulling is a runtime that pulls images with a Puller. The Puller uses the credentials of pods and
// node, shares one pull among pods, and limits the concurrent pulls.
type pulling struct {
	*cri.Runtime
	puller *image.Puller
	pulled func(took time.Duration, size uint64)
}

// PullImage implements engine.Actor.
func (r pulling) PullImage(ctx context.Context, want *pod.Spec, container string, report func(pod.PullProgress)) error {
	return r.puller.PullImage(ctx, want, container, func(n pod.PullProgress) {
		if n.Pulled && r.pulled != nil {
			r.pulled(n.Took, uint64(max(n.Bytes, 0)))
		}
		report(n)
	})
}

// pulls runs the puller and shows its pulls in lines, until ctx ends or stop is called. stop waits
// for the last pull.
func (r *containerRuntime) pulls(ctx context.Context, lines PullLines) (stop func()) {
	displayed, last := context.WithCancel(context.WithoutCancel(ctx)) // lines also shows the end of pulls that ctx cancels
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer last()
		r.puller.Run(ctx)
	})
	wg.Go(func() { r.events.follow(displayed, r.puller, bundle.NewDownloads(r.ImageEndpoint()), lines) })
	return func() {
		cancel()
		wg.Wait()
	}
}

// pullEvents queues the starts and ends of pulls that lines does not show yet.
type pullEvents struct {
	wake   wakeup.Signal // events are queued
	mu     sync.Mutex
	events []image.Event
}

func newPullEvents() *pullEvents { return &pullEvents{wake: wakeup.New()} }

// queue adds an event, and never blocks.
func (n *pullEvents) queue(e image.Event) {
	n.mu.Lock()
	n.events = append(n.events, e)
	n.mu.Unlock()
	n.wake.Send()
}

func (n *pullEvents) drain() []image.Event {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := n.events
	n.events = nil
	return all
}

// pullInterval is the interval of updates of the lines about pulls.
const pullInterval = 500 * time.Millisecond

// follow shows pulls in lines until ctx ends. While there are no pulls, or lines does not show
// progress, follow only waits for events.
func (n *pullEvents) follow(ctx context.Context, puller *image.Puller, downloads *bundle.Downloads, lines PullLines) {
	defer downloads.Close()
	defer func() {
		n.flush(lines) // events that arrived together with the end
		lines.Lines(nil, nil)
	}()
	for {
		select {
		case <-n.wake:
		case <-ctx.Done():
			return
		}
		for {
			n.flush(lines)
			pulls := puller.Pulls()
			shows := lines.Lines(pulls, progressOf(ctx, downloads, pulls))
			if !shows || len(pulls) == 0 {
				break
			}
			select {
			case <-time.After(pullInterval):
			case <-n.wake:
			case <-ctx.Done():
				return
			}
		}
	}
}

// flush passes the queued events to lines.
func (n *pullEvents) flush(lines PullLines) {
	for _, e := range n.drain() {
		lines.Event(e)
	}
}

// progressOf returns the progress of pulls, as far as the runtime reports it.
func progressOf(ctx context.Context, downloads *bundle.Downloads, pulls []image.Pull) map[string]bundle.Download {
	var names []string
	for _, p := range pulls {
		if !p.Waiting {
			names = append(names, p.Image)
		}
	}
	if len(names) == 0 {
		return nil
	}
	progress, _ := downloads.Progress(ctx, names) // without progress, the lines show only the time
	return progress
}

// newPuller returns the Puller of a runtime; it calls report at the start and end of pulls.
func newPuller(cfg Config, runtime *cri.Runtime, report func(image.Event)) (*image.Puller, error) {
	c := image.Config{
		Runtime:      runtime,
		Endpoint:     runtime.ImageEndpoint(),
		Dir:          filepath.Join(cfg.RootDir, "image_manager"),
		PerRegistry:  cfg.MaxParallelImagePulls,
		QPS:          cfg.RegistryQPS,
		Burst:        cfg.RegistryBurst,
		Verification: cfg.ImageVerificationPolicy,
		Allowlist:    cfg.Allowlist(),
		Observe:      report,
		Log:          cfg.Log,
	}
	home, _ := os.UserHomeDir() // a service may have no home directory
	c.DockerConfigs = image.DockerConfigs(cfg.RootDir, home)
	if cfg.ImageCredentialProviderConfig != "" {
		var err error
		c.Providers, err = image.LoadProviders(cfg.ImageCredentialProviderConfig, cfg.ImageCredentialProviderBinDir)
		if err != nil {
			return nil, err
		}
	}
	return image.New(c), nil
}
