//go:build full

package engine

import "testing"

// TestF1_KillAfterEveryCall_NextAgentToo kills the next agent as well, right after its own
// first call.
//
// Shows: F1
func TestF1_KillAfterEveryCall_NextAgentToo(t *testing.T) {
	killEverywhere(t, func(n int) map[int]bool { return map[int]bool{n: true, n + 1: true} })
}
