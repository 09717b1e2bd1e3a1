package pod

import v1 "k8s.io/api/core/v1"

// WithResourcesOf returns s with the resources of given, for the pod and for each
// container, while those of s are not in effect. Its hashes are those of s.
func (s *Spec) WithResourcesOf(given *Spec) *Spec {
	out := *s
	out.Pod = s.Pod.DeepCopy()
	out.Pod.Spec.Resources = given.Pod.Spec.Resources.DeepCopy()
	for _, list := range [][]v1.Container{out.Pod.Spec.InitContainers, out.Pod.Spec.Containers} {
		for i := range list {
			if c, _ := given.Container(list[i].Name); c != nil {
				c.Resources.DeepCopyInto(&list[i].Resources)
			}
		}
	}
	return &out
}
