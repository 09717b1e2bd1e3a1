package plan

import (
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	quantity "k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodectl/nodectl/pkg/pod"
)

// The reasons not to carry out a resize (C-1.34.2).
const (
	deferred   = "Deferred"   // it does not fit beside the other pods
	infeasible = "Infeasible" // it would not fit on the empty node either
)

// Edits judges edits of admitted pods, one after another, each beside all other admitted pods.
// NewEdits takes time in proportion to the number of pods; its methods do not.
type Edits struct{ a *admission }

// NewEdits returns an Edits for the admitted pods. It does not copy node.UIDs: an entry that
// the caller adds or deletes counts for the edits that are judged after that.
func NewEdits(admitted []*pod.Spec, node Node) *Edits { return &Edits{newAdmission(node, admitted)} }

// Check judges an edit that needs a new instance: the pod updated would replace the admitted pod
// current. r is the refusal.
func (e *Edits) Check(updated, current *pod.Spec) (r Refusal, refused bool) {
	e.a.exclude(current)
	reason, detail := e.a.judge(updated)
	e.a.include()
	return refusal(updated, reason, detail, reason != "" && reason != pod.ReasonWaitsForDevices && updated.Origin.FromAPI()), reason != ""
}

// Place judges an edit that needs no new instance. Added containers get exclusive CPUs and NUMA
// memory. The memory of removed containers becomes free; their CPUs stay blocked until they have
// stopped. changed says that an allocation has changed. r is the refusal of the edit, or nil.
func (e *Edits) Place(updated, current *pod.Spec) (changed bool, r *Refusal) {
	if e.a.node.CPUs == nil {
		return false, nil
	}
	changed, why := e.a.node.CPUs.Edit(current.Pod, updated.Pod)
	if why == nil {
		return changed, nil
	}
	refused := refusal(updated, why.Reason, why.Message, false)
	return false, &refused
}

// Accept replaces current by updated among the admitted pods. If the edit needs a new instance,
// Accept allocates its exclusive CPUs and NUMA memory. The CPUs of the old instance stay blocked.
func (e *Edits) Accept(updated, current *pod.Spec) {
	if Replaces(current, updated) {
		e.a.exclude(current)
		e.a.place(updated)
		e.a.include()
	}
	e.a.remove(current)
	e.a.add(updated)
}

// FitResize judges a resize of a running pod from the resources of current to those of updated,
// beside the other admitted pods. It returns "" if the resize fits. A request for less, or for the
// same, always fits.
func (e *Edits) FitResize(updated, current *pod.Spec) (reason, message string) {
	a := e.a
	if a.node.Disabled.Has(pod.FeaturePodResize) && !equality.Semantic.DeepEqual(current.Pod.Spec.Resources, updated.Pod.Spec.Resources) {
		return infeasible, pod.FeaturePodResize + " is disabled"
	}
	if a.node.CPUs != nil {
		if message := a.node.CPUs.Infeasible(current.Pod, updated.Pod); message != "" {
			return infeasible, message
		}
	}
	a.exclude(current)
	defer a.include()
	asked, has := a.requests(updated.Pod), a.requests(current.Pod)
	for _, name := range slices.SortedFunc(maps.Keys(asked), fitOrder) {
		n, had, used, capacity := asked[name], has[name], a.used[name], a.capacity(name)
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

// capacity returns the total of a resource that pods may request.
func (a *admission) capacity(name v1.ResourceName) quantity.Quantity {
	if pod.DeviceResource(name) {
		return *quantity.NewQuantity(int64(a.node.Devices[name].Usable), quantity.DecimalSI)
	}
	return a.node.Allocatable[name]
}

// exclude leaves an admitted pod out until include: its key, requests, UID and ports do not
// count.
func (a *admission) exclude(spec *pod.Spec) {
	a.discount(spec)
	a.excluded = spec
}

// include reverts exclude.
func (a *admission) include() {
	a.count(a.excluded)
	a.excluded = nil
}

// remove removes a pod from the admitted ones.
func (a *admission) remove(spec *pod.Spec) {
	a.discount(spec)
	a.replaced[spec] = true
	a.uids[spec.UID()] = slices.DeleteFunc(a.uids[spec.UID()], func(s *pod.Spec) bool { return s == spec })
}
