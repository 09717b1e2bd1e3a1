package agent

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// gcPercent keeps the heap of an idle agent small; the time that this takes is too short
// to be measured. GOGC overrides it.
const gcPercent = 25

const (
	// settleAfter is the time after which the start is over and its memory can be freed.
	settleAfter = 10 * time.Second
	// settleEvery is the interval of checks for memory that a burst has left, for example
	// of many new pods.
	settleEvery = 30 * time.Second
	// settleFrom is the least garbage worth freeing: an idle agent makes that much in a
	// minute or more.
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

// spare returns how many bytes of the heap are garbage, or free and not returned yet.
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
