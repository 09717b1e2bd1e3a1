package engine

import (
	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
)

// seat is the spec by which a pod takes room on the node: the one whose resources
// it was given.
func (e *entry) seat() *pod.Spec {
	if e.given != nil {
		return e.given
	}
	return e.runs
}

// grant is a spec with the resources of another one.
type grant struct{ asked, given, spec *pod.Spec }

// granted is the wanted spec with the resources that the pod is given: others than
// it asks for while a resize is held, also for a container that starts meanwhile
// (C-1.34.1).
func (e *entry) granted() *pod.Spec {
	if e.resize == (refusal{}) || e.want == nil || e.given == nil {
		return e.want
	}
	if e.grant.asked != e.want || e.grant.given != e.given {
		e.grant = grant{e.want, e.given, e.want.WithResourcesOf(e.given)}
	}
	return e.grant.spec
}

// admitEdits judges the seated pods that were edited, in the order in which they
// came, and returns the seats after that: those that ask for other resources
// (C-1.34.3), and those that another instance has to replace. What has to wait goes
// on as it is, and is judged again whenever admission is.
func (l *loop) admitEdits(seats []*pod.Spec) []*pod.Spec {
	for i, seat := range seats {
		e := l.pods[seat.Key]
		if e == nil || e.want == nil || !e.seated || e.want == seat {
			continue
		}
		var resize, refused refusal
		if plan.Replaces(seat, e.want) {
			if _, no := plan.Admit([]*pod.Spec{e.want}, without(seats, i), l.cfg.Node); len(no) > 0 {
				refused = refusal{reason: no[0].Reason, message: no[0].Message}
			}
		} else {
			resize.reason, resize.message = plan.FitResize(e.want, seat, without(seats, i), l.cfg.Node)
		}
		if resize == (refusal{}) && refused == (refusal{}) {
			seats[i], e.given = e.want, e.want
		}
		if e.resize != resize || e.refused != refused {
			if resize != (refusal{}) && e.resize != resize {
				l.log.Warn("Resize held", "pod", e.key.String(), "reason", resize.reason, "message", resize.message)
			}
			if refused != (refusal{}) && e.refused != refused {
				l.log.Warn("Edit refused; the pod goes on as it is", "pod", e.key.String(), "reason", refused.reason, "message", refused.message)
			}
			e.resize, e.refused = resize, refused
			l.send(e, true)
		}
	}
	return seats
}

func without(seats []*pod.Spec, i int) []*pod.Spec {
	return append(append(make([]*pod.Spec, 0, len(seats)), seats[:i]...), seats[i+1:]...)
}
