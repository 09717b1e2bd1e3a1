package engine

import (
	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
)

// judgement is the result of plan.ForbiddenBy for a spec.
type judgement struct {
	of  *pod.Spec
	why string
}

// forbidden returns why nothing of want may start, see Config.Forbids. It asks once for each
// spec, and logs and sends an event when there is a new reason.
func (w *worker) forbidden(want *pod.Spec) string {
	if want == w.judged.of {
		return w.judged.why
	}
	was := w.judged.why
	w.judged = judgement{want, plan.ForbiddenBy(w.env.forbids, want)}
	if why := w.judged.why; why != "" && why != was {
		w.log.Warn("Not starting containers of the pod; running containers continue", "reason", why)
		w.event(want, "", pod.EventWarning, eventForbidden, "Not starting containers of the pod, running containers continue: %s", why)
	}
	return w.judged.why
}
