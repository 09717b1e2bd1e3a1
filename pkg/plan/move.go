package plan

import (
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podview"
)

// Moves returns the containers of a pod that have no CPUs for themselves, and may run on others
// than those that all such containers share (C-1.46.4).
func Moves(have pod.Actual, shared string) (list []pod.Container) {
	for _, c := range podview.All(have) {
		starts := c.State == pod.StateRunning || c.State == pod.StateCreated
		if starts && c.CPUs != shared && c.Placement.CPUs == "" {
			list = append(list, c)
		}
	}
	return list
}
