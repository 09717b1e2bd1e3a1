// Package backoff computes how long to wait before a failed operation is tried again: an
// exponential back-off with jitter.
//
// A caller keeps the wait, zero while the operation succeeds:
//
//	wait = backoff.Next(wait, first, last)
//	if !backoff.Sleep(ctx, backoff.Jitter(wait, 0.5, 1.5)) {
//		return
//	}
//
// The package reads no clock, and only a Pace has state. The caller decides which events
// are failures, and when the wait begins again with the first one.
package backoff

import (
	"context"
	"math/rand/v2"
	"time"
)

// Next returns the wait after wait: twice as long, at least first and at most last.
func Next(wait, first, last time.Duration) time.Duration { return min(max(2*wait, first), last) }

// After returns the wait after n failures in a row, for a caller that counts them: first,
// then twice as long each time, and at most last.
func After(n int, first, last time.Duration) time.Duration {
	return min(first<<min(max(n-1, 0), 10), last)
}

// Pace spaces out events that another party causes, such as changes of a plugin's devices. An event
// after a calm time is due at once. Each further event is due later after the one before it: First, then
// twice as long each time, and at most Last.
type Pace struct {
	First, Last time.Duration
	Calm        time.Duration // without an event, which ends the back-off; it is longer than Last

	wait time.Duration
	at   time.Time // when the newest event is due; zero: there was none
}

// Next returns when an event of now is due, and whether an earlier event is due then, too.
func (p *Pace) Next(now time.Time) (at time.Time, pending bool) {
	switch since := now.Sub(p.at); {
	case p.at.IsZero(), since >= p.Calm, since < -p.Last: // in the last case, the clock was set back
		p.wait, p.at = 0, now
	case since < 0:
		return p.at, true
	default:
		p.wait = Next(p.wait, p.First, p.Last)
		if p.at = p.at.Add(p.wait); p.at.Before(now) {
			p.at = now
		}
	}
	return p.at, false
}

// Jitter returns a random duration between low times d and high times d, so that the nodes
// of a fleet do not act in step.
func Jitter(d time.Duration, low, high float64) time.Duration {
	from, to := time.Duration(float64(d)*low), time.Duration(float64(d)*high)
	if to <= from {
		return from
	}
	return from + rand.N(to-from)
}

// Sleep waits for d. It reports whether d passed before ctx was done.
func Sleep(ctx context.Context, d time.Duration) bool { return SleepOr(ctx, d, nil) }

// SleepOr waits for d, or until or is closed; nil never is. It reports whether that came
// before ctx was done.
func SleepOr(ctx context.Context, d time.Duration, or <-chan struct{}) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-or:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
