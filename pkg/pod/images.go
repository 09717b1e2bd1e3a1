package pod

import (
	"slices"

	v1 "k8s.io/api/core/v1"
)

// Images returns the names of the images that a pod needs, each once: those of its
// containers of any kind, and those that it mounts as volumes.
func Images(p *v1.Pod) []string {
	var all []string
	add := func(name string) {
		if name != "" && !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	for i := range p.Spec.InitContainers {
		add(p.Spec.InitContainers[i].Image)
	}
	for i := range p.Spec.Containers {
		add(p.Spec.Containers[i].Image)
	}
	for i := range p.Spec.EphemeralContainers {
		add(p.Spec.EphemeralContainers[i].Image)
	}
	for i := range p.Spec.Volumes {
		if v := p.Spec.Volumes[i].Image; v != nil {
			add(v.Reference)
		}
	}
	return all
}
