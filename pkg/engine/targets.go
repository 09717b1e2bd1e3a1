package engine

import (
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/prober"
)

// probeTargets lists the probes of the running containers and sidecars; st is the reported
// status. A terminating pod keeps only its readiness probes (C-1.29.11). A pod without an
// address has no network probes: they would connect to the node itself.
func probeTargets(spec *pod.Spec, have pod.Actual, st *v1.PodStatus, ending bool) []prober.Target {
	var list []prober.Target
	add := func(c *v1.Container, shown []v1.ContainerStatus) {
		if c.ReadinessProbe == nil && c.LivenessProbe == nil && c.StartupProbe == nil {
			return
		}
		run, ok := have.Containers[c.Name]
		if !ok || run.State != pod.StateRunning {
			return
		}
		t := prober.Target{Key: spec.Key, UID: spec.UID(), Path: fieldPath(spec, c.Name), Container: c, ContainerID: run.ID, StartedAt: run.StartedAt}
		if b := have.Sandbox; b != nil && len(b.IPs) > 0 {
			t.PodIP = b.IPs[0]
		}
		for i := range shown {
			if shown[i].Name == c.Name {
				t.Ready, t.Started = shown[i].Ready, shown[i].Started != nil && *shown[i].Started
			}
		}
		for _, kind := range []pod.ProbeKind{pod.Startup, pod.Liveness, pod.Readiness} {
			t.Kind = kind
			p := t.Probe()
			if p == nil || ending && kind != pod.Readiness {
				continue
			}
			if t.PodIP != "" || p.Exec != nil || spec.Pod.Spec.HostNetwork {
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
