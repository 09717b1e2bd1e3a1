package metrics

import v1 "k8s.io/api/core/v1"

// volumeKind is a series of volume_manager_total_volumes.
type volumeKind struct{ plugin, state string }

// count adds the volumes of a pod that its containers mount.
func count(all map[volumeKind]int, state string, p *v1.Pod) {
	used := map[string]bool{}
	use := func(mounts []v1.VolumeMount, devices []v1.VolumeDevice) {
		for i := range mounts {
			used[mounts[i].Name] = true
		}
		for i := range devices {
			used[devices[i].Name] = true
		}
	}
	for i := range p.Spec.InitContainers {
		use(p.Spec.InitContainers[i].VolumeMounts, p.Spec.InitContainers[i].VolumeDevices)
	}
	for i := range p.Spec.Containers {
		use(p.Spec.Containers[i].VolumeMounts, p.Spec.Containers[i].VolumeDevices)
	}
	for i := range p.Spec.EphemeralContainers {
		use(p.Spec.EphemeralContainers[i].VolumeMounts, p.Spec.EphemeralContainers[i].VolumeDevices)
	}
	for i := range p.Spec.Volumes {
		if v := &p.Spec.Volumes[i]; used[v.Name] {
			all[volumeKind{plugin(v), state}]++
		}
	}
}

// plugin is the kubelet's name of a volume's plugin. All claims have one name here: the pod
// does not have their target.
func plugin(v *v1.Volume) string {
	switch {
	case v.EmptyDir != nil:
		return "kubernetes.io/empty-dir"
	case v.ConfigMap != nil:
		return "kubernetes.io/configmap"
	case v.Secret != nil:
		return "kubernetes.io/secret"
	case v.Projected != nil:
		return "kubernetes.io/projected"
	case v.DownwardAPI != nil:
		return "kubernetes.io/downward-api"
	case v.HostPath != nil:
		return "kubernetes.io/host-path"
	case v.PersistentVolumeClaim != nil:
		return "kubernetes.io/persistent-claim"
	case v.Image != nil:
		return "kubernetes.io/image"
	}
	return "other"
}
