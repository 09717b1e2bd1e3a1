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
// The package keeps no state. The caller decides which events are failures, and when the wait
// begins again with the first one.
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
