package pod

import v1 "k8s.io/api/core/v1"

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

// ClaimHolder is a pod whose containers have devices of claims.
type ClaimHolder struct {
	Key
	UID    string
	Claims []ClaimAllocation
}

// HasClaims reports whether the pod names ResourceClaims.
func HasClaims(p *v1.Pod) bool { return len(p.Spec.ResourceClaims) > 0 }
