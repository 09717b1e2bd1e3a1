//go:build full

package cgroup

import "testing"

// TestF3_KilledAtAnyMoment_Many: as TestF3_KilledAtAnyMoment, with more kills.
//
// Shows: F3, F34
func TestF3_KilledAtAnyMoment_Many(t *testing.T) { killedAtAnyMoment(t, 40) }
