package plan_test

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
)

// TestForesee_PodWasEvicted_StartsAgainAfterPressureOnly: a forecast shows that a pod that was evicted
// for pressure starts again, as it does by itself when the pressure has ended. After an eviction for a
// limit of its own storage the pod waits for an edit.
//
// Shows: C-1.35.7, C-1.35.9
func TestForesee_PodWasEvicted_StartsAgainAfterPressureOnly(t *testing.T) {
	t.Parallel()
	for condition, want := range map[v1.NodeConditionType]bool{v1.NodeMemoryPressure: true, "": false} {
		m := newSim()
		f := podShape{policy: "Always", containers: 1}
		runUp(m, &f)
		m.rec.Terminal = v1.PodFailed
		m.rec.Eviction = &pod.Eviction{Instance: m.rec.Instance, Condition: condition}
		got := actions(plan.Foresee(m.view()))
		if again := slices.Contains(got, "run-sandbox") && slices.Contains(got, "start-container c0"); again != want {
			t.Errorf("condition %q: starts again: %t, want %t: %v", condition, again, want, got)
		}
	}
}
