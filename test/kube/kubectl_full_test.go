//go:build full

package kube

import (
	"strings"
	"testing"
)

// TestC_1_25_NodeChanges: the Node is deleted, cordoned and drained. No other test runs
// meanwhile.
//
// Shows: C-1.25
func TestC_1_25_NodeChanges(t *testing.T) {
	for _, p := range []part{
		{"F73_Vanishes", (*world).vanishes},
		{"DisruptionBudget", (*world).disruptionBudget},
		{"Drain", (*world).drain},
	} {
		t.Run(p.name, func(t *testing.T) { p.run(shared(t).in(t, strings.ToLower(strings.ReplaceAll(p.name, "_", "-")))) })
	}
}
