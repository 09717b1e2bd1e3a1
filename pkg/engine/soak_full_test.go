//go:build full

package engine

import "testing"

// TestI3_RandomLives_Many_Converge is TestI3_RandomScenariosConverge for more seeds.
//
// Shows: I3
func TestI3_RandomLives_Many_Converge(t *testing.T) { randomLives(t, 2, 60) }
