//go:build linux

package cmd

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// How much garbage is let lie, in percent of the heap that is in use. GOGC overrides
// both.
const (
	// calmPercent keeps the heap of an agent that has little to do close to what it
	// needs; the time that takes is too short to be measured.
	calmPercent = 25
	// busyPercent is for one that starts many pods: with the other it would collect
	// its garbage ten times a second, while they wait.
	busyPercent = 100
	// busyWithin is how soon the next two collections come where much is being done.
	busyWithin = 4 * time.Second
)

const (
	// settleAfter is when a start is over, and what it took can be given back.
	settleAfter = 10 * time.Second
	// settleEvery is how often is looked whether something else took much: many pods
	// that came at once.
	settleEvery = 30 * time.Second
	// settleFrom is how much it is worth the trouble for: an agent that has nothing to
	// do makes that much garbage in a minute or more.
	settleFrom = 2 << 20
)

// settle gives the machine back what only the start has needed, and later what only a
// burst of work has. A start is over after so long.
func settle(ctx context.Context, after time.Duration) {
	var percent int
	let := func(n int) {
		if percent != n && os.Getenv("GOGC") == "" {
			percent = n
			debug.SetGCPercent(n)
		}
	}
	let(calmPercent)
	collected := collections(ctx)
	var last [2]time.Time
	look := time.NewTimer(after)
	defer look.Stop()
	for starts := true; ; {
		select {
		case now := <-collected:
			if now.Sub(last[0]) < busyWithin {
				let(busyPercent)
			}
			last[0], last[1] = last[1], now
		case <-look.C:
			if starts || spare() >= settleFrom {
				debug.FreeOSMemory()
			}
			let(calmPercent)
			starts = false
			look.Reset(settleEvery)
		case <-ctx.Done():
			return
		}
	}
}

// collections returns a channel that is sent the time after each collection of
// garbage, until ctx ends; who does not listen misses it.
func collections(ctx context.Context) <-chan time.Time {
	c := make(chan time.Time)     // capacity 0: collections are not kept
	type garbage struct{ _ *int } // with a pointer: such a thing has its own place
	var arm func()
	arm = func() {
		runtime.AddCleanup(&garbage{}, func(struct{}) {
			select {
			case c <- time.Now():
			case <-ctx.Done():
				return
			default:
			}
			arm()
		}, struct{}{})
	}
	arm()
	return c
}

// spare returns how many bytes of the heap are garbage, or free and still held.
func spare() uint64 {
	s := []metrics.Sample{
		{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/free:bytes"}, {Name: "/gc/heap/live:bytes"},
	}
	metrics.Read(s)
	held, live := s[0].Value.Uint64()+s[1].Value.Uint64(), s[2].Value.Uint64()
	if held < live {
		return 0
	}
	return held - live
}
