package pleg

import (
	"context"
	"time"

	"github.com/nodectl/nodectl/pkg/backoff"
	"github.com/nodectl/nodectl/pkg/pod"
)

const (
	// looks is how often per relist period the clock is looked at, so that a
	// machine which slept is noticed soon: timers do not count sleep.
	looks = 6
	// secondLook comes this long after a stream was opened: what happens between
	// the first relist and the runtime's own notice of the subscriber is in
	// neither.
	secondLook = time.Second
	// closest is the time between two relists at the least, whatever is asked.
	closest = 100 * time.Millisecond
)

// relist lists the runtime at once, every Relist period, when it is asked to
// and after a gap in its own time (SIGSTOP, suspend: F5), and marks the pods
// whose fingerprint is not the one before.
func (p *PLEG) relist(ctx context.Context, d *dirty, ask, subscribed <-chan struct{}) {
	period := p.cfg.Relist / looks
	tick := time.NewTicker(period)
	defer tick.Stop()
	second := time.NewTimer(secondLook)
	defer second.Stop()
	second.Stop()

	var known map[pod.Key]uint64
	var last time.Time // start of the last relist that worked
	seen := p.wall()   // when the clock was last looked at
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

// observe tells of a relist that has just ended.
func (p *PLEG) observe(began, before time.Time, err error) {
	var since time.Duration
	if !before.IsZero() {
		since = began.Sub(before)
	}
	p.cfg.Observe(time.Since(began), since, err)
}

// mark adds the pods whose fingerprints differ, but for those that were read since
// they changed.
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

// overslept reports whether more than two periods lie between two looks at the
// clock that should be one period apart at the most.
func overslept(before, now time.Time, period time.Duration) bool {
	return now.Sub(before) > 2*period
}

// wall is the time without the monotonic reading, which stands still while the
// machine sleeps.
func wall() time.Time { return time.Now().Round(0) }
