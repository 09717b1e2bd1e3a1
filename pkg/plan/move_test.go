package plan_test

import (
	"fmt"
	"testing"

	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
)

// Shows: C-1.46.4
func TestMoves_Containers_AreThoseOnOtherSharedCPUs(t *testing.T) {
	t.Parallel()
	c := func(id string, state pod.ContainerState, cpus string, p pod.Placement) pod.Container {
		return pod.Container{ID: id, Name: id, State: state, CPUs: cpus, Placement: p}
	}
	have := pod.Actual{
		Containers: map[string]pod.Container{
			"a": c("a", pod.StateRunning, "0-3", pod.Placement{Shared: "0-3"}),
			"b": c("b", pod.StateRunning, "0,2-3", pod.Placement{Shared: "0-3"}),
			"c": c("c", pod.StateRunning, "1", pod.Placement{CPUs: "1"}),
			"d": c("d", pod.StateCreated, "", pod.Placement{}),
			"e": c("e", pod.StateExited, "0-3", pod.Placement{}),
		},
		Dead: []pod.Container{c("f", pod.StateRunning, "0-3", pod.Placement{})},
	}
	var got []string
	for _, c := range plan.ContainersToMove(have, "0,2-3") {
		got = append(got, c.ID)
	}
	if fmt.Sprint(got) != "[a d f]" {
		t.Errorf("%s", got)
	}
}
