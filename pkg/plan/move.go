package plan

import (
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podview"
)

// Moves returns the containers of a pod that have no exclusive CPUs, and whose CPUs differ from the
// shared pool (C-1.46.4).
func Moves(have pod.Actual, shared string) (list []pod.Container) {
	for _, c := range podview.All(have) {
		starts := c.State == pod.StateRunning || c.State == pod.StateCreated
		if starts && c.CPUs != shared && c.Placement.CPUs == "" {
			list = append(list, c)
		}
	}
	return list
}
