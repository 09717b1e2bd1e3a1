//go:build full

package engine

import "testing"

// TestF1_KilledBetweenSetAndRecordNothingGoesBack_Many: as the test of the first tier, with
// more sequences.
//
// Shows: F1
func TestF1_KilledBetweenSetAndRecordNothingGoesBack_Many(t *testing.T) {
	killedBetweenSetAndRecord(t, 60)
}
