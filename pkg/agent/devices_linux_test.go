package agent

import (
	"log/slog"
	"reflect"
	"testing"

	"github.com/nodectl/nodectl/pkg/device"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/server"
)

// A container that had its device before the agent started shows it, also while no plugin lists it.
func TestDeviceList_PluginIsAway_ShowsTheDeviceOfTheContainer(t *testing.T) {
	t.Parallel()
	plugins := device.New(device.Config{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	if got := deviceList(plugins); got == nil || len(got) > 0 {
		t.Errorf("without a plugin: %+v", got)
	}
	plugins.Adopt([]pod.DeviceHolder{{
		Key: pod.Key{Namespace: "shop", Name: "web"}, UID: "u",
		Containers: map[string][]pod.DeviceAllocation{"main": {{Resource: "x.com/gpu", Devices: []string{"d1"}}}},
	}}, true)
	want := []server.DeviceResource{{Name: "x.com/gpu", Devices: []server.Device{
		{ID: "d1", Health: "Unlisted", UsedBy: []server.DeviceUser{{Namespace: "shop", Pod: "web", Container: "main"}}},
	}}}
	if got := deviceList(plugins); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// A container without devices, exclusive CPUs and NUMA memory is left out.
func TestAllocationList_ContainerWithoutAllocation_IsLeftOut(t *testing.T) {
	t.Parallel()
	own := pod.Allocation{
		Placement: pod.Placement{CPUs: "2", Memory: []pod.Block{{NUMAAffinity: []int{1}, Type: "memory", Size: 5}}},
		Devices:   []pod.DeviceAllocation{{Resource: "x.com/gpu", Devices: []string{"d1"}, Envs: map[string]string{"A": "hidden"}}},
	}
	got := allocationList([]device.PodAllocation{{Namespace: "shop", Name: "web", Containers: []device.ContainerAllocation{{Name: "plain"}, {Name: "main", Allocation: own}}}})
	want := []server.Allocation{{
		Namespace: "shop", Pod: "web", Container: "main", CPUs: "2",
		Memory:  []server.AllocatedMemory{{Type: "memory", Bytes: 5, NUMANodes: []int{1}}},
		Devices: []server.AllocatedDevices{{Resource: "x.com/gpu", IDs: []string{"d1"}}},
	}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}
