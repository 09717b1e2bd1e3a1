package pleg

import (
	"context"
	"time"

	"github.com/nodectl/nodectl/pkg/backoff"
	"github.com/nodectl/nodectl/pkg/pod"
)

const (
	// looks is how often per relist period the clock is read, so that a suspend of the
	// machine is noticed soon: timers do not count sleep.
	looks = 6
	// secondLook is the time from the start of a stream to a second relist. A change
	// between the first relist and the runtime's registration of the subscriber is in
	// neither.
	secondLook = time.Second
	// closest is the minimum time between two relists.
	closest = 100 * time.Millisecond
)

// relist lists the runtime at once, every Relist period, on request and after a gap in its
// own time (SIGSTOP, suspend: F5). It marks the pods whose fingerprint has changed.
func (p *PLEG) relist(ctx context.Context, d *dirty, ask, subscribed <-chan struct{}) {
	period := p.cfg.Relist / looks
	tick := time.NewTicker(period)
	defer tick.Stop()
	second := time.NewTimer(secondLook)
	defer second.Stop()
	second.Stop()

	var known map[pod.Key]uint64
	var last time.Time // start of the last successful relist
	seen := p.wall()   // last reading of the clock
	var before time.Time
	for {
		began := time.Now()
		now, err := p.cfg.Runtime.Relist(ctx)
		p.observe(began, before, err)
		before = began
		if err == nil {
			mark(d, known, now, p.cfg.Runtime.Seen)
			known, last = now, began
		} else if ctx.Err() == nil {
			p.cfg.Log.Debug("Relist failed", "error", err)
		}
		if !backoff.Sleep(ctx, closest) {
			return
		}
		for due := false; !due; {
			select {
			case <-ctx.Done():
				return
			case <-ask:
				due = true
			case <-subscribed:
				due = true
				second.Reset(secondLook)
			case <-second.C:
				due = true
			case <-tick.C:
				// Half a period early rather than one late.
				due = time.Since(last) >= p.cfg.Relist-period/2 || overslept(seen, p.wall(), period)
			}
			seen = p.wall()
		}
	}
}

// observe reports a finished relist.
func (p *PLEG) observe(began, before time.Time, err error) {
	var since time.Duration
	if !before.IsZero() {
		since = began.Sub(before)
	}
	p.cfg.Observe(time.Since(began), since, err)
}

// mark adds the pods whose fingerprints differ, except those that were read since they
// changed.
func mark(d *dirty, before, now map[pod.Key]uint64, seen func(pod.Key) uint64) {
	for key, value := range now {
		if old, ok := before[key]; (!ok || old != value) && seen(key) != value {
			d.add(key)
		}
	}
	for key := range before {
		if _, ok := now[key]; !ok {
			d.add(key)
		}
	}
}

// overslept reports whether more than two periods are between two readings of the clock
// that should be at most one period apart.
func overslept(before, now time.Time, period time.Duration) bool {
	return now.Sub(before) > 2*period
}

// wall is the time without the monotonic reading, which stops while the machine sleeps.
func wall() time.Time { return time.Now().Round(0) }
