package plan

import (
	"github.com/nodectl/nodectl/pkg/cpuset"
	"github.com/nodectl/nodectl/pkg/pod"
)

// placeable rejects a pod whose containers cannot get their exclusive CPUs and NUMA memory
// (C-1.46.1).
func (a *admission) placeable(spec *pod.Spec) (reason, detail string) {
	if a.node.CPUs == nil {
		return "", ""
	}
	if r := a.placed(a.node.CPUs.Clone(), spec); r != nil {
		return r.Reason, r.Message
	}
	return "", ""
}

// place allocates exclusive CPUs and NUMA memory to the containers of a pod. placeable has accepted
// the pod, or the pod waits for terminating pods.
func (a *admission) place(spec *pod.Spec) {
	if a.node.CPUs != nil {
		_ = a.placed(a.node.CPUs, spec)
	}
}

// placed allocates exclusive CPUs and NUMA memory to the containers of a pod, in the state s. For
// an edit, the containers first get the allocations of the edited pod.
func (a *admission) placed(s *cpuset.State, spec *pod.Spec) *cpuset.Rejection {
	if a.excluded != nil {
		s.Replace(a.excluded.Pod, spec.Pod)
	}
	return s.Admit(spec.Pod)
}

// terminating returns a function that reports whether a UID belongs to a terminating admitted pod.
func terminating(admitted []*pod.Spec, keys map[pod.Key]bool) func(uid string) bool {
	uids := map[string]bool{}
	for _, spec := range admitted {
		if keys[spec.Key] {
			uids[spec.UID()] = true
		}
	}
	return func(uid string) bool { return uids[uid] }
}
