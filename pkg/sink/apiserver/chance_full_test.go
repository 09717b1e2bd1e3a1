//go:build full

package apiserver

import "testing"

// TestRandomFailures_Many: as TestRandomFailures, with more sequences.
func TestRandomFailures_Many(t *testing.T) {
	t.Parallel()
	randomFailures(t, 150)
}
