//go:build full

package engine

import "testing"

// TestHang_DependencyOfOnePod_FiftyOthersAreNotAffected is
// TestHang_DependencyOfOnePod_OthersAreNotAffectedAndItIsNamed with fifty pods.
//
// Shows: F22
func TestHang_DependencyOfOnePod_FiftyOthersAreNotAffected(t *testing.T) { hangBeside(t, 50) }
