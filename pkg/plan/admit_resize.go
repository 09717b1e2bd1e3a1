package plan

import (
	"maps"
	"slices"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Why a resize is not carried out (C-1.34.2).
const (
	deferred   = "Deferred"   // it fits when enough other pods are gone
	infeasible = "Infeasible" // it never fits on this node
)

// Edits judges edits of admitted pods, one after another, each beside all other admitted
// pods. Only NewEdits iterates over all pods; judging an edit does not.
type Edits struct{ a *admission }

// NewEdits returns an Edits for the admitted pods. It does not copy node.UIDs: an entry that
// the caller adds or deletes counts for the edits that are judged after that.
func NewEdits(admitted []*pod.Spec, node Node) *Edits { return &Edits{newAdmission(node, admitted)} }

// Admit judges an edit of an admitted pod from was to want, which needs a new instance. If
// refused, no says why.
func (e *Edits) Admit(want, was *pod.Spec) (no Refusal, refused bool) {
	e.a.leave(was)
	reason, detail := e.a.judge(want)
	e.a.comeBack()
	return refusal(want, reason, detail, reason != "" && want.Origin.FromAPI()), reason != ""
}

// Accept replaces was by want among the admitted pods.
func (e *Edits) Accept(want, was *pod.Spec) {
	e.a.remove(was)
	e.a.add(want)
}

// FitResize returns why a running pod that has the resources of given does not get those of
// want, beside the other admitted pods; "" when it gets them. A request for less, or for the
// same, always fits.
func (e *Edits) FitResize(want, given *pod.Spec) (reason, message string) {
	a := e.a
	a.leave(given)
	defer a.comeBack()
	asked, has := a.requests(want.Pod), a.requests(given.Pod)
	for _, name := range slices.SortedFunc(maps.Keys(asked), fitOrder) {
		n, had, used, capacity := asked[name], has[name], a.used[name], a.node.Allocatable[name]
		sum := used.DeepCopy()
		sum.Add(n)
		switch {
		case n.Cmp(had) <= 0:
		case n.Cmp(capacity) > 0:
			return infeasible, insufficient(name, units(name, n), units(name, used), units(name, capacity))
		case sum.Cmp(capacity) > 0:
			return deferred, insufficient(name, units(name, n), units(name, used), units(name, capacity))
		}
	}
	return "", ""
}

// leave excludes an admitted pod: until comeBack its key, requests, UID and ports do not
// count.
func (a *admission) leave(spec *pod.Spec) {
	a.discount(spec)
	a.away = spec
}

// comeBack includes the pod that leave has excluded.
func (a *admission) comeBack() {
	a.count(a.away)
	a.away = nil
}

// remove removes a pod from the admitted ones.
func (a *admission) remove(spec *pod.Spec) {
	a.discount(spec)
	a.gone[spec] = true
	a.uids[spec.UID()] = slices.DeleteFunc(a.uids[spec.UID()], func(s *pod.Spec) bool { return s == spec })
}
