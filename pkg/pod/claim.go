package pod

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
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

// HasClaims reports whether the pod names ResourceClaims.
func HasClaims(p *v1.Pod) bool { return len(p.Spec.ResourceClaims) > 0 }

// ClaimName returns the name of the ResourceClaim that a pod means by one of its claims; "" if the pod
// needs none. owned says that the claim was made for the pod. The texts are the kubelet's.
func ClaimName(p *v1.Pod, of *v1.PodResourceClaim) (name string, owned bool, err error) {
	switch {
	case of.ResourceClaimName != nil:
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
