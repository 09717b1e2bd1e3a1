package status_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/plan/plantest"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/status"
)

// A container shows the devices of its claims by the entries of its resources.claims: each device once,
// by its CDI name if it has one, and Unknown if its driver does not report its health. A claim that is
// unprepared is not shown, and neither is a claim of an init container, as in the kubelet.
func TestOf_DevicesOfClaims_AreShownWithTheirHealth(t *testing.T) {
	t.Parallel()
	want, err := plantest.Spec([]byte("metadata: {name: p}\nspec:\n  initContainers: [{name: init, image: i, resources: {claims: [{name: gpu}]}}]\n" +
		"  containers:\n  - {name: a, image: a, resources: {claims: [{name: gpu, request: big/half}, {name: gpu}, {name: nic}, {name: none}, {name: old}]}}\n  - {name: b, image: b}\n"))
	if err != nil {
		t.Fatal(err)
	}
	gpus, none := "gpus", "nones"
	want.Pod.Spec.ResourceClaims = []v1.PodResourceClaim{
		{Name: "gpu", ResourceClaimName: &gpus}, {Name: "nic", ResourceClaimTemplateName: new("nics")}, {Name: "none", ResourceClaimTemplateName: &none}, {Name: "old", ResourceClaimName: new("old")},
	}
	want.Pod.Status.ResourceClaimStatuses = []v1.PodResourceClaimStatus{{Name: "nic", ResourceClaimName: new("p-nic-x7")}, {Name: "none"}}
	claims := []pod.ClaimAllocation{
		{Name: "gpus", UID: "u-gpu", Devices: []pod.ClaimDevice{
			{Driver: "gpu.test", Pool: "n1", Device: "0", Requests: []string{"big"}, CDI: []string{"gpu.test/gpu=0", "gpu.test/gpu=all"}},
			{Driver: "gpu.test", Pool: "n1", Device: "1", Requests: []string{"small"}, CDI: []string{"gpu.test/gpu=1"}},
			{Driver: "gpu.test", Pool: "n1", Device: "1", Requests: []string{"small"}, CDI: []string{"gpu.test/gpu=1"}, ShareID: "s"},
		}},
		{Name: "p-nic-x7", UID: "u-nic", Devices: []pod.ClaimDevice{{Driver: "nic.test", Pool: "n1", Device: "eth1"}}},
		{Name: "old", UID: "u-old", Devices: []pod.ClaimDevice{{Driver: "nic.test", Pool: "n1", Device: "eth2"}}},
	}
	have := pod.Actual{Key: want.Key, UID: want.UID(), Sandbox: &pod.Sandbox{ID: "s", Ready: true}, Containers: map[string]pod.Container{
		"init": {ID: "init", Name: "init", SandboxID: "s", State: pod.StateExited, Claims: claims},
		"a":    {ID: "a", Name: "a", SandboxID: "s", State: pod.StateRunning, Claims: claims},
		"b":    {ID: "b", Name: "b", SandboxID: "s", State: pod.StateRunning},
	}}
	notes := status.Notes{Claims: map[string]map[pod.DeviceName]pod.DeviceHealth{
		"u-gpu": {
			{Driver: "gpu.test", Pool: "n1", Device: "0"}: {Status: v1.ResourceHealthStatusUnhealthy, Message: "too hot"},
			{Driver: "gpu.test", Pool: "n1", Device: "1"}: {Status: v1.ResourceHealthStatusHealthy},
		},
		"u-nic": {},
	}}
	st := status.Of(want, have, pod.Health{}, v1.PodStatus{}, notes, plantest.Now)
	hot := v1.ResourceHealth{ResourceID: "gpu.test/gpu=0", Health: v1.ResourceHealthStatusUnhealthy, Message: new("too hot")}
	wanted := []v1.ResourceStatus{
		{Name: "claim:gpu/big/half", Resources: []v1.ResourceHealth{hot}},
		{Name: "claim:gpu", Resources: []v1.ResourceHealth{hot, {ResourceID: "gpu.test/gpu=1", Health: v1.ResourceHealthStatusHealthy}}},
		{Name: "claim:nic", Resources: []v1.ResourceHealth{{ResourceID: "nic.test/n1/eth1", Health: v1.ResourceHealthStatusUnknown}}},
	}
	if diff := cmp.Diff(wanted, st.ContainerStatuses[0].AllocatedResourcesStatus); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	notes.Disabled = pod.Disabled{pod.FeatureHealthText}
	if silent := status.Of(want, have, pod.Health{}, v1.PodStatus{}, notes, plantest.Now).ContainerStatuses[0].AllocatedResourcesStatus; len(silent) != 3 || silent[0].Resources[0].Message != nil {
		t.Errorf("without messages: %+v", silent)
	}
	notes.Disabled = pod.Disabled{pod.FeatureDeviceHealth}
	if none := status.Of(want, have, pod.Health{}, v1.PodStatus{}, notes, plantest.Now).ContainerStatuses[0].AllocatedResourcesStatus; none != nil {
		t.Errorf("without the health of devices: %+v", none)
	}
	if st.ContainerStatuses[1].AllocatedResourcesStatus != nil || st.InitContainerStatuses[0].AllocatedResourcesStatus != nil {
		t.Errorf("%+v, %+v", st.ContainerStatuses[1].AllocatedResourcesStatus, st.InitContainerStatuses[0].AllocatedResourcesStatus)
	}
}
