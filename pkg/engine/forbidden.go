package engine

import (
	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
)

// forbiddenFor is the result of plan.ForbiddenBy for a spec.
type forbiddenFor struct {
	spec   *pod.Spec
	reason string
}

// forbidden returns why nothing of want may start, see Config.Forbids. It asks once for each
// spec, and logs and sends an event when there is a new reason.
func (w *worker) forbidden(want *pod.Spec) string {
	if want == w.forbiddenFor.spec {
		return w.forbiddenFor.reason
	}
	before := w.forbiddenFor.reason
	w.forbiddenFor = forbiddenFor{want, plan.ForbiddenBy(w.env.forbids, want)}
	if reason := w.forbiddenFor.reason; reason != "" && reason != before {
		w.log.Warn("Not starting containers of the pod; running containers continue", "reason", reason)
		w.event(want, "", pod.EventWarning, eventForbidden, "Not starting containers of the pod, running containers continue: %s", reason)
	}
	return w.forbiddenFor.reason
}
