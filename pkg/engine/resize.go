package engine

import (
	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
)

// seat is the spec by which a pod takes room on the node: the one whose resources
// it was given.
func (e *entry) seat() *pod.Spec {
	if e.given != nil && e.given.UID() == e.runs.UID() {
		return e.given
	}
	return e.runs
}

// admitResizes judges the seated pods that ask for other resources than they were
// given, in the order in which they came, and returns the seats after that. One
// that has to wait is judged again whenever admission is (C-1.34.3).
func (l *loop) admitResizes(seats []*pod.Spec) []*pod.Spec {
	for i, seat := range seats {
		e := l.pods[seat.Key]
		if e == nil || e.want == nil || !e.seated || e.want == seat {
			continue
		}
		reason, message := plan.FitResize(e.want, seat, without(seats, i), l.cfg.Node)
		if reason == "" {
			seats[i], e.given = e.want, e.want
		}
		if now := (refusal{reason: reason, message: message}); e.resize != now {
			e.resize = now
			if reason != "" {
				l.log.Warn("Resize held", "pod", e.key.String(), "reason", reason, "message", message)
			}
			l.send(e, true)
		}
	}
	return seats
}

func without(seats []*pod.Spec, i int) []*pod.Spec {
	return append(append(make([]*pod.Spec, 0, len(seats)), seats[:i]...), seats[i+1:]...)
}
