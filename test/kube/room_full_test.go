//go:build full

package kube

import "testing"

// TestC_1_31_OutOfPods_500: five hundred pods for a node of 110.
//
// Shows: C-1.31
func TestC_1_31_OutOfPods_500(t *testing.T) {
	w := newWorld(t, "--max-pods", "110")
	w.importImages()
	w.outOfPods(110, 500)
}
