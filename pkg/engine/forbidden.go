package engine

import (
	"github.com/nodectl/nodectl/pkg/pod"
)

// judgement is what Config.Forbids said of a spec.
type judgement struct {
	of  *pod.Spec
	why string
}

// forbids says why nothing of a pod may start, "" when it may. A pod that is being
// deleted starts nothing, and stops whatever it asks for.
func (c *Config) forbids(want *pod.Spec) string {
	if c.Forbids == nil || want == nil || deleting(want) {
		return ""
	}
	return c.Forbids(want)
}

// forbidden is forbids, asked once for each spec. It reports a change once.
func (w *worker) forbidden(want *pod.Spec) string {
	if want == w.judged.of {
		return w.judged.why
	}
	was := w.judged.why
	w.judged = judgement{want, w.cfg.forbids(want)}
	if why := w.judged.why; why != "" && why != was {
		w.log.Warn("Nothing of the pod starts; what runs of it goes on", "reason", why)
		w.event(want, "", pod.EventWarning, eventForbidden, "Nothing of the pod starts, what runs of it goes on: %s", why)
	}
	return w.judged.why
}
