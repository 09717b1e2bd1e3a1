package plan_test

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
)

// A pod waits for a plugin that is not connected. Admission refuses a pod that requests more devices
// than are free: finally if an API server's controller can replace it.
//
// Shows: C-1.31.6
func TestAdmit_ExtendedResources_WaitOrAreRefused(t *testing.T) {
	t.Parallel()
	const gpu v1.ResourceName = "x.com/gpu"
	const two = "containers: [{name: c, image: i, resources: {limits: {x.com/gpu: 2}, requests: {x.com/gpu: 2}}}]"
	offers := func(s pod.DeviceSupply) map[v1.ResourceName]pod.DeviceSupply {
		return map[v1.ResourceName]pod.DeviceSupply{gpu: s}
	}
	const few = "UnexpectedAdmissionError: Allocate failed due to requested number of devices unavailable for x.com/gpu. Requested: 2, Available: 1, which is unexpected"
	const stops = "WaitsForDevicePlugin: waiting for the devices of pods that stop: Allocate failed due to requested number of devices unavailable for x.com/gpu. Requested: 2, Available: 1, which is unexpected"
	for _, it := range []struct {
		name    string
		devices map[v1.ResourceName]pod.DeviceSupply
		want    string
		final   bool
	}{
		{"not limited", nil, "", false},
		{"nothing serves it", map[v1.ResourceName]pod.DeviceSupply{}, "WaitsForDevicePlugin: waiting for a device plugin: cannot allocate unregistered device x.com/gpu", false},
		{"the plugin is away", offers(pod.DeviceSupply{Usable: 4}), "WaitsForDevicePlugin: waiting for a device plugin: cannot allocate unregistered device x.com/gpu", false},
		{"none is healthy", offers(pod.DeviceSupply{Registered: true, Usable: 4}), "WaitsForDevicePlugin: waiting for a device plugin: no healthy devices present; cannot allocate unhealthy devices x.com/gpu", false},
		{"another pod has them", offers(pod.DeviceSupply{Registered: true, Healthy: 3, Usable: 3}), few, true},
		{"the Node advertises enough", offers(pod.DeviceSupply{Advertised: true, Registered: true, Healthy: 4, Usable: 4}), "", false},
		{"the Node advertises too few", offers(pod.DeviceSupply{Advertised: true, Registered: true, Healthy: 3, Usable: 3}), "OutOfx.com/gpu: Node didn't have enough resource: x.com/gpu, requested: 2, used: 2, capacity: 3", true},
		{"another pod has them, and stops", offers(pod.DeviceSupply{Registered: true, Healthy: 3, Usable: 3}), stops, false},
		{"another pod has unhealthy ones", offers(pod.DeviceSupply{Registered: true, Healthy: 2, Usable: 4}), "", false},
	} {
		for _, source := range []string{"file", "api"} {
			have, want := sized(t, "have", source, two), sized(t, "want", source, two)
			node := plan.Node{Devices: it.devices}
			if strings.Contains(it.name, "stop") {
				node.Terminating = map[pod.Key]bool{have.Key: true}
			}
			ok, refused := plan.Admit([]*pod.Spec{want}, []*pod.Spec{have}, node)
			got, final := "", false
			if len(ok) == 0 {
				got, final = refused[0].Reason+": "+refused[0].Message, refused[0].Final
			}
			if got != it.want || final != (it.final && source == "api") {
				t.Errorf("%s, %s: %q, final %t", it.name, source, got, final)
			}
		}
	}
}

// A pod whose extended resource a ResourceClaim provides needs no device plugin, and takes none of a
// plugin's devices. A container whose resource is not mapped to the claim waits for the plugin.
func TestAdmit_ResourceOfAClaim_NeedsNoPlugin(t *testing.T) {
	t.Parallel()
	const one = "containers: [{name: c, image: i, resources: {limits: {x.com/gpu: 1, cpu: 1}, requests: {x.com/gpu: 1, cpu: 1}}}]"
	backed := func(name, container string) *pod.Spec {
		s := sized(t, name, "api", one)
		s.Pod.Status.ExtendedResourceClaimStatus = &v1.PodExtendedResourceClaimStatus{ResourceClaimName: "x", RequestMappings: []v1.ContainerExtendedResourceRequest{
			{ContainerName: container, ResourceName: "x.com/gpu", RequestName: "container-0-request-0"},
		}}
		return s
	}
	none := plan.Node{Devices: map[v1.ResourceName]pod.DeviceSupply{}, Allocatable: amounts("cpu", "2")}
	if ok, refused := plan.Admit([]*pod.Spec{backed("a", "c"), backed("b", "c")}, nil, none); len(ok) != 2 {
		t.Errorf("without a plugin: %+v", refused)
	}
	if ok, refused := plan.Admit([]*pod.Spec{backed("a", "c"), backed("b", "c"), backed("d", "c")}, nil, none); len(ok) != 2 || refused[0].Reason != "OutOfcpu" {
		t.Errorf("its other resources: %+v", refused)
	}
	if ok, refused := plan.Admit([]*pod.Spec{backed("a", "other")}, nil, none); len(ok) != 0 || refused[0].Reason != pod.ReasonWaitsForDevices {
		t.Errorf("not mapped: %+v", refused)
	}
	class := sized(t, "a", "api", "containers: [{name: c, image: i, resources: {limits: {deviceclass.resource.kubernetes.io/fast: 1}, requests: {deviceclass.resource.kubernetes.io/fast: 1}}}]")
	if ok, refused := plan.Admit([]*pod.Spec{class}, nil, none); len(ok) != 0 || refused[0].Reason != pod.ReasonWaitsForDevices {
		t.Errorf("of a DeviceClass, without a claim: %+v", refused)
	}
	class.Pod.Status.ExtendedResourceClaimStatus = &v1.PodExtendedResourceClaimStatus{ResourceClaimName: "x", RequestMappings: []v1.ContainerExtendedResourceRequest{
		{ContainerName: "c", ResourceName: "deviceclass.resource.kubernetes.io/fast", RequestName: "container-0-request-0"},
	}}
	if ok, refused := plan.Admit([]*pod.Spec{class}, nil, none); len(ok) != 1 {
		t.Errorf("of a DeviceClass: %+v", refused)
	}
	last := plan.Node{Devices: map[v1.ResourceName]pod.DeviceSupply{"x.com/gpu": {Registered: true, Healthy: 1, Usable: 1}}}
	if ok, refused := plan.Admit([]*pod.Spec{sized(t, "b", "api", one)}, []*pod.Spec{backed("a", "c")}, last); len(ok) != 1 {
		t.Errorf("it takes a device of the plugin: %+v", refused)
	}
}
