// Package pleg reports pods that may have changed: it turns the runtime's event stream, and
// a slow relist as a fallback, into hints.
//
// The engine ranges over Hints, and the pods' workers read the runtime themselves.
//
// The one rule: an event is a hint, never state (events taken as state sank the
// kubelet's evented PLEG: duplicate containers, C-1.28.13).
//
// Three goroutines and four channels, all made by Hints and ended with it:
//
//	drain    reads the event stream and does nothing else while it stands
//	relist   compares two lists of the runtime with the ones before
//	Hints    the caller's own: yields what is dirty
//
//	dirty.wake   cap 1  drain, relist → Hints   full: already sent, the set holds the rest
//	ask          cap 1  drain → relist          full: a relist is due anyway
//	subscribed   cap 1  drain → relist          full: as above
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
)

// Runtime is what PLEG needs of the container runtime; *cri.Runtime is one.
type Runtime interface {
	// Events subscribes and yields until the first error. The first event is
	// cri.EventSubscribed. errors.ErrUnsupported says that the runtime has no events.
	Events(ctx context.Context) iter.Seq2[cri.Event, error]
	// Relist returns a value per pod that changes when a sandbox or container of the pod is
	// created, removed or changes its state.
	Relist(ctx context.Context) (map[pod.Key]uint64, error)
	// Seen returns that value as of the engine's last read of the pod; 0 if there was none,
	// or the pod did not exist.
	Seen(key pod.Key) uint64
}

// Config is the configuration of a PLEG.
type Config struct {
	Runtime Runtime
	// Relist is the time between relists while events flow; 1 min by default.
	Relist time.Duration
	// Fallback is the time between relists if the runtime has no events (C-1.28.1); 1 s by
	// default.
	Fallback time.Duration
	// Observe is called after every relist: with its duration, the time since the start of
	// the one before (0 for the first), and its error. May be nil; it must not wait.
	Observe func(took, since time.Duration, err error)
	// Log gets messages when events fail; nil discards them.
	Log *slog.Logger
}

// PLEG is the pod lifecycle event generator. Construct it with New.
type PLEG struct {
	cfg  Config
	busy atomic.Int64 // start of the present add of an event, Unix nanoseconds; 0: none
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

// Hints yields keys of pods that may have changed: first every pod there is, then each as
// it changes. Several changes of a pod between two iterations are one hint, so that a slow
// caller delays only itself. The sequence ends with ctx, or when the caller leaves the
// loop; its goroutines have ended by then.
func (p *PLEG) Hints(ctx context.Context) iter.Seq[pod.Key] {
	return func(yield func(pod.Key) bool) {
		ctx, cancel := context.WithCancel(ctx)
		var pumps sync.WaitGroup
		defer pumps.Wait()
		defer cancel()
		d := &dirty{keys: map[pod.Key]struct{}{}, wake: make(chan struct{}, 1)}
		ask, subscribed := make(chan struct{}, 1), make(chan struct{}, 1)
		pumps.Go(func() { p.drain(ctx, d, ask, subscribed) })
		pumps.Go(func() { p.relist(ctx, d, ask, subscribed) })
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

// dirty is the set of pods with a pending hint: the only data that the three goroutines
// share.
type dirty struct {
	mu   sync.Mutex // guards keys, for the length of one map access
	keys map[pod.Key]struct{}
	wake chan struct{} // cap 1, see the package comment
}

func (d *dirty) add(key pod.Key) {
	d.mu.Lock()
	d.keys[key] = struct{}{}
	d.mu.Unlock()
	trigger(d.wake)
}

// take empties the set and returns its keys in order.
func (d *dirty) take() []pod.Key {
	d.mu.Lock()
	keys := slices.Collect(maps.Keys(d.keys))
	clear(d.keys)
	d.mu.Unlock()
	slices.SortFunc(keys, pod.Key.Compare)
	return keys
}

func trigger(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// unsupported reports whether the runtime has no events.
func unsupported(err error) bool { return errors.Is(err, errors.ErrUnsupported) }
