package agent

import (
	"runtime"
	"runtime/debug"
	"testing"
)

// Garbage counts as spare; memory that was returned does not.
func TestSpare_Garbage_CountsUntilReturned(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // a collection during the next lines would find all of it in use
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
	debug.FreeOSMemory()
	if got := spare(); got > 32<<20 {
		t.Errorf("%d bytes are spare after they were given back", got)
	}
}
