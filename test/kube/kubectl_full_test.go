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

// TestC_1_25_OtherClients: other clients of the API server delete, recreate or change the
// node's pods, or hold a name that the node needs.
//
// Shows: C-1.25, F73, F74, F75
func TestC_1_25_OtherClients(t *testing.T) {
	t.Parallel()
	shared(t).beside(t,
		part{"F73_Recreated", (*world).recreated},
		part{"F74_ForceDeletion", (*world).forceDeletion},
		part{"F74_Finalizers", (*world).finalizers},
		part{"F74_StatusConflict", (*world).statusConflict},
		part{"F75_NameTaken", (*world).nameTaken},
	)
}
