package controller

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodectl/nodectl/pkg/pod"
)

// podStatus has the newest report of a pod of one workload. Two workloads may ask for one name:
// each has a podStatus of its own, and the reports count for the workload whose pod the node has.
type podStatus struct {
	layer   string    // of its workload
	owner   types.UID // of its controller
	uid     string
	of      pod.ObjectKey // the workload; zero while no workload has the pod
	seen    bool          // the previous agent had it, or this engine has reported it
	current bool          // in the set that Expand returned last
	kept    bool          // of the previous agent, and this engine has not reported it yet
	gone    bool          // nothing is left of it
	used    bool          // a workload has it, or may have it
	status  *v1.PodStatus // nil: unknown
}

func newPodStatus(s *pod.Spec) *podStatus {
	return &podStatus{layer: s.Origin.Layer(), owner: controllerOf(s.Pod), uid: s.UID()}
}

// controllerOf returns the UID of a pod's controller, "" for none.
func controllerOf(p *v1.Pod) types.UID {
	if ref := metav1.GetControllerOfNoCopy(p); ref != nil {
		return ref.UID
	}
	return ""
}

// note takes a report of a pod with this name. While the node shows another instance under the
// name, still stops the pod that had the name before, or has a pod of another workload, nothing is
// known of the pod. A pod that left its set is gone when another one with its name has its place.
func (p *podStatus) note(r pod.StatusReport) {
	p.kept = false
	uid, here := string(r.Pod.UID), r.Here
	same := uid == p.uid && r.Origin.Layer() == p.layer && controllerOf(r.Pod) == p.owner
	switch {
	case r.Gone, !same && !p.current && !r.Unwanted && here == uid:
		p.gone, p.status = !p.current, nil
	case !same, here != "" && here != uid, p.current && r.Unwanted:
		p.status = nil
	default:
		p.status, p.seen = &r.Pod.Status, true
	}
}

// statusOf returns the status of the pod of a workload, nil for none. The caller holds the mutex.
func (c *Controller) statusOf(s *pod.Spec) *podStatus {
	layer, owner := s.Origin.Layer(), controllerOf(s.Pod)
	i := slices.IndexFunc(c.pods[s.Key], func(p *podStatus) bool { return p.layer == layer && p.owner == owner })
	if i < 0 || c.pods[s.Key][i].uid != s.UID() {
		return nil
	}
	return c.pods[s.Key][i]
}

// ensureStatus is statusOf that adds the status of a new pod. That of a pod with another UID, which
// it replaces, is dropped.
func (c *Controller) ensureStatus(s *pod.Spec) *podStatus {
	if p := c.statusOf(s); p != nil {
		return p
	}
	p := newPodStatus(s)
	c.pods[s.Key] = append(slices.DeleteFunc(c.pods[s.Key], func(old *podStatus) bool { return old.layer == p.layer && old.owner == p.owner }), p)
	return p
}

// dropUnused forgets the pods that no workload has.
func (c *Controller) dropUnused() {
	for key, all := range c.pods {
		if all = slices.DeleteFunc(all, func(p *podStatus) bool { return !p.used }); len(all) > 0 {
			c.pods[key] = all
		} else {
			delete(c.pods, key)
		}
	}
}
