package pleg

import (
	"context"
	"time"

	"github.com/nodectl/nodectl/pkg/backoff"
	"github.com/nodectl/nodectl/pkg/pod"
)

const (
	// clockChecks is how often relist reads the clock in each relist period. So it soon notices
	// that the machine was suspended: timers do not count that time.
	clockChecks = 6
	// secondRelist is the delay of a second relist after the stream was opened. It finds a change
	// after the first relist and before the runtime has registered the subscriber: neither that
	// list nor the stream shows such a change.
	secondRelist = time.Second
	// minPause is the minimum time between two relists.
	minPause = 100 * time.Millisecond
)

// relist lists the runtime at once, every Relist period, on request, and when the process or
// the machine was stopped for a while (SIGSTOP, suspend: F5). It adds the pods whose
// fingerprints have changed to d.
func (p *PLEG) relist(ctx context.Context, d *dirty, ask, subscribed <-chan struct{}) {
	checkPeriod := p.cfg.Relist / clockChecks
	tick := time.NewTicker(checkPeriod)
	defer tick.Stop()
	second := time.NewTimer(secondRelist)
	defer second.Stop()
	second.Stop()

	var previous map[pod.Key]uint64 // the last successful relist
	var succeeded time.Time         // its start
	var attempted time.Time         // start of the last relist, successful or not
	checked := p.wall()             // last reading of the clock
	for {
		start := time.Now()
		current, err := p.cfg.Runtime.Relist(ctx)
		p.observe(start, attempted, err)
		attempted = start
		if err == nil {
			mark(d, previous, current, p.cfg.Runtime.LastFingerprint)
			previous, succeeded = current, start
		} else if ctx.Err() == nil {
			p.cfg.Log.Debug("Relist failed", "error", err)
		}
		if !backoff.Sleep(ctx, minPause) {
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
				second.Reset(secondRelist)
			case <-second.C:
				due = true
			case <-tick.C:
				// A tick just before the end of the period counts: the next one is late.
				due = time.Since(succeeded) >= p.cfg.Relist-checkPeriod/2 || stopped(checked, p.wall(), checkPeriod)
			}
			checked = p.wall()
		}
	}
}

// observe reports a relist to the configured observer. previous is the start of the relist
// before it; zero for the first.
func (p *PLEG) observe(start, previous time.Time, err error) {
	var since time.Duration
	if !previous.IsZero() {
		since = start.Sub(previous)
	}
	p.cfg.Observe(time.Since(start), since, err)
}

// mark adds the pods whose fingerprints differ between two relists. It leaves out those that
// the engine has read with their current fingerprint.
func mark(d *dirty, previous, current map[pod.Key]uint64, seen func(pod.Key) uint64) {
	for key, value := range current {
		if old, ok := previous[key]; (!ok || old != value) && seen(key) != value {
			d.add(key)
		}
	}
	for key := range previous {
		if _, ok := current[key]; !ok {
			d.add(key)
		}
	}
}

// stopped reports whether the process or the machine was stopped between two readings of the
// wall clock. The readings are usually one period apart; more than two periods mean a stop.
func stopped(before, now time.Time, period time.Duration) bool {
	return now.Sub(before) > 2*period
}

// wall returns the wall clock alone: the monotonic clock does not run while the machine is
// suspended.
func wall() time.Time { return time.Now().Round(0) }
