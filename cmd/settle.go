//go:build linux

package cmd

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// gcPercent keeps the heap of an agent that has little to do close to what it
// needs; the time that takes is too short to be measured. GOGC overrides it.
const gcPercent = 25

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
// burst of work has.
func settle(ctx context.Context) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	wait := settleAfter
	for {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
		if wait == settleAfter || spare() >= settleFrom {
			debug.FreeOSMemory()
		}
		wait = settleEvery
	}
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
