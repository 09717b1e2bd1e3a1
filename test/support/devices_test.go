//go:build linux

package support

import (
	"context"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// gpus stands for the plugin of example/gpu: a container that requests it gets /dev/gpu.
type gpus struct{}

func (gpus) Changed() <-chan struct{} { return nil }

func (gpus) Supply() map[v1.ResourceName]pod.DeviceSupply {
	return map[v1.ResourceName]pod.DeviceSupply{"example/gpu": {Registered: true, Healthy: 4, Usable: 4}}
}

func (gpus) Reserve([]pod.DeviceReservation) {}

func (gpus) Adopt([]pod.DeviceHolder, bool) {}

func (gpus) Allocate(_ context.Context, q pod.DeviceRequest) ([]pod.DeviceAllocation, error) {
	if c, _ := q.Want.Container(q.Container); len(pod.DeviceRequests(q.Want.Pod, c)) == 0 {
		return nil, nil
	}
	return []pod.DeviceAllocation{{
		Resource: "example/gpu", Devices: []string{"0"},
		Nodes: []pod.DeviceNode{{HostPath: "/dev/null", ContainerPath: "/dev/gpu", Permissions: "rw"}},
	}}, nil
}

func (gpus) Healthy(string, string) bool { return true }

func (gpus) Keep(string, map[string]bool) {}
