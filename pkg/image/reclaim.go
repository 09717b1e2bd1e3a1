package image

import (
	"context"
	"slices"
	"time"

	"github.com/nodectl/nodectl/pkg/reclaim"
)

// evictionAskLimit is how long ObserveForEviction may ask registries. It is short because a disk is
// nearly full meanwhile.
const evictionAskLimit = 10 * time.Second

// ObserveForEviction returns the images with all fields that an eviction needs: their layers, and
// UnresponsiveRegistry for unused images from a registry that does not answer. It returns
// ErrPodsUnknown if not all pods are known.
func (v *Inventory) ObserveForEviction(ctx context.Context) ([]reclaim.Image, error) {
	n, err := v.lookComplete(ctx)
	if err != nil {
		return nil, err
	}
	v.mu.Lock()
	hosts := v.registriesOfUnused(n.Images)
	v.mu.Unlock()
	answered := v.ask(ctx, hosts, evictionAskLimit)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.recordUnresponsive(answered)
	markUnresponsive(n.Images, answered)
	if slices.ContainsFunc(n.Images, func(i reclaim.Image) bool { return len(i.Users) == 0 }) {
		v.measure(ctx, n.Images)
	}
	return n.Images, nil
}

// lookComplete calls Look, and returns ErrPodsUnknown while not all pods are known.
func (v *Inventory) lookComplete(ctx context.Context) (reclaim.Node, error) {
	n, complete, err := v.Observe(ctx)
	if err == nil && !complete {
		err = ErrPodsUnknown
	}
	return n, err
}

// Reclaim removes the images of steps that package reclaim has planned, in their order, except
// those that have a user by now. It returns the steps whose images are gone, and continues after a
// failure.
func (v *Inventory) Reclaim(ctx context.Context, steps []reclaim.Step) (done []reclaim.Step, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	n, complete, err := v.observeLocked(ctx)
	if err != nil {
		return nil, err
	}
	if !complete {
		return nil, ErrPodsUnknown
	}
	var unused []reclaim.Step
	for _, s := range steps {
		i := slices.IndexFunc(n.Images, func(i reclaim.Image) bool { return i.ID == s.ID })
		if i < 0 { // another caller has removed it
			done = append(done, s)
			continue
		}
		if s.Names = n.Images[i].Names; len(n.Images[i].Users) == 0 {
			unused = append(unused, s)
		}
	}
	_, err = v.do(ctx, unused, func(s reclaim.Step) {
		v.cfg.Collected("space")
		done = append(done, s)
	})
	return done, err
}
