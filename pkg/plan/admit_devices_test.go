package plan_test

import (
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
)

// A pod waits for a plugin that is away, and is refused where fewer devices are free than it
// requests: permanently if an API server's controller can replace it.
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
		{"another pod has unhealthy ones", offers(pod.DeviceSupply{Registered: true, Healthy: 2, Usable: 4}), "", false},
	} {
		for _, source := range []string{"file", "api"} {
			have, want := sized(t, "have", source, two), sized(t, "want", source, two)
			ok, refused := plan.Admit([]*pod.Spec{want}, []*pod.Spec{have}, plan.Node{Devices: it.devices})
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
