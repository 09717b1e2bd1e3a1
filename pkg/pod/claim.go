package pod

import (
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

const (
	// ReasonWaitsForClaim is the reason of a pod that waits for a ResourceClaim: it does not exist,
	// is not allocated, or is not reserved for the pod.
	ReasonWaitsForClaim = "WaitsForResourceClaim"
	// ReasonWaitsForDriver is the reason of a pod that waits for the driver of a ResourceClaim.
	ReasonWaitsForDriver = "WaitsForResourceDriver"
	// ReasonPrepareClaims is the kubelet's reason for the event of a pod whose claims cannot be
	// prepared.
	ReasonPrepareClaims = "FailedPrepareDynamicResources"
)

// ClaimAllocation is the devices of one ResourceClaim that a container has.
type ClaimAllocation struct {
	Namespace string        `json:"namespace"`
	Name      string        `json:"name"`
	UID       string        `json:"uid"`
	Devices   []ClaimDevice `json:"devices,omitempty"`
}

// ClaimDevice is one device of a ResourceClaim, as its driver has prepared it.
type ClaimDevice struct {
	Driver   string   `json:"driver"`
	Pool     string   `json:"pool,omitempty"`
	Device   string   `json:"device,omitempty"`
	ShareID  string   `json:"shareID,omitempty"`
	Requests []string `json:"requests,omitempty"` // of the claim, that it serves; empty: all
	CDI      []string `json:"cdi,omitempty"`      // qualified names
}

// DeviceName names a device of a DRA driver.
type DeviceName struct{ Driver, Pool, Device string }

// Name returns the name of the device.
func (d ClaimDevice) Name() DeviceName { return DeviceName{d.Driver, d.Pool, d.Device} }

// DeviceHealth is the health of a device, as its driver reports it.
type DeviceHealth struct {
	Status  v1.ResourceHealthStatus
	Message string
}

// ClaimHolder is a pod whose containers have devices of claims.
type ClaimHolder struct {
	Key
	UID    string
	Claims []ClaimAllocation
}

// extendedClaim is the name of the claim in ClaimsOf that the scheduler has made for extended resources. No
// claim in a pod's spec can have it.
const extendedClaim = "<extended resources>"

// ClaimsOf returns the ResourceClaims that a pod uses: those of its spec, and the one that backs its
// extended resources.
func ClaimsOf(p *v1.Pod) []v1.PodResourceClaim {
	extended := p.Status.ExtendedResourceClaimStatus
	if extended == nil {
		return p.Spec.ResourceClaims
	}
	return append(slices.Clone(p.Spec.ResourceClaims), v1.PodResourceClaim{Name: extendedClaim, ResourceClaimName: &extended.ResourceClaimName})
}

// HasClaims reports whether the pod uses ResourceClaims.
func HasClaims(p *v1.Pod) bool {
	return len(p.Spec.ResourceClaims) > 0 || p.Status.ExtendedResourceClaimStatus != nil
}

// ClaimRequests returns the requests of claims whose devices a container gets, by the claims' names in
// ClaimsOf. The request "" stands for all of a claim.
func ClaimRequests(p *v1.Pod, c *v1.Container) map[string][]string {
	all := make(map[string][]string)
	for _, r := range c.Resources.Claims {
		all[r.Name] = append(all[r.Name], r.Request)
	}
	extended := p.Status.ExtendedResourceClaimStatus
	if extended == nil {
		return all
	}
	for _, m := range extended.RequestMappings {
		name := v1.ResourceName(m.ResourceName)
		if q := c.Resources.Requests[name]; m.ContainerName == c.Name && q.Sign() > 0 && DeviceResource(name) {
			all[extendedClaim] = append(all[extendedClaim], m.RequestName)
		}
	}
	return all
}

// isClaimed reports whether a claim, and no device plugin, provides a resource of a container.
func isClaimed(p *v1.Pod, container string, name v1.ResourceName) bool {
	extended := p.Status.ExtendedResourceClaimStatus
	return extended != nil && DeviceResource(name) && slices.ContainsFunc(extended.RequestMappings, func(m v1.ContainerExtendedResourceRequest) bool {
		return m.ContainerName == container && m.ResourceName == string(name)
	})
}

// WithoutClaimed returns the pod without the resources that a claim provides. The node has none of them.
func WithoutClaimed(p *v1.Pod) *v1.Pod {
	if p.Status.ExtendedResourceClaimStatus == nil {
		return p
	}
	p = p.DeepCopy()
	for _, list := range [][]v1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			claimed := func(name v1.ResourceName, _ resource.Quantity) bool { return isClaimed(p, list[i].Name, name) }
			maps.DeleteFunc(list[i].Resources.Requests, claimed)
			maps.DeleteFunc(list[i].Resources.Limits, claimed)
		}
	}
	return p
}

// ClaimName returns the name of the ResourceClaim that a pod means by one of its claims; "" if the pod
// needs none. owned says that the claim was made for the pod. The texts are the kubelet's.
func ClaimName(p *v1.Pod, of *v1.PodResourceClaim) (name string, owned bool, err error) {
	switch {
	case of.ResourceClaimName != nil && *of.ResourceClaimName != "":
		return *of.ResourceClaimName, false, nil
	case of.ResourceClaimTemplateName != nil:
		for _, s := range p.Status.ResourceClaimStatuses {
			if s.Name == of.Name && s.ResourceClaimName == nil {
				return "", true, nil
			}
			if s.Name == of.Name {
				return *s.ResourceClaimName, true, nil
			}
		}
		return "", false, fmt.Errorf(`pod "%s/%s": ResourceClaim not created yet`, p.Namespace, p.Name)
	}
	return "", false, fmt.Errorf(`pod "%s/%s", spec.resourceClaim %q: none of the supported fields are set`, p.Namespace, p.Name, of.Name)
}
