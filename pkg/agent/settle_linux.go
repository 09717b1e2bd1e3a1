package agent

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// gcPercent keeps the heap of an idle agent small; the cost is too small to measure. GOGC overrides
// it.
const gcPercent = 25

const (
	// settleAfter is the time after which the start counts as over, and settle frees its memory.
	settleAfter = 10 * time.Second
	// settleEvery is the interval of checks for memory that a burst has left, such as the start of
	// many pods.
	settleEvery = 30 * time.Second
	// settleFrom is the minimum of spare memory to free: an idle agent makes less in a minute.
	settleFrom = 2 << 20
)

// settle returns memory to the operating system: first the memory that only the start needed, later
// the memory that only a burst of work needed.
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

// spare returns the bytes of the heap that are garbage, or free and not returned to the operating
// system yet.
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
