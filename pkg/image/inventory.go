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
)

// Stock is the images and containers of a runtime.
type Stock interface {
	Images(ctx context.Context) ([]pod.Image, error)
	// ImageUsers returns every container of the runtime.
	ImageUsers(ctx context.Context) ([]pod.ImageUser, error)
	// RemoveImage removes an image by its ID; one that is not there is no error.
	RemoveImage(ctx context.Context, id string) error
	Filesystems(ctx context.Context) (images, containers pod.Filesystem, err error)
}

// InventoryConfig is the configuration of an Inventory. Only Stock is required.
type InventoryConfig struct {
	Stock Stock
	// File remembers when images were in use, "" nowhere. It is written when an image
	// appears, vanishes, comes into use or goes out of use.
	File string
	// ReadOnly writes nothing to File.
	ReadOnly bool
	// Forget is called after an image was removed, with the time before that.
	Forget func(id string, removed time.Time)
	// Desired returns the names of images that pods need, by the pod, and whether that is
	// all: false while a source has not answered, or the pods were not read yet.
	Desired func() (images map[string][]string, complete bool)
	// Known is closed once Desired is complete; Run begins then. nil: it is from the start.
	Known <-chan struct{}
	// Archives returns the names of the images that came from archives.
	Archives func() []string
	// Layers returns the layers of images by ID, as far as the runtime tells.
	Layers func(ctx context.Context) (map[string][]reclaim.Layer, error)
	// Disk measures the file system that holds a directory.
	Disk func(dir string) (bytes, inodes reclaim.Level, err error)
	// Answers reports whether a registry answers; nil asks it.
	Answers func(ctx context.Context, registry string) bool
	Policy  reclaim.ImagePolicy
	// Event reports an event of the node.
	Event func(reason, kind, message string)
	// Removed is called for each image that Collect has removed, with the kubelet's reason
	// of its metric: age or space.
	Removed func(reason string)
	Log     *slog.Logger // nil discards
}

// Inventory is the images of a node: what each takes, who uses it and when it was last in
// use. It removes what package reclaim plans. It is safe for concurrent use.
type Inventory struct {
	cfg InventoryConfig
	mu  sync.Mutex // held while images are looked at or removed, not while registries are asked

	uses   reclaim.Uses         // nil: not read from the file yet
	silent map[string]time.Time // the registries that did not answer, and when
	failed string               // of the collection that failed last, to log each error once
	wake   chan struct{}
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
	if cfg.Removed == nil {
		cfg.Removed = func(string) {}
	}
	if cfg.Forget == nil {
		cfg.Forget = func(string, time.Time) {}
	}
	if cfg.Answers == nil {
		cfg.Answers = answers
	}
	return &Inventory{cfg: cfg, silent: map[string]time.Time{}, wake: make(chan struct{}, 1)}
}

// Run collects garbage every five minutes, and after Pulled, until ctx ends. It begins once
// all pods are known.
func (v *Inventory) Run(ctx context.Context) {
	if v.cfg.Known != nil {
		select {
		case <-v.cfg.Known:
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

// Pulled says that the node has another image, which may fill the disk. It does not wait.
func (v *Inventory) Pulled() {
	select {
	case v.wake <- struct{}{}:
	default:
	}
}

// report logs the error of a collection once, and its end.
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

// Look returns the images, the least recently used first, and the file system that they are
// on. complete is false while some pods are not known: no image counts as unused then.
func (v *Inventory) Look(ctx context.Context) (n reclaim.Node, complete bool, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.look(ctx)
}

func (v *Inventory) look(ctx context.Context) (n reclaim.Node, complete bool, err error) {
	listed, err := v.cfg.Stock.Images(ctx)
	if err != nil {
		return n, false, fmt.Errorf("list images: %w", err)
	}
	// Containers are read after images: one that was made from an image in between counts.
	containers, err := v.cfg.Stock.ImageUsers(ctx)
	if err != nil {
		return n, false, fmt.Errorf("list containers: %w", err)
	}
	desired, complete := v.cfg.Desired()
	s := newShelf(listed)
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

// measure adds the layers of the images: what their removal really frees. The runtime is asked
// for them only when an image is to be removed.
func (v *Inventory) measure(ctx context.Context, images []reclaim.Image) {
	if v.cfg.Layers == nil {
		return
	}
	layers, err := v.cfg.Layers(ctx)
	if err != nil {
		v.cfg.Log.Debug("Layers of images not read; their whole sizes count", "error", err)
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
	images, _, err := v.cfg.Stock.Filesystems(ctx)
	if err != nil {
		return nil, fmt.Errorf("find the file system of images: %w", err)
	}
	bytes, inodes, err := v.cfg.Disk(images.Mountpoint)
	if err != nil {
		return nil, fmt.Errorf("measure the file system of images: %w", err)
	}
	return []reclaim.Filesystem{{Name: images.Mountpoint, Bytes: bytes, Inodes: inodes, Images: true}}, nil
}

// remember adds to the images what is known of their use, and writes down what is new. While
// the pods are not all known, no image goes out of use.
func (v *Inventory) remember(images []reclaim.Image, now time.Time, complete bool) []reclaim.Image {
	if v.uses == nil {
		v.uses = v.load()
	}
	seen, uses := reclaim.Remember(v.uses, images, now)
	if !complete {
		for id, u := range uses {
			if before := v.uses[id]; before.InUse && !u.InUse {
				uses[id] = before
			}
		}
	}
	if v.cfg.File == "" || v.cfg.ReadOnly || uses.Equal(v.uses) {
		v.uses = uses
		return seen
	}
	js, err := json.Marshal(uses)
	if err == nil {
		err = atomicfile.Write(v.cfg.File, js, atomicfile.Options{})
	}
	if err != nil { // they stay as they were, so that the next look tries again
		v.cfg.Log.Warn("Last use of images not recorded", "error", err)
		return seen
	}
	v.uses = uses
	return seen
}

// load reads the record. If that is lost or damaged, every image appears now.
func (v *Inventory) load() reclaim.Uses {
	uses := reclaim.Uses{}
	if v.cfg.File == "" {
		return uses
	}
	js, err := os.ReadFile(v.cfg.File)
	if err == nil {
		err = json.Unmarshal(js, &uses)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		v.cfg.Log.Warn("Last use of images not read", "error", err)
		return reclaim.Uses{}
	}
	return uses
}

// Collect removes unused images if the disk is filled above the high threshold, and those
// that were unused for too long (C-1.33.8). It returns ErrPodsUnknown while some pods are not
// known.
func (v *Inventory) Collect(ctx context.Context) error {
	if _, complete := v.cfg.Desired(); !complete { // before it asks the runtime
		return ErrPodsUnknown
	}
	hosts, plan, err := v.unasked(ctx)
	if err != nil || len(plan.Steps) == 0 && plan.Need == 0 {
		return err
	}
	answered := v.ask(ctx, hosts)
	v.mu.Lock()
	defer v.mu.Unlock()
	for host, is := range answered {
		if !is {
			v.silent[host] = time.Now()
		}
	}
	_, plan, err = v.plan(ctx, answered)
	if err != nil {
		return err
	}
	freed, err := v.do(ctx, plan.Steps, func(s reclaim.Step) { v.cfg.Removed(plan.Reason(s)) })
	if err == nil && freed < plan.Need {
		message := plan.Insufficient(freed)
		v.cfg.Event("FreeDiskSpaceFailed", pod.EventWarning, message)
		err = errors.New(message)
	}
	return err
}

// plan looks at the images and plans their collection. answered names the registries that answer:
// every other one is silent. nil presumes that all answer.
func (v *Inventory) plan(ctx context.Context, answered map[string]bool) (n reclaim.Node, plan reclaim.ImagePlan, err error) {
	n, complete, err := v.look(ctx)
	switch {
	case err != nil:
		return n, plan, err
	case !complete:
		return n, plan, ErrPodsUnknown
	case v.cfg.Policy.High >= 100 && v.cfg.Policy.MaxAge == 0:
		return n, plan, nil
	}
	if len(n.Filesystems) > 0 && n.Filesystems[0].Bytes.Capacity == 0 {
		v.cfg.Event("InvalidDiskCapacity", pod.EventWarning, "invalid capacity 0 on image filesystem")
		return n, plan, errors.New("the image file system has a capacity of 0 bytes")
	}
	for i := range n.Images {
		for _, host := range registriesOf(n.Images[i].Names) {
			if answered != nil && !answered[host] {
				n.Images[i].Silent = host
			}
		}
	}
	if plan = reclaim.Images(n, v.cfg.Policy); answered != nil && len(plan.Steps) > 0 {
		v.measure(ctx, n.Images)
		plan = reclaim.Images(n, v.cfg.Policy)
	}
	return n, plan, nil
}

// Prune removes every image that nothing uses, whatever its age, and returns the plan with
// the steps that it has done; dry removes nothing, and returns all of them.
func (v *Inventory) Prune(ctx context.Context, dry bool) (reclaim.ImagePlan, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	n, complete, err := v.look(ctx)
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

// ErrPodsUnknown says that a source of pods has not answered yet: no image counts as unused.
var ErrPodsUnknown = errors.New("not all sources of pods have answered, so that no image counts as unused")

// NotRemovedError says why an image is not removed.
type NotRemovedError struct {
	Name    string
	Missing bool // there is no such image
	Why     string
}

func (e *NotRemovedError) Error() string {
	if e.Missing {
		return "image " + e.Name + " not found"
	}
	return "image " + e.Name + " is not removed: " + e.Why
}

// Remove removes one image, by a name, digest or ID, with all its names, and returns these.
// It returns a *NotRemovedError for one that is used, pinned or not there.
func (v *Inventory) Remove(ctx context.Context, name string) ([]string, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	n, complete, err := v.look(ctx)
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
	_, err = v.do(ctx, []reclaim.Step{{Action: reclaim.RemoveImage, ID: i.ID, Name: i.Name(), Names: i.Names, Why: "a person asked"}}, nil)
	return i.Names, err
}

// do carries out steps and returns what they have freed. It leaves out images that a pod
// needs meanwhile, and goes on after a failure.
func (v *Inventory) do(ctx context.Context, steps []reclaim.Step, did func(reclaim.Step)) (freed int64, err error) {
	var errs []error
	for _, s := range steps {
		if ctx.Err() != nil {
			return freed, context.Cause(ctx)
		}
		if v.needed(s) {
			continue
		}
		began := time.Now()
		if err := v.cfg.Stock.RemoveImage(ctx, s.ID); err != nil {
			errs = append(errs, fmt.Errorf("remove image %s: %w", s.Name, err))
			continue
		}
		v.cfg.Log.Info("Image removed", "image", s.Name, "bytes", s.Bytes, "reason", s.Why)
		v.cfg.Forget(s.ID, began)
		freed += s.Bytes
		if did != nil {
			did(s)
		}
	}
	return freed, errors.Join(errs...)
}

// needed reports whether a pod needs the image of a step since the images were looked at.
func (v *Inventory) needed(s reclaim.Step) bool {
	desired, _ := v.cfg.Desired()
	image := newShelf([]pod.Image{{ID: s.ID, Names: s.Names}})
	for _, names := range desired {
		if slices.ContainsFunc(names, func(name string) bool { return image.find(name) != nil }) {
			return true
		}
	}
	return false
}
