package status

import (
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// judge fills in started and ready of a container that has probes (C-1.29.16).
func (b *build) judge(st *v1.ContainerStatus, c *v1.Container, r pod.Container) {
	st.Started = new(st.State.Running != nil && b.hasStarted(c, r))
	st.Ready = *st.Started && b.isReady(c, r)
}

// hasStarted reports whether the startup probe of a running container has passed. Before the
// first result it is what was reported of the same container, so that nothing flips when the
// agent restarts.
func (b *build) hasStarted(c *v1.Container, r pod.Container) bool {
	old := b.old[c.Name]
	return b.HasStarted(c, r, old.Started != nil && *old.Started && old.ContainerID == b.containerID(r))
}

// isReady is hasStarted for the readiness probe (P16).
func (b *build) isReady(c *v1.Container, r pod.Container) bool {
	if c.ReadinessProbe == nil {
		return true
	}
	if ok, known := b.Probed(pod.Readiness, r); known {
		return ok
	}
	old := b.old[c.Name]
	return old.Ready && old.ContainerID == b.containerID(r)
}
