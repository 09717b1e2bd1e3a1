package engine

import (
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// probeTargets lists the probes of the containers, sidecars among them, that run
// now; st is what is reported of the pod. A pod that ends keeps its readiness
// probes: the others have no say any more (C-1.29.11). Of a pod that shows no
// address nothing is asked over the network: it would be the node that answers.
func probeTargets(spec *pod.Spec, have pod.Actual, st *v1.PodStatus, ending bool) []target {
	var list []target
	add := func(c *v1.Container, shown []v1.ContainerStatus) {
		if c.ReadinessProbe == nil && c.LivenessProbe == nil && c.StartupProbe == nil {
			return
		}
		life, ok := have.Containers[c.Name]
		if !ok || life.State != pod.StateRunning {
			return
		}
		t := target{key: spec.Key, uid: spec.UID(), path: fieldPath(spec, c.Name), container: c, containerID: life.ID, startedAt: life.StartedAt}
		if b := have.Sandbox; b != nil && len(b.IPs) > 0 {
			t.podIP = b.IPs[0]
		}
		for i := range shown {
			if shown[i].Name == c.Name {
				t.ready, t.started = shown[i].Ready, shown[i].Started != nil && *shown[i].Started
			}
		}
		for _, kind := range []pod.ProbeKind{pod.Startup, pod.Liveness, pod.Readiness} {
			t.kind = kind
			p := t.probe()
			if p == nil || ending && kind != pod.Readiness {
				continue
			}
			if t.podIP != "" || p.Exec != nil || spec.Pod.Spec.HostNetwork {
				list = append(list, t)
			}
		}
	}
	for i := range spec.Pod.Spec.InitContainers {
		if c := &spec.Pod.Spec.InitContainers[i]; pod.Restartable(c) {
			add(c, st.InitContainerStatuses)
		}
	}
	for i := range spec.Pod.Spec.Containers {
		add(&spec.Pod.Spec.Containers[i], st.ContainerStatuses)
	}
	return list
}
