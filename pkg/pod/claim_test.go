package pod_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodectl/nodectl/pkg/pod"
)

// needs returns a container that requests resources, one of each.
func needs(name string, resources ...v1.ResourceName) v1.Container {
	c := v1.Container{Name: name}
	c.Resources.Requests, c.Resources.Limits = v1.ResourceList{}, v1.ResourceList{}
	for _, r := range resources {
		c.Resources.Requests[r], c.Resources.Limits[r] = resource.MustParse("1"), resource.MustParse("1")
	}
	return c
}

// The scheduler has made a claim for some of a pod's extended resources. These are no requests of device
// plugins and of the node, and each container gets the requests of the claim that are mapped to it. A
// mapping names neither a resource that the container does not request, nor CPU or memory.
func TestClaims_ExtendedResources_AreMappedToContainers(t *testing.T) {
	t.Parallel()
	p := &v1.Pod{}
	p.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "nic", ResourceClaimName: new("nics")}}
	p.Spec.InitContainers = []v1.Container{needs("init", "x.com/gpu", v1.ResourceCPU)}
	p.Spec.Containers = []v1.Container{needs("a", "x.com/gpu", "y.com/dsp", "deviceclass.resource.kubernetes.io/fast", v1.ResourceMemory), needs("b", "x.com/gpu")}
	p.Spec.Containers[0].Resources.Claims = []v1.ResourceClaim{{Name: "nic", Request: "one"}}
	if got := pod.WithoutClaimed(p); got != p {
		t.Error("a pod without such a claim is copied")
	}
	if got := pod.DeviceRequests(p, &p.Spec.Containers[1]); !cmp.Equal(got, map[string]int{"x.com/gpu": 1}) || len(pod.ClaimsOf(p)) != 1 {
		t.Errorf("without the claim: %v", got)
	}
	before := p.DeepCopy()
	p.Status.ExtendedResourceClaimStatus = &v1.PodExtendedResourceClaimStatus{ResourceClaimName: "p-extended-x7", RequestMappings: []v1.ContainerExtendedResourceRequest{
		{ContainerName: "init", ResourceName: "x.com/gpu", RequestName: "container-0-request-0"},
		{ContainerName: "a", ResourceName: "x.com/gpu", RequestName: "container-1-request-0"},
		{ContainerName: "a", ResourceName: "x.com/gpu", RequestName: "container-1-request-1"},
		{ContainerName: "a", ResourceName: "deviceclass.resource.kubernetes.io/fast", RequestName: "container-1-request-2"},
		{ContainerName: "a", ResourceName: "z.com/none", RequestName: "container-1-request-3"},
		{ContainerName: "a", ResourceName: "memory", RequestName: "container-1-request-4"},
	}}
	used := pod.ClaimsOf(p)
	if len(used) != 2 || !pod.HasClaims(p) || len(p.Spec.ResourceClaims) != 1 {
		t.Fatalf("%+v", used)
	}
	if name, owned, err := pod.ClaimName(p, &used[1]); name != "p-extended-x7" || owned || err != nil {
		t.Errorf("%s, %t, %v", name, owned, err)
	}
	special := used[1].Name
	for i, want := range []map[string][]string{
		{"nic": {"one"}, special: {"container-1-request-0", "container-1-request-1", "container-1-request-2"}}, {},
	} {
		if diff := cmp.Diff(want, pod.ClaimRequests(p, &p.Spec.Containers[i])); diff != "" {
			t.Errorf("container %d (-want +got):\n%s", i, diff)
		}
	}
	if diff := cmp.Diff(map[string][]string{special: {"container-0-request-0"}}, pod.ClaimRequests(p, &p.Spec.InitContainers[0])); diff != "" {
		t.Errorf("init container (-want +got):\n%s", diff)
	}
	for want, c := range map[string]*v1.Container{"": &p.Spec.InitContainers[0], "y.com/dsp": &p.Spec.Containers[0], "x.com/gpu": &p.Spec.Containers[1]} {
		got := pod.DeviceRequests(p, c)
		if got[want] != 1 && want != "" || len(got) > 1 || len(got) > 0 && want == "" {
			t.Errorf("%s requests of plugins %v, want %s", c.Name, got, want)
		}
	}
	without := pod.WithoutClaimed(p)
	for i, want := range []v1.Container{needs("a", "y.com/dsp", v1.ResourceMemory), needs("b", "x.com/gpu")} {
		want.Resources.Claims = p.Spec.Containers[i].Resources.Claims
		if diff := cmp.Diff(want, without.Spec.Containers[i]); diff != "" {
			t.Errorf("of the node (-want +got):\n%s", diff)
		}
	}
	if diff := cmp.Diff(needs("init", v1.ResourceCPU), without.Spec.InitContainers[0]); diff != "" {
		t.Errorf("of the node (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before.Spec, p.Spec); diff != "" {
		t.Errorf("the pod has changed (-before +now):\n%s", diff)
	}
}

// A claim without a name is no claim that a pod can do without.
func TestClaimName_NoName_IsAnError(t *testing.T) {
	t.Parallel()
	p := &v1.Pod{}
	p.Namespace, p.Name = "shop", "p"
	p.Status.ExtendedResourceClaimStatus = &v1.PodExtendedResourceClaimStatus{}
	used := append(pod.ClaimsOf(p), v1.PodResourceClaim{Name: "a", ResourceClaimName: new("")}, v1.PodResourceClaim{Name: "b"})
	for i := range used {
		if name, _, err := pod.ClaimName(p, &used[i]); err == nil {
			t.Errorf("%+v has the name %q", used[i], name)
		}
	}
}
