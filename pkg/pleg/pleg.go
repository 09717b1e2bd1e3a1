// Package pleg says about which pods something may have changed: it turns the
// runtime's event stream, and a slow relist as the net below it, into hints.
//
// The engine ranges over Hints and lets the pods' workers read for themselves.
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
//	dirty.wake   cap 1  drain, relist → Hints   full: already told, the set holds the rest
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
	// cri.EventSubscribed. errors.ErrUnsupported says that there are no events.
	Events(ctx context.Context) iter.Seq2[cri.Event, error]
	// Relist returns a value per pod that changes when something of the pod
	// comes, goes or changes its state.
	Relist(ctx context.Context) (map[pod.Key]uint64, error)
	// Seen returns that value as it was when the engine last read the pod; 0 when
	// it never did, or nothing was there.
	Seen(key pod.Key) uint64
}

// Config is what a PLEG is made of.
type Config struct {
	Runtime Runtime
	// Relist is the time between relists while events flow; 1 min by default.
	Relist time.Duration
	// Fallback is the time between relists where the runtime has no events
	// (C-1.28.1); 1 s by default.
	Fallback time.Duration
	// Observe is told of every relist that has ended: how long it took, how long after
	// the one before it began (0 for the first), and its error. May be nil; it must not
	// wait.
	Observe func(took, since time.Duration, err error)
	// Log is told when events fail and flow again; nil is silent.
	Log *slog.Logger
}

// PLEG is the pod lifecycle event generator. Construct it with New.
type PLEG struct {
	cfg  Config
	busy atomic.Int64 // since when one event is put down, Unix nanoseconds; 0: none is
	wall func() time.Time
}

// New returns a PLEG; nothing runs before Hints is ranged over.
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

// Hints yields keys of pods about which something may have changed: first every
// pod there is, then each as it changes. Many changes of a pod between two
// turns of the loop are one hint, so that a slow caller delays only itself. The
// sequence ends with ctx, or when the caller leaves the loop; its goroutines
// have ended by then.
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

// dirty is the set of pods with a hint not yet given: the one thing the three
// goroutines share.
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

// unsupported reports a runtime without events.
func unsupported(err error) bool { return errors.Is(err, errors.ErrUnsupported) }
