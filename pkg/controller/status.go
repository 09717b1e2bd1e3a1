package controller

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodectl/nodectl/pkg/pod"
)

// podStatus has the newest report of a pod of one workload. Two workloads may make pods of the same
// name. Each such pod has a podStatus, and a report belongs to the pod that the node has.
type podStatus struct {
	layer   string    // of its workload
	owner   types.UID // of its controller
	uid     string
	of      pod.ObjectKey // the workload; zero while no workload has the pod
	seen    bool          // the previous agent had the pod, or this engine has reported it
	current bool          // the pod is in the set that Expand returned last
	kept    bool          // the previous agent had the pod, and this engine has not reported it yet
	gone    bool          // the node has removed the pod
	used    bool          // a workload has the pod, or may have it
	status  *v1.PodStatus // nil: unknown
}

func newPodStatus(s *pod.Spec) *podStatus {
	return &podStatus{layer: s.Origin.Layer(), owner: controllerOf(s.Pod), uid: s.UID()}
}

// controllerOf returns the UID of a pod's controller, or "".
func controllerOf(p *v1.Pod) types.UID {
	if ref := metav1.GetControllerOfNoCopy(p); ref != nil {
		return ref.UID
	}
	return ""
}

// note updates the status by a report about a pod of this name. The report is about another pod if the
// node has another instance under the name, still stops an earlier pod, or has a pod of another
// workload. In these cases the status of this pod is unknown. A pod that left its set is gone once
// another pod has its name.
func (p *podStatus) note(r pod.StatusReport) {
	p.kept = false
	uid, observed := string(r.Pod.UID), r.ObservedUID
	same := uid == p.uid && r.Origin.Layer() == p.layer && controllerOf(r.Pod) == p.owner
	switch {
	case r.Gone, !same && !p.current && !r.NotDesired && observed == uid:
		p.gone, p.status = !p.current, nil
	case !same, observed != "" && observed != uid, p.current && r.NotDesired:
		p.status = nil
	default:
		p.status, p.seen = &r.Pod.Status, true
	}
}

// statusOf returns the status of the pod of a workload, or nil. The caller holds the mutex.
func (c *Controller) statusOf(s *pod.Spec) *podStatus {
	layer, owner := s.Origin.Layer(), controllerOf(s.Pod)
	i := slices.IndexFunc(c.pods[s.Key], func(p *podStatus) bool { return p.layer == layer && p.owner == owner })
	if i < 0 || c.pods[s.Key][i].uid != s.UID() {
		return nil
	}
	return c.pods[s.Key][i]
}

// ensureStatus returns the status of the pod of a workload. If there is none, it adds one, and drops
// that of the pod with another UID that this pod replaces.
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
