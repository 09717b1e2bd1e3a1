package agent

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/nodectl/nodectl/pkg/agent/look"
	"github.com/nodectl/nodectl/pkg/bundle"
	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/engine"
	"github.com/nodectl/nodectl/pkg/image"
	"github.com/nodectl/nodectl/pkg/metrics"
	"github.com/nodectl/nodectl/pkg/pleg"
)

// superviseEvery is the interval in which serve checks the bundled runtime.
const superviseEvery = time.Second

// importPatience is how long serve imports images before it starts pods.
const importPatience = 30 * time.Second

// containerRuntime is the client of the container runtime, with the parts that pull and import
// images and watch its events.
type containerRuntime struct {
	*cri.Runtime
	bundled *bundle.Runtime // nil for any other runtime
	images  *bundle.Images
	puller  *image.Puller
	news    *pullNews
	hints   hints
	log     *slog.Logger
}

// hints reports pods that may have changed in the runtime, and whether it still receives the
// runtime's events. pleg.PLEG implements it.
type hints interface {
	engine.Hints
	Beat(context.Context) error
}

// openRuntime finds or starts the runtime.
func openRuntime(ctx context.Context, cfg Config, h host, api *api, names *names, counts *metrics.Metrics) (*containerRuntime, error) {
	found, err := cfg.Discover(ctx)
	if err != nil {
		return nil, look.Fail(look.Runtime, err, "install containerd, name a socket with --runtime-endpoint, or use the nodectl that carries its runtime")
	}
	r := &containerRuntime{news: newPullNews(), log: cfg.Log}
	endpoint := found.Endpoint
	if found.Kind == look.KindBundled {
		r.bundled = bundle.New(cfg.Bundle())
		if endpoint, err = r.bundled.Start(ctx); err != nil {
			return nil, look.Fail(look.Runtime, err)
		}
	}
	client := cfg.CRI(endpoint)
	client.RuntimeClass, client.Enforce, client.OwnDNS = api.runtimeClass, h.enforcement(cfg), names.servers
	client.Observe = func(c cri.Call) { counts.Call(c.Method, c.Handler, c.UserNamespace, c.Took, c.Err) }
	if r.Runtime, err = cri.Dial(client); err != nil {
		return nil, look.Fail(look.Usage, err)
	}
	if r.puller, err = newPuller(cfg, r.Runtime, r.news.queue); err != nil {
		_ = r.Close()
		return nil, look.Fail(look.Usage, err, "correct the file that --image-credential-provider-config names: it lists the credential providers")
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
// for the runtime, and ends after importPatience; lookAfter imports the rest.
func (r *containerRuntime) importFirst(ctx context.Context, dir string) {
	_ = os.Mkdir(dir, 0o700) // so that the watch sees new archives at once
	ctx, cancel := context.WithTimeout(ctx, importPatience)
	defer cancel()
	if _, err := r.Ready(ctx); err != nil {
		return
	}
	if err := r.images.Import(ctx); err != nil && ctx.Err() == nil {
		r.log.Warn("Failed to import images", "error", err)
	}
}

// lookAfter restarts the bundled runtime when it dies and imports new images, until ctx
// ends.
func (r *containerRuntime) lookAfter(ctx context.Context) {
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
		case <-time.After(superviseEvery):
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
	var silent error
	for {
		_, err := r.Ready(ctx)
		if silent == nil || !errors.Is(err, context.DeadlineExceeded) {
			silent = err
		}
		switch {
		case err == nil:
			return nil
		case errors.Is(ctx.Err(), context.Canceled):
			return context.Cause(ctx)
		case ctx.Err() == nil && time.Now().Before(deadline):
		case errors.Is(silent, context.DeadlineExceeded):
			return look.Fail(look.Runtime, errors.New("container runtime at "+r.Endpoint()+" does not answer"))
		default:
			return look.Fail(look.Runtime, silent)
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// pid returns the PID of the runtime, 0 if it is not known. A service manager that listens for the
// runtime is not the runtime.
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
