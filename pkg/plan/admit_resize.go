package plan

import (
	"maps"
	"slices"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Why a resize is not carried out (C-1.34.2).
const (
	deferred   = "Deferred"   // it may be, when others have left
	infeasible = "Infeasible" // never, on this node
)

// FitResize says why a running pod does not get the resources that want asks for
// beyond those it was given, with the other seated pods beside it; "" when it
// gets them. Asking for less, or for the same, always fits.
func FitResize(want, given *pod.Spec, others []*pod.Spec, node Node) (reason, message string) {
	a := newAdmission(node, others)
	asked, has := a.requests(want.Pod), a.requests(given.Pod)
	for _, name := range slices.SortedFunc(maps.Keys(asked), fitOrder) {
		n, had, used, capacity := asked[name], has[name], a.used[name], node.Allocatable[name]
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
