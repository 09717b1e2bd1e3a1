//go:build linux

package cmd

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// settleEvery is how often is looked how much there was to do.
	settleEvery = 10 * time.Second
	// settleBusy is what an agent that works allocates between two looks at least; 110
	// pods that nothing happens to, a tenth of it.
	settleBusy = 4 << 20
	// settleFrom is how much it is worth the trouble for to give memory back.
	settleFrom = 2 << 20
)

// The garbage collector's targets. An agent that has little to do keeps its heap close
// to what it needs; one that starts many pods has no time for that. GOGC overrides
// both.
const (
	gcIdle = 25
	gcBusy = 100
)

// settle gives the machine back what only the start has needed, and later what only a
// burst of work has.
func settle(ctx context.Context) {
	tick := time.NewTicker(settleEvery)
	defer tick.Stop()
	for last := uint64(0); ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		now := allocated()
		target, busy := gcIdle, now-last >= settleBusy
		if last = now; busy {
			target = gcBusy
		}
		if os.Getenv("GOGC") == "" {
			debug.SetGCPercent(target)
		}
		if !busy && spare() >= settleFrom {
			debug.FreeOSMemory()
		}
	}
}

// allocated returns how many bytes were ever allocated.
func allocated() uint64 {
	s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
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
