package status

import (
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// setProbed fills in Started and Ready of a regular container or a sidecar (C-1.29.16).
func (b *build) setProbed(st *v1.ContainerStatus, c *v1.Container, r pod.Container) {
	st.Started = new(st.State.Running != nil && b.passedStartup(c, r))
	st.Ready = *st.Started && b.passedReadiness(c, r)
}

// passedStartup reports whether a running container has passed its startup probe, or has none.
// Until the first result it returns the last reported value of this container, so that Started does
// not flip when the agent restarts.
func (b *build) passedStartup(c *v1.Container, r pod.Container) bool {
	old := b.old[c.Name]
	return b.HasStarted(c, r, old.Started != nil && *old.Started && old.ContainerID == b.containerID(r))
}

// passedReadiness reports whether a running container passes its readiness probe, or has none.
// Until the first result it returns the last reported value of this container (P16).
func (b *build) passedReadiness(c *v1.Container, r pod.Container) bool {
	if c.ReadinessProbe == nil {
		return true
	}
	if ok, known := b.ProbeStatus(pod.Readiness, r); known {
		return ok
	}
	old := b.old[c.Name]
	return old.Ready && old.ContainerID == b.containerID(r)
}
