package plan

import (
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// postStart returns the hook that runs after container name has started, nil for none.
func (s *planner) postStart(name string) *v1.LifecycleHandler {
	if c, _ := s.Want.Container(name); c != nil && c.Lifecycle != nil {
		return c.Lifecycle.PostStart
	}
	return nil
}

// hookDue reports whether the postStart hook of a running container still has to run. The agent
// exited during the hook, or cancelled it because of a newer spec.
func (s *planner) hookDue(c pod.Container) bool {
	return s.Record.ContainerNotes[c.ID].PostStart == pod.HookDue && s.postStart(c.Name) != nil
}

// preStop returns the hook that has to run before c is stopped, nil for none. It is that of the
// recorded spec, even if an edit changed only the hook while c ran. If that spec is unknown or does
// not define c, preStop returns the hook in the annotation of the container. It also does so if c
// was created from another definition.
func (s *planner) preStop(c pod.Container) *v1.LifecycleHandler {
	if c.State != pod.StateRunning || s.Record.ContainerNotes[c.ID].PreStop {
		return nil
	}
	made := s.madeFrom()
	if made == nil || c.Hash != "" && c.Hash != made.ContainerHash(c.Name) {
		return c.PreStop
	}
	switch spec, _ := made.Container(c.Name); {
	case spec == nil:
		return c.PreStop
	case spec.Lifecycle == nil:
		return nil
	default:
		return spec.Lifecycle.PreStop
	}
}

// hookKind names a handler's kind.
func hookKind(h *v1.LifecycleHandler) string {
	switch {
	case h.Exec != nil:
		return "exec"
	case h.HTTPGet != nil:
		return "httpGet"
	case h.Sleep != nil:
		return "sleep"
	}
	return "none"
}
