package node

import (
	"context"
	"testing"
	"time"
)

const (
	stopwatchTick = 10 * time.Millisecond
	// stalledFrom is how late a tick is that tells of a machine that stood still, or
	// of cores that others had.
	stalledFrom = 5 * stopwatchTick
)

// Stopwatch returns a function that says how long it has been since, without the time
// in which this machine gave its test nothing to run on: a limit that is a rule of the
// agent is no rule of the machine. It counts until t ends.
func Stopwatch(t testing.TB) (took func() time.Duration) {
	ask := make(chan chan<- time.Duration) // capacity 0: who asks waits for what is counted by then
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(stop)
	go func() { // until t ends
		ticker := time.NewTicker(stopwatchTick)
		defer ticker.Stop()
		ran, last := time.Duration(0), time.Now()
		count := func(now time.Time) {
			if gap := now.Sub(last); gap < stalledFrom {
				ran += gap
			} else {
				ran += stopwatchTick
			}
			last = now
		}
		for {
			select {
			case <-ticker.C:
				count(time.Now())
			case to := <-ask:
				count(time.Now())
				to <- ran
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() time.Duration {
		t.Helper()
		answer := make(chan time.Duration, 1) // the counter never waits for who asks
		select {
		case ask <- answer:
			return <-answer
		case <-ctx.Done():
			t.Fatal("a stopwatch is asked after its test")
			return 0
		}
	}
}
