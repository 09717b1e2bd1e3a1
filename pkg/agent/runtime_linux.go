package agent

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/nodectl/nodectl/pkg/agent/readonly"
	"github.com/nodectl/nodectl/pkg/bundle"
	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/engine"
	"github.com/nodectl/nodectl/pkg/image"
	"github.com/nodectl/nodectl/pkg/metrics"
	"github.com/nodectl/nodectl/pkg/pleg"
)

// superviseInterval is the interval in which serve checks the bundled runtime.
const superviseInterval = time.Second

// importTimeout limits how long serve imports images before it starts pods.
const importTimeout = 30 * time.Second

// containerRuntime is the client of the container runtime, with the parts that pull and import
// images and watch its events.
type containerRuntime struct {
	*cri.Runtime
	bundled *bundle.Runtime // nil for any other runtime
	images  *bundle.Images
	puller  *image.Puller
	events  *pullEvents
	hints   hints
	log     *slog.Logger
}

// hints reports pods that may have changed in the runtime, and whether it still receives the
// runtime's events. pleg.PLEG implements it.
type hints interface {
	engine.Hints
	Healthy(context.Context) error
}

// openRuntime finds or starts the runtime.
func openRuntime(ctx context.Context, cfg Config, h host, api *api, dns *dnsServer, counts *metrics.Metrics) (*containerRuntime, error) {
	found, err := cfg.Discover(ctx)
	if err != nil {
		return nil, readonly.Fail(readonly.Runtime, err, "install containerd, name a socket with --runtime-endpoint, or use the nodectl that carries its runtime")
	}
	r := &containerRuntime{events: newPullEvents(), log: cfg.Log}
	endpoint := found.Endpoint
	if found.Kind == readonly.KindBundled {
		r.bundled = bundle.New(cfg.Bundle())
		if endpoint, err = r.bundled.Start(ctx); err != nil {
			return nil, readonly.Fail(readonly.Runtime, err)
		}
	}
	client := cfg.CRI(endpoint)
	client.RuntimeClass, client.Enforce, client.OwnDNS = api.runtimeClass, h.enforcement(cfg), dns.servers
	client.Observe = func(c cri.Call) { counts.Call(c.Method, c.Handler, c.UserNamespace, c.Took, c.Err) }
	if r.Runtime, err = cri.Dial(client); err != nil {
		return nil, readonly.Fail(readonly.Usage, err)
	}
	if r.puller, err = newPuller(cfg, r.Runtime, r.events.queue); err != nil {
		_ = r.Close()
		return nil, readonly.Fail(readonly.Usage, err, "correct the file that --image-credential-provider-config names: it lists the credential providers")
	}
	r.images = bundle.NewImages(bundle.ImagesConfig{
		Dir:      cfg.Images(),
		Endpoint: r.ImageEndpoint(),
		Memory:   importsPath(cfg),
		Owners:   cfg.Owners,
		Insecure: cfg.InsecureManifestPermissions,
		Log:      cfg.Log,
	})
	r.hints = pleg.New(pleg.Config{Runtime: r.Runtime, Relist: cfg.SyncFrequency, Observe: counts.Relist, Log: cfg.Log})
	return r, nil
}

// importFirst imports the images in the image directory, dir, before pods start. It does not wait
// for the runtime, and ends after importTimeout; maintain imports the rest.
func (r *containerRuntime) importFirst(ctx context.Context, dir string) {
	_ = os.Mkdir(dir, 0o700) // so that the watch sees new archives at once
	ctx, cancel := context.WithTimeout(ctx, importTimeout)
	defer cancel()
	if _, err := r.Ready(ctx); err != nil {
		return
	}
	if err := r.images.Import(ctx); err != nil && ctx.Err() == nil {
		r.log.Warn("Failed to import images", "error", err)
	}
}

// maintain restarts the bundled runtime when it has ended, and imports new images, until ctx
// ends.
func (r *containerRuntime) maintain(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		if err := r.images.Watch(ctx); err != nil {
			r.log.Warn("Failed to watch the image directory", "error", err)
		}
	})
	if r.bundled == nil {
		return
	}
	failed := ""
	for {
		select {
		case <-time.After(superviseInterval):
		case <-ctx.Done():
			return
		}
		started, err := r.bundled.Ensure(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && err.Error() != failed:
			r.log.Error("Failed to keep the bundled runtime running", "error", err)
			failed = err.Error()
		case err == nil:
			failed = ""
			if started {
				r.log.Warn("Restarted the bundled runtime, which had ended")
			}
		}
	}
}

// await waits until the runtime answers, and returns an error after limit.
func (r *containerRuntime) await(ctx context.Context, limit time.Duration) error {
	deadline := time.Now().Add(limit)
	var failure error // a timeout does not replace another error
	for {
		_, err := r.Ready(ctx)
		if failure == nil || !errors.Is(err, context.DeadlineExceeded) {
			failure = err
		}
		switch {
		case err == nil:
			return nil
		case errors.Is(ctx.Err(), context.Canceled):
			return context.Cause(ctx)
		case ctx.Err() == nil && time.Now().Before(deadline):
		case errors.Is(failure, context.DeadlineExceeded):
			return readonly.Fail(readonly.Runtime, errors.New("container runtime at "+r.Endpoint()+" does not answer"))
		default:
			return readonly.Fail(readonly.Runtime, failure)
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// pid returns the PID of the runtime, 0 if it is not known. It is not known while a service manager
// (PID 1) listens on the socket of the runtime.
func (r *containerRuntime) pid() int {
	if r.bundled == nil {
		if pid, _ := bundle.Listener(strings.TrimPrefix(r.Endpoint(), "unix://")); pid != 1 {
			return pid
		}
		return 0
	}
	s, err := r.bundled.Status(context.Background())
	if err != nil {
		return 0
	}
	return s.PID
}
