// Package pleg reports which pods may have changed in the container runtime, as hints. It
// gets them from the runtime's event stream, and from periodic relists, which find the changes
// that no event reported.
//
// The engine ranges over Hints. For each hint, the pod's worker reads the pod from the
// runtime.
//
// An event is a hint and never state. The kubelet's evented PLEG updates its status cache from
// events, and had to go back to alpha after duplicate containers (C-1.28.13).
//
// Each loop over Hints starts two goroutines and makes three signals. Both goroutines end before
// the loop does.
//
//	drain    reads the event stream, and does nothing else while the stream is open
//	relist   lists the runtime, and compares the list with the previous one
//
// Hints itself runs in the caller's goroutine and yields the pods of the dirty set.
//
//	dirty.wake   drain, relist → Hints   a pod is in the set
//	ask          drain → relist          a relist is due
//	subscribed   drain → relist          a relist is due
package pleg

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/wakeup"
)

// Runtime is the part of the container runtime that PLEG uses; *cri.Runtime implements it.
type Runtime interface {
	// Events subscribes, and yields events until the first error. The first event is
	// cri.EventSubscribed. The error errors.ErrUnsupported says that the runtime has no events.
	Events(ctx context.Context) iter.Seq2[cri.Event, error]
	// Relist returns the fingerprint of each pod: a value that changes when a sandbox or
	// container of the pod is created, removed or changes its state.
	Relist(ctx context.Context) (map[pod.Key]uint64, error)
	// LastFingerprint returns the pod's fingerprint at the engine's last read of the pod. It is 0
	// if the engine has not read the pod, or the pod did not exist then.
	LastFingerprint(key pod.Key) uint64
}

// Config is the configuration of a PLEG.
type Config struct {
	Runtime Runtime // required
	// Relist is the time between relists while events flow; 1 min by default.
	Relist time.Duration
	// Fallback is the time between relists if the runtime has no events (C-1.28.1); 1 s by
	// default.
	Fallback time.Duration
	// Observe is called after each relist: took is its duration, and err its error. since is the
	// time from the start of the previous relist to its start, 0 for the first. Observe must not
	// block; it may be nil.
	Observe func(took, since time.Duration, err error)
	// Log gets messages when events fail; nil discards them.
	Log *slog.Logger
}

// PLEG is the pod lifecycle event generator. Make one with New.
type PLEG struct {
	cfg  Config
	busy atomic.Int64 // when drain received the event that it handles now, in Unix nanoseconds; 0: none
	wall func() time.Time
}

// New returns a PLEG; nothing runs before the first iteration over Hints.
func New(cfg Config) *PLEG {
	if cfg.Relist <= 0 {
		cfg.Relist = time.Minute
	}
	if cfg.Fallback <= 0 {
		cfg.Fallback = time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Observe == nil {
		cfg.Observe = func(time.Duration, time.Duration, error) {}
	}
	return &PLEG{cfg: cfg, wall: wall}
}

// Hints yields the keys of pods that may have changed: first every pod in the runtime whose
// current state the engine has not read (Runtime.Seen), then each pod when it changes. Several
// changes of a pod become one hint until the caller receives it. So a slow caller delays neither
// events nor relists. The sequence ends when ctx does.
func (p *PLEG) Hints(ctx context.Context) iter.Seq[pod.Key] {
	return func(yield func(pod.Key) bool) {
		ctx, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		d := &dirty{keys: map[pod.Key]struct{}{}, wake: wakeup.New()}
		ask, subscribed := wakeup.New(), wakeup.New()
		wg.Go(func() { p.drain(ctx, d, ask, subscribed) })
		wg.Go(func() { p.relist(ctx, d, ask, subscribed) })
		for {
			select {
			case <-ctx.Done():
				return
			case <-d.wake:
			}
			for _, key := range d.take() {
				if ctx.Err() != nil || !yield(key) {
					return
				}
			}
		}
	}
}

// dirty is the set of pods with a pending hint.
type dirty struct {
	mu   sync.Mutex // guards keys; never held while something blocks
	keys map[pod.Key]struct{}
	wake wakeup.Signal // see the package comment
}

// add adds a pod to the set. It does not block.
func (d *dirty) add(key pod.Key) {
	d.mu.Lock()
	d.keys[key] = struct{}{}
	d.mu.Unlock()
	d.wake.Send()
}

// take empties the set and returns its keys, sorted.
func (d *dirty) take() []pod.Key {
	d.mu.Lock()
	keys := slices.Collect(maps.Keys(d.keys))
	clear(d.keys)
	d.mu.Unlock()
	slices.SortFunc(keys, pod.Key.Compare)
	return keys
}

// unsupported reports whether err says that the runtime has no events.
func unsupported(err error) bool { return errors.Is(err, errors.ErrUnsupported) }
