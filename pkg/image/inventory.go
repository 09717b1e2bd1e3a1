package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/nodectl/nodectl/pkg/atomicfile"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/reclaim"
	"github.com/nodectl/nodectl/pkg/wakeup"
)

// InventoryRuntime is the runtime whose images an Inventory manages.
type InventoryRuntime interface {
	Images(ctx context.Context) ([]pod.Image, error)
	// ImageUsers returns the containers of the runtime, also those that nodectl did not create.
	ImageUsers(ctx context.Context) ([]pod.ImageUser, error)
	// RemoveImage removes an image by its ID. It succeeds if the image is not present.
	RemoveImage(ctx context.Context, id string) error
	Filesystems(ctx context.Context) (images, containers pod.Filesystem, err error)
}

// InventoryConfig is the configuration of an Inventory. Only Runtime is required.
type InventoryConfig struct {
	Runtime InventoryRuntime
	// File stores when each image was last in use. It is written when an image appears or
	// vanishes, or becomes used or unused. "" stores nothing.
	File string
	// ReadOnly leaves File unchanged.
	ReadOnly bool
	// RemoveRecord is called after an image was removed, see Puller.RemoveRecord.
	RemoveRecord func(id string, removalBegan time.Time)
	// RemoveRecordsExcept is called at each collection, see Puller.RemoveRecordsExcept.
	RemoveRecordsExcept func(ids []string, listBegan time.Time)
	// Desired returns for each pod ("pod default/web") the names of the images that it needs.
	// complete is false if not all pods are known, because a source has not answered or the pods
	// were not read.
	Desired func() (images map[string][]string, complete bool)
	// PodsKnown is closed when Desired is complete, which Run waits for. nil means that it is
	// complete from the start.
	PodsKnown <-chan struct{}
	// Archives returns the names of the images that were imported from archives.
	Archives func() []string
	// Layers returns the layers of images by image ID. It may leave out images.
	Layers func(ctx context.Context) (map[string][]reclaim.Layer, error)
	// Disk measures the file system of a directory.
	Disk func(dir string) (bytes, inodes reclaim.Level, err error)
	// RegistryAnswers reports whether a registry answers; it must be safe for concurrent use. nil
	// sends the registry, and its mirrors, a request.
	RegistryAnswers func(ctx context.Context, registry string) bool
	// Mirrors returns the URLs that the runtime asks in place of a registry; nil: there are none.
	Mirrors func(registry string) []string
	Policy  reclaim.ImagePolicy
	// Event reports an event of the node.
	Event func(reason, kind, message string)
	// Collected is called for each image that Collect has removed, with the reason of the
	// kubelet's metric: age or space.
	Collected func(reason string)
	Log       *slog.Logger // nil discards
}

// Inventory lists the images of a node with their sizes, their users and the time of their last
// use, and removes those that package reclaim chooses. It is safe for concurrent use.
type Inventory struct {
	cfg InventoryConfig
	mu  sync.Mutex // held while images are listed or removed, not while registries are asked

	history      reclaim.ImageHistory // nil until the file is read
	unresponsive map[string]time.Time // the registries that did not answer, with the time
	failed       string               // the error of the last collection, to log each error once
	wake         wakeup.Signal        // Run collects now
}

// collectEvery is the time between two collections (C-1.33.8).
const collectEvery = 5 * time.Minute

// NewInventory returns an Inventory.
func NewInventory(cfg InventoryConfig) *Inventory {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Desired == nil {
		cfg.Desired = func() (map[string][]string, bool) { return nil, true }
	}
	if cfg.Event == nil {
		cfg.Event = func(string, string, string) {}
	}
	if cfg.Collected == nil {
		cfg.Collected = func(string) {}
	}
	if cfg.RemoveRecord == nil {
		cfg.RemoveRecord = func(string, time.Time) {}
	}
	if cfg.RemoveRecordsExcept == nil {
		cfg.RemoveRecordsExcept = func([]string, time.Time) {}
	}
	if cfg.Mirrors == nil {
		cfg.Mirrors = func(string) []string { return nil }
	}
	if cfg.RegistryAnswers == nil {
		cfg.RegistryAnswers = func(ctx context.Context, registry string) bool {
			return RegistryAnswers(ctx, registry, cfg.Mirrors(registry)...)
		}
	}
	return &Inventory{cfg: cfg, unresponsive: map[string]time.Time{}, wake: wakeup.New()}
}

// Run calls Collect when all pods are known, then every five minutes and after Pulled, until ctx
// ends.
func (v *Inventory) Run(ctx context.Context) {
	if v.cfg.PodsKnown != nil {
		select {
		case <-v.cfg.PodsKnown:
		case <-ctx.Done():
		}
	}
	for ctx.Err() == nil {
		if err := v.Collect(ctx); ctx.Err() == nil {
			v.report(err)
		}
		again := time.NewTimer(collectEvery)
		select {
		case <-again.C:
		case <-v.wake:
		case <-ctx.Done():
		}
		again.Stop()
	}
}

// Pulled makes Run collect now, because a new image may have filled the disk. It does not block.
func (v *Inventory) Pulled() {
	v.wake.Send()
}

// report logs an error of a collection unless the previous collection failed with the same one.
func (v *Inventory) report(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != v.failed && err != nil {
		v.cfg.Log.Warn("Image garbage collection failed", "error", err)
	}
	v.failed = text
}

// Observe returns the images, the least recently used first, and their file system. complete is false
// while not all pods are known. The caller must treat no image as unused then.
func (v *Inventory) Observe(ctx context.Context) (n reclaim.Node, complete bool, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.observeLocked(ctx)
}

// observeLocked is Observe. The caller holds the lock.
func (v *Inventory) observeLocked(ctx context.Context) (n reclaim.Node, complete bool, err error) {
	listed, err := v.cfg.Runtime.Images(ctx)
	if err != nil {
		return n, false, fmt.Errorf("list images: %w", err)
	}
	// Containers are listed after images, so that a container created in between is a user.
	containers, err := v.cfg.Runtime.ImageUsers(ctx)
	if err != nil {
		return n, false, fmt.Errorf("list containers: %w", err)
	}
	desired, complete := v.cfg.Desired()
	s := newIndex(listed)
	for _, c := range containers {
		user := "pod " + c.Key.String()
		if c.Key == (pod.Key{}) {
			user = "container " + c.ID
		}
		for _, name := range c.Images {
			s.use(name, user)
		}
	}
	for user, names := range desired {
		for _, name := range names {
			s.use(name, user)
		}
	}
	var archives []string
	if v.cfg.Archives != nil {
		archives = v.cfg.Archives()
	}
	for _, name := range archives {
		if i := s.find(name); i != nil {
			i.Archive = true
		}
	}
	for _, i := range s.images {
		i.Archive = i.Archive || len(registriesOf(i.Names)) == 0
		slices.Sort(i.Users)
	}
	n.Now = time.Now()
	all := make([]reclaim.Image, 0, len(s.images))
	for _, i := range s.images {
		all = append(all, *i)
	}
	n.Images = v.remember(all, n.Now, complete)
	n.Filesystems, err = v.disk(ctx)
	return n, complete, err
}

// measure adds the layers of the images: a removal frees those that no other image has. Collect
// calls it only if it will remove an image.
func (v *Inventory) measure(ctx context.Context, images []reclaim.Image) {
	if v.cfg.Layers == nil {
		return
	}
	layers, err := v.cfg.Layers(ctx)
	if err != nil {
		v.cfg.Log.Debug("Failed to read the layers of images, counting their whole sizes", "error", err)
	}
	for i := range images {
		images[i].Layers = layers[images[i].ID]
	}
}

// disk measures the file system of the images.
func (v *Inventory) disk(ctx context.Context) ([]reclaim.Filesystem, error) {
	if v.cfg.Disk == nil {
		return nil, nil
	}
	images, _, err := v.cfg.Runtime.Filesystems(ctx)
	if err != nil {
		return nil, fmt.Errorf("find the file system of images: %w", err)
	}
	bytes, inodes, err := v.cfg.Disk(images.Mountpoint)
	if err != nil {
		return nil, fmt.Errorf("measure the file system of images: %w", err)
	}
	return []reclaim.Filesystem{{Name: images.Mountpoint, Bytes: bytes, Inodes: inodes, Images: true}}, nil
}

// remember sets when each image was first seen and last used, and writes changes to the file. If
// not all pods are known, an image that was in use stays in use.
func (v *Inventory) remember(images []reclaim.Image, now time.Time, complete bool) []reclaim.Image {
	if v.history == nil {
		v.history = v.load()
	}
	seen, history := reclaim.Remember(v.history, images, now)
	if !complete {
		for id, u := range history {
			if before := v.history[id]; before.InUse && !u.InUse {
				history[id] = before
			}
		}
	}
	if v.cfg.File == "" || v.cfg.ReadOnly || history.Equal(v.history) {
		v.history = history
		return seen
	}
	js, err := json.Marshal(history)
	if err == nil {
		err = atomicfile.Write(v.cfg.File, js, atomicfile.Options{Temp: ".tmp"})
	}
	if err != nil { // v.history stays, so that the next call writes again
		v.cfg.Log.Warn("Failed to write the last use of images", "error", err)
		return seen
	}
	v.history = history
	return seen
}

// load reads the file. If it is missing or damaged, every image counts as first seen now.
func (v *Inventory) load() reclaim.ImageHistory {
	history := reclaim.ImageHistory{}
	if v.cfg.File == "" {
		return history
	}
	js, err := os.ReadFile(v.cfg.File)
	if err == nil {
		err = json.Unmarshal(js, &history)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		v.cfg.Log.Warn("Failed to read the last use of images", "error", err)
		return reclaim.ImageHistory{}
	}
	return history
}

// Collect removes images that were unused for longer than the maximum age, and, if the disk is
// filled to the high threshold, the least recently used ones (C-1.33.8). It returns
// ErrPodsUnknown if not all pods are known.
func (v *Inventory) Collect(ctx context.Context) error {
	if _, complete := v.cfg.Desired(); !complete { // without a call to the runtime
		return ErrPodsUnknown
	}
	hosts, plan, err := v.registriesToAsk(ctx)
	if err != nil || len(plan.Steps) == 0 && plan.Need == 0 {
		return err
	}
	answered := v.ask(ctx, hosts, askLimit)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.recordUnresponsive(answered)
	_, plan, err = v.plan(ctx, answered)
	if err != nil {
		return err
	}
	freed, err := v.do(ctx, plan.Steps, func(s reclaim.Step) { v.cfg.Collected(plan.Reason(s)) })
	if err == nil && freed < plan.Need {
		message := plan.Insufficient(freed)
		v.cfg.Event("FreeDiskSpaceFailed", pod.EventWarning, message)
		err = errors.New(message)
	}
	return err
}

// plan lists the images and plans a collection. Registries without true in answered count as
// silent; if answered is nil, all registries count as answering.
func (v *Inventory) plan(ctx context.Context, answered map[string]bool) (n reclaim.Node, plan reclaim.ImagePlan, err error) {
	began := time.Now()
	n, complete, err := v.observeLocked(ctx)
	switch {
	case err != nil:
		return n, plan, err
	case !complete:
		return n, plan, ErrPodsUnknown
	}
	ids := make([]string, 0, len(n.Images))
	for _, i := range n.Images {
		ids = append(ids, i.ID)
	}
	v.cfg.RemoveRecordsExcept(ids, began)
	switch {
	case v.cfg.Policy.High >= 100 && v.cfg.Policy.MaxAge == 0:
		return n, plan, nil
	}
	if len(n.Filesystems) > 0 && n.Filesystems[0].Bytes.Capacity == 0 {
		v.cfg.Event("InvalidDiskCapacity", pod.EventWarning, "invalid capacity 0 on image filesystem")
		return n, plan, errors.New("the image file system has a capacity of 0 bytes")
	}
	if answered != nil {
		markUnresponsive(n.Images, answered)
	}
	if plan = reclaim.Images(n, v.cfg.Policy); answered != nil && len(plan.Steps) > 0 {
		v.measure(ctx, n.Images)
		plan = reclaim.Images(n, v.cfg.Policy)
	}
	return n, plan, nil
}

// Prune removes every unused image of any age, and returns the plan with the steps that it has
// carried out. With dry it removes nothing, and returns the plan with all steps.
func (v *Inventory) Prune(ctx context.Context, dry bool) (reclaim.ImagePlan, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	n, complete, err := v.observeLocked(ctx)
	if err != nil {
		return reclaim.ImagePlan{}, err
	}
	if !complete {
		return reclaim.ImagePlan{}, ErrPodsUnknown
	}
	v.measure(ctx, n.Images)
	plan := reclaim.Prune(n)
	if dry {
		return plan, nil
	}
	var done []reclaim.Step
	plan.Frees, err = v.do(ctx, plan.Steps, func(s reclaim.Step) { done = append(done, s) })
	plan.Steps = done
	return plan, err
}

// ErrPodsUnknown is the error of a removal while not all pods of the node are known, so that any
// image may be in use.
var ErrPodsUnknown = errors.New("cannot determine which images are unused: not all pods of this node are known")

// NotRemovedError is the error of Remove for an image that it does not remove.
type NotRemovedError struct {
	Name    string
	Missing bool   // the image is not present
	Why     string // the reason for a present image
}

func (e *NotRemovedError) Error() string {
	if e.Missing {
		return "image " + e.Name + " not found"
	}
	return "image " + e.Name + " is not removed: " + e.Why
}

// Remove removes the image that Find finds, with all its names, and returns these. It returns a
// *NotRemovedError if the image is used, pinned or not present.
func (v *Inventory) Remove(ctx context.Context, name string) ([]string, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	n, complete, err := v.observeLocked(ctx)
	if err != nil {
		return nil, err
	}
	if !complete {
		return nil, ErrPodsUnknown
	}
	i := Find(n.Images, name)
	if i == nil {
		return nil, &NotRemovedError{Name: name, Missing: true}
	}
	for _, k := range reclaim.Prune(n).Kept {
		if k.ID == i.ID {
			return nil, &NotRemovedError{Name: name, Why: "it is " + k.Why}
		}
	}
	_, err = v.do(ctx, []reclaim.Step{{Action: reclaim.RemoveImage, ID: i.ID, Name: i.Name(), Names: i.Names, Why: "requested by a user"}}, nil)
	return i.Names, err
}

// do carries out steps and returns how many bytes they have freed. It leaves out images that a pod
// needs by now, and continues after a failure. It calls done, unless nil, after each removal.
func (v *Inventory) do(ctx context.Context, steps []reclaim.Step, done func(reclaim.Step)) (freed int64, err error) {
	var errs []error
	for _, s := range steps {
		if ctx.Err() != nil {
			return freed, context.Cause(ctx)
		}
		if v.isNeeded(s) {
			continue
		}
		began := time.Now()
		if err := v.cfg.Runtime.RemoveImage(ctx, s.ID); err != nil {
			errs = append(errs, fmt.Errorf("remove image %s: %w", s.Name, err))
			continue
		}
		v.cfg.Log.Info("Image removed", "image", s.Name, "bytes", s.Bytes, "reason", s.Why)
		v.cfg.RemoveRecord(s.ID, began)
		freed += s.Bytes
		if done != nil {
			done(s)
		}
	}
	return freed, errors.Join(errs...)
}

// isNeeded reports whether a pod needs the image of a step now.
func (v *Inventory) isNeeded(s reclaim.Step) bool {
	desired, _ := v.cfg.Desired()
	image := newIndex([]pod.Image{{ID: s.ID, Names: s.Names}})
	for _, names := range desired {
		if slices.ContainsFunc(names, func(name string) bool { return image.find(name) != nil }) {
			return true
		}
	}
	return false
}
