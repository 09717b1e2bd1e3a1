package pod

import v1 "k8s.io/api/core/v1"

// QOS returns a pod's QoS class, the API's rule over cpu and memory. Where the
// pod as a whole has resources, they alone count. Otherwise: Guaranteed when
// every container, init containers included, has limits for both and requests
// nothing else; BestEffort when none has any request or limit; Burstable in
// between. A request that is not written equals its limit.
func QOS(spec *v1.PodSpec) v1.PodQOSClass {
	none, guaranteed := true, true
	judge := func(r *v1.ResourceRequirements) {
		for _, name := range [...]v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
			limit, request := r.Limits[name], r.Requests[name]
			if !limit.IsZero() || !request.IsZero() {
				none = false
			}
			if limit.IsZero() || !request.IsZero() && request.Cmp(limit) != 0 {
				guaranteed = false
			}
		}
	}
	if spec.Resources != nil {
		judge(spec.Resources)
	} else {
		for i := range spec.InitContainers {
			judge(&spec.InitContainers[i].Resources)
		}
		for i := range spec.Containers {
			judge(&spec.Containers[i].Resources)
		}
	}
	switch {
	case none:
		return v1.PodQOSBestEffort
	case guaranteed:
		return v1.PodQOSGuaranteed
	}
	return v1.PodQOSBurstable
}
