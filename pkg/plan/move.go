package plan

import (
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podview"
)

// ContainersToMove returns the containers of a pod that have to move to the CPUs shared, the shared
// pool (C-1.46.4). They run or are created, have no exclusive CPUs, and have other CPUs than
// shared.
func ContainersToMove(have pod.Actual, shared string) (list []pod.Container) {
	for _, c := range podview.AllContainers(have) {
		active := c.State == pod.StateRunning || c.State == pod.StateCreated
		if active && c.CPUs != shared && c.Placement.CPUs == "" {
			list = append(list, c)
		}
	}
	return list
}
