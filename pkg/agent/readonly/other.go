//go:build !linux

package readonly

import (
	"context"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/controller"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
)

// observe returns an error: there is no runtime.
func (c Config) observe(context.Context) (machine, error) {
	return nil, NeedsLinux("merge --against runtime")
}

func (Config) halted() (string, error) { return "", nil }

// Records returns no records: there is no agent here.
func (c Config) Records() ([]pod.Record, error) { return nil, nil }

// workloadStates returns no states: there is no agent here.
func (c Config) workloadStates() controller.Store { return nil }

// reported returns no statuses: there is no agent here.
func (c Config) reported() map[pod.Key]*v1.Pod { return nil }

// lastSets returns no last good sets: there is no agent here.
func (c Config) lastSets() func() (map[string]podconfig.Restored, error) { return nil }

// Pods returns an error: there is no node.
func (c Config) Pods(context.Context) ([]v1.Pod, error) {
	return nil, Fail(Failure, NeedsLinux("get pods"), "--server asks another node")
}
