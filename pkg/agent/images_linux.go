package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/agent/readonly"
	"github.com/nodectl/nodectl/pkg/bundle"
	"github.com/nodectl/nodectl/pkg/controller"
	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/feed"
	"github.com/nodectl/nodectl/pkg/image"
	"github.com/nodectl/nodectl/pkg/node"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/reclaim"
	"github.com/nodectl/nodectl/pkg/server"
	"github.com/nodectl/nodectl/pkg/workload"
)

// importsPath returns the path of the file that lists imported archives.
func importsPath(cfg Config) string { return filepath.Join(cfg.RootDir, "images-imported.json") }

// inventoryConfig returns the part of the configuration of an Inventory that does not depend on a
// serving agent.
func inventoryConfig(cfg Config, runtime *cri.Runtime) image.InventoryConfig {
	return image.InventoryConfig{
		Runtime:  runtime,
		File:     filepath.Join(cfg.RootDir, "images-used.json"),
		Archives: func() []string { return bundle.ImportedImages(importsPath(cfg)) },
		Layers: func(ctx context.Context) (map[string][]reclaim.Layer, error) {
			parts, err := bundle.Layers(ctx, runtime.ImageEndpoint())
			all := make(map[string][]reclaim.Layer, len(parts))
			for id, layers := range parts {
				for _, l := range layers {
					all[id] = append(all[id], reclaim.Layer{ID: l.ID, Usage: reclaim.Usage{Bytes: l.Bytes, Inodes: l.Inodes}})
				}
			}
			return all, err
		},
		Disk: func(dir string) (bytes, inodes reclaim.Level, err error) {
			b, i, err := node.DiskLevels(dir)
			return reclaim.Level(b), reclaim.Level(i), err
		},
		Policy: reclaim.ImagePolicy{
			High: cfg.ImageGCHighThreshold, Low: cfg.ImageGCLowThreshold, MinAge: cfg.ImageMinimumGCAge, MaxAge: cfg.ImageMaximumGCAge,
		},
		Mirrors: cfg.mirrors,
		Log:     cfg.Log,
	}
}

// mirrors returns the URLs of the mirrors that the runtime uses for a registry.
func (c Config) mirrors(registry string) []string {
	bundled := c.RuntimeEndpoint == "" && bundle.New(c.Bundle()).Running()
	return bundle.Mirrors(bundle.MirrorDirs(c.RootDir, bundled), registry)
}

// newInventory makes the Inventory of a serving agent; m is nil on a node without a cluster. Images of
// the versions to which workloads would roll back count as in use.
func (a *Agent) newInventory(live *feed.Live, m *member, workloads *controller.Controller) *image.Inventory {
	cfg := inventoryConfig(a.cfg, a.runtime.Runtime)
	cfg.RemoveRecord, cfg.RemoveRecordsExcept = a.runtime.puller.RemoveRecord, a.runtime.puller.RemoveRecordsExcept
	cfg.Collected = a.metrics.ImageCollected
	cfg.PodsKnown = live.PodsKnown()
	cfg.Desired = func() (map[string][]string, bool) {
		pods, complete := live.DesiredAndExisting()
		all := make(map[string][]string, len(pods))
		for _, it := range pods {
			user := podUser(pod.KeyOf(it))
			all[user] = append(all[user], pod.Images(it)...)
		}
		for _, of := range workloads.Workloads() {
			if t := workload.Previous(&of.Decision.State); t != nil {
				user := "version before of " + strings.ToLower(of.Object.Kind) + " " + of.Object.Key.String()
				all[user] = pod.Images(&v1.Pod{ObjectMeta: t.ObjectMeta, Spec: t.Spec})
			}
		}
		return all, complete
	}
	cfg.Event = a.nodeEvents(m)
	return image.NewInventory(cfg)
}

// podUser names a pod as a user of images.
func podUser(key pod.Key) string { return "pod " + key.String() }

// collecting is a PullLines that also starts a garbage collection of images after each pull, because
// a pull may fill the disk.
type collecting struct {
	PullLines
	images *image.Inventory
}

// Event implements PullLines.
func (c collecting) Event(e image.Event) {
	c.PullLines.Event(e)
	if e.Over && e.Err == nil {
		c.images.Pulled()
	}
}

// imageControl implements server.Images.
type imageControl struct {
	images   *image.Inventory
	puller   *image.Puller
	endpoint string // of the image service
}

// Pulls implements server.Images. It asks the runtime only while there are pulls.
func (c imageControl) Pulls(ctx context.Context) []server.ImagePull {
	pulls := c.puller.Pulls()
	downloads := bundle.NewDownloads(c.endpoint)
	defer downloads.Close()
	known := progressOf(ctx, downloads, pulls)
	all := make([]server.ImagePull, 0, len(pulls))
	for _, p := range pulls {
		d := known[p.Image]
		all = append(all, server.ImagePull{Image: p.Image, Since: p.Since, Waiting: p.Waiting, Bytes: d.Bytes, Total: d.Total})
	}
	return all
}

// PullImage implements server.Images.
func (c imageControl) PullImage(ctx context.Context, name string) (string, error) {
	id, err := c.puller.Pull(ctx, name)
	return id, imageStatusError(err)
}

// RemoveImage implements server.Images.
func (c imageControl) RemoveImage(ctx context.Context, name string) ([]string, error) {
	names, err := c.images.Remove(ctx, name)
	return names, imageStatusError(err)
}

// PruneImages implements server.Images.
func (c imageControl) PruneImages(ctx context.Context, dryRun bool) (server.ImageRemovals, error) {
	all, err := pruneImages(ctx, c.images, dryRun)
	return all, imageStatusError(err)
}

// imageStatusError turns an error about an image into a *server.StatusError.
func imageStatusError(err error) error {
	var kept *image.NotRemovedError
	var failed *pod.StartError
	switch {
	case errors.As(err, &kept) && kept.Missing:
		return &server.StatusError{Code: http.StatusNotFound, Message: err.Error()}
	case errors.As(err, &kept), errors.Is(err, image.ErrPodsUnknown):
		return &server.StatusError{Code: http.StatusConflict, Message: err.Error()}
	case errors.As(err, &failed):
		return &server.StatusError{Code: http.StatusConflict, Message: failed.Error()}
	}
	return err
}

// imageList returns the images for the answer of /v1/images.
func imageList(ctx context.Context, images *image.Inventory) ([]server.Image, error) {
	n, _, err := images.Observe(ctx)
	all := make([]server.Image, 0, len(n.Images))
	for _, i := range n.Images {
		all = append(all, server.Image{
			ID: i.ID, Names: i.Names, Size: i.Bytes, FirstSeen: i.FirstSeen, LastUsed: i.LastUsed, UsedBy: i.Users, Pinned: i.Pinned, Archive: i.Archive,
		})
	}
	return all, err
}

// pruneImages removes unused images, and returns the answer of /v1/images/prune.
func pruneImages(ctx context.Context, images *image.Inventory, dryRun bool) (server.ImageRemovals, error) {
	plan, err := images.Prune(ctx, dryRun)
	all := server.ImageRemovals{Removed: []server.ImageRemoval{}, Kept: []server.ImageRemoval{}}
	for _, s := range plan.Steps {
		all.Removed = append(all.Removed, server.ImageRemoval{ID: s.ID, Name: s.Name, Bytes: s.Bytes, Why: s.Why})
	}
	for _, k := range plan.Kept {
		all.Kept = append(all.Kept, server.ImageRemoval{ID: k.ID, Name: k.Name, Why: k.Why})
	}
	return all, err
}

// Images lists and changes the images of this node while no agent serves it.
type Images struct {
	runtime *cri.Runtime
	images  *image.Inventory
	puller  *image.Puller // nil for read access
	end     func()        // stops the goroutines of OpenImages
}

// OpenImagesReadOnly returns the images, to list, save and load them. It writes nothing below the
// root directory.
func OpenImagesReadOnly(ctx context.Context, cfg Config) (*Images, error) {
	runtime, err := cfg.Connect(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, readonly.Fail(readonly.Runtime, err, "--runtime-endpoint names its socket")
	}
	c := inventoryConfig(cfg, runtime)
	c.Desired, c.ReadOnly = recordedImages(cfg), true
	return &Images{runtime: runtime, images: image.NewInventory(c)}, nil
}

// OpenImages returns the images, to change them. It locks the root directory until Close, so that
// no agent starts pods in that time.
func OpenImages(ctx context.Context, cfg Config) (*Images, error) {
	unlock, err := lock(cfg)
	if err != nil {
		return nil, err
	}
	i, err := OpenImagesReadOnly(ctx, cfg)
	if err != nil {
		unlock()
		return nil, err
	}
	if i.puller, err = newPuller(cfg, i.runtime, nil); err != nil {
		_ = i.runtime.Close()
		unlock()
		return nil, readonly.Fail(readonly.Usage, err)
	}
	c := inventoryConfig(cfg, i.runtime)
	c.Desired, c.RemoveRecord = recordedImages(cfg), i.puller.RemoveRecord
	i.images = image.NewInventory(c)
	pulls, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { i.puller.Run(pulls) })
	i.end = func() {
		stop()
		wg.Wait()
		unlock()
	}
	return i, nil
}

// Close releases the runtime and the root directory.
func (i *Images) Close() {
	if i.end != nil {
		i.end()
	}
	_ = i.runtime.Close()
}

// List returns the images.
func (i *Images) List(ctx context.Context) ([]server.Image, error) {
	all, err := imageList(ctx, i.images)
	return all, readonly.Fail(readonly.Runtime, err)
}

// Pull pulls an image with the node's credentials.
func (i *Images) Pull(ctx context.Context, name string) error {
	_, err := i.puller.Pull(ctx, name)
	return err
}

// Remove removes an image that nothing uses, with all its names.
func (i *Images) Remove(ctx context.Context, name string) error {
	_, err := i.images.Remove(ctx, name)
	return err
}

// Prune removes every image that nothing uses. With dryRun it removes nothing, and returns the
// images that it would remove.
func (i *Images) Prune(ctx context.Context, dryRun bool) (server.ImageRemovals, error) {
	return pruneImages(ctx, i.images, dryRun)
}

// Load imports an image archive and returns the names of its images.
func (i *Images) Load(ctx context.Context, file string) ([]string, error) {
	return bundle.ImportFile(ctx, i.runtime.ImageEndpoint(), file)
}

// FullNames returns the names under which the runtime has images.
func (i *Images) FullNames(ctx context.Context, names []string) ([]string, error) {
	listed, err := i.runtime.Images(ctx)
	if err != nil {
		return nil, readonly.Fail(readonly.Runtime, err)
	}
	var all []string
	for _, name := range names {
		full := image.FullName(listed, name)
		if full == "" {
			return nil, readonly.Fail(readonly.Failure, fmt.Errorf("image %s not found", name), "nodectl get images lists them")
		}
		all = append(all, full)
	}
	return all, nil
}

// Endpoint returns the endpoint of the runtime's image service.
func (i *Images) Endpoint() string { return i.runtime.ImageEndpoint() }

// recordedImages returns a function that returns the images of the pods that the last agent ran or
// would have run, by pod. Its second result is false if some may be missing.
func recordedImages(cfg Config) func() (map[string][]string, bool) {
	specs, err := cfg.DesiredOrRecorded()
	if err != nil {
		cfg.Log.Warn("Failed to read the pods of the last agent", "error", err)
	}
	all := map[string][]string{}
	for _, spec := range specs {
		user := podUser(spec.Key)
		all[user] = append(all[user], pod.Images(spec.Pod)...)
	}
	return func() (map[string][]string, bool) { return all, err == nil }
}
