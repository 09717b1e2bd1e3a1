//go:build full

package apiserver

import "testing"

// TestWhateverHappens_Many: as TestWhateverHappens, with more sequences.
func TestWhateverHappens_Many(t *testing.T) {
	t.Parallel()
	whateverHappens(t, 150)
}
