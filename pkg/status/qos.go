package status

import v1 "k8s.io/api/core/v1"

// qosClass is the API's rule over cpu and memory. Where the pod as a whole has
// resources, they alone count. Otherwise: Guaranteed when every container, init
// containers included, has limits for both and requests nothing else;
// BestEffort when none has any request or limit; Burstable in between. A
// request that is not written equals its limit.
func qosClass(spec *v1.PodSpec) v1.PodQOSClass {
	var all []v1.ResourceRequirements
	if spec.Resources != nil {
		all = append(all, *spec.Resources)
	} else {
		for i := range spec.InitContainers {
			all = append(all, spec.InitContainers[i].Resources)
		}
		for i := range spec.Containers {
			all = append(all, spec.Containers[i].Resources)
		}
	}
	best, guaranteed := true, len(all) > 0
	for _, r := range all {
		for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
			limit, hasLimit := r.Limits[name]
			request, hasRequest := r.Requests[name]
			hasLimit = hasLimit && !limit.IsZero()
			hasRequest = hasRequest && !request.IsZero()
			if hasLimit || hasRequest {
				best = false
			}
			if !hasLimit || hasRequest && request.Cmp(limit) != 0 {
				guaranteed = false
			}
		}
	}
	switch {
	case best:
		return v1.PodQOSBestEffort
	case guaranteed:
		return v1.PodQOSGuaranteed
	}
	return v1.PodQOSBurstable
}
