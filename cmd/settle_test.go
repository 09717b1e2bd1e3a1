//go:build linux

package cmd

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"testing"
	"time"
)

// Where one collection follows another, more garbage is let lie.
func TestGarbageLiesWhileMuchIsDone(t *testing.T) {
	t.Setenv("GOGC", "")
	was := debug.SetGCPercent(100)
	defer debug.SetGCPercent(was)
	s := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	percent := func() uint64 { // without garbage
		metrics.Read(s)
		return s[0].Value.Uint64()
	}
	becomes := func(want uint64, meanwhile func()) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); percent() != want; meanwhile() {
			if time.Now().After(deadline) {
				t.Fatalf("%d %%, want %d", percent(), want)
			}
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	wg.Go(func() { settle(ctx, 3*time.Second) })
	becomes(calmPercent, runtime.Gosched)
	becomes(busyPercent, runtime.GC)
	becomes(calmPercent, runtime.Gosched) // a start is over after a while
}

// What is garbage counts as spare, and what was given back does not.
func TestSpareIsWhatCanBeGivenBack(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // a collection amid what follows would find all of it in use
	debug.FreeOSMemory()
	before := spare()
	hold := make([][]byte, 64)
	for i := range hold {
		hold[i] = make([]byte, 1<<20)
	}
	runtime.KeepAlive(hold)
	if got := spare(); got < before+settleFrom {
		t.Errorf("%d bytes are spare beside 64 MiB of garbage, %d before", got, before)
	}
	hold = nil
	debug.FreeOSMemory()
	if got := spare(); got > 32<<20 {
		t.Errorf("%d bytes are spare after they were given back", got)
	}
}
