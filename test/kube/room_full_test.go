//go:build full

package kube

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestC_1_31_OutOfPods_500: five hundred pods are bound at once to a node of 30. As many as fit
// run, and the others have failed, each with its reason.
//
// Shows: C-1.31
func TestC_1_31_OutOfPods_500(t *testing.T) {
	w := newWorld(t, "--max-pods", "30")
	w.importImages()
	w.outOfPods(30, 500)
}

// outOfPods binds pods to an empty node that has room for fewer.
func (w *world) outOfPods(room, pods int) {
	w.Helper()
	var all strings.Builder
	for i := range pods {
		all.WriteString(strings.Replace(shell(fmt.Sprintf("many-%03d", i), sleeps), "spec:\n", "spec:\n  nodeName: "+w.name+"\n", 1) + "---\n")
	}
	w.apply(all.String())
	phases := func(phase string) int {
		return len(strings.Fields(w.kubectl("get", "pods", "--field-selector", "status.phase="+phase, "-o", "name")))
	}
	w.await(func() error {
		if runs, failed := phases("Running"), phases("Failed"); runs != room || failed != pods-room {
			return fmt.Errorf("%d run, %d have failed", runs, failed)
		}
		return nil
	})
	reasons := strings.Fields(w.kubectl("get", "pods", "--field-selector", "status.phase=Failed", "-o", "jsonpath={.items[*].status.reason}"))
	slices.Sort(reasons)
	if reasons = slices.Compact(reasons); len(reasons) != 1 || reasons[0] != "OutOfpods" {
		w.Errorf("reasons %v", reasons)
	}
}
