package plan

import (
	"github.com/nodectl/nodectl/pkg/cpuset"
	"github.com/nodectl/nodectl/pkg/pod"
)

// placeable refuses a pod whose containers cannot get the CPUs and the memory that they request
// for themselves (C-1.46.1).
func (a *admission) placeable(spec *pod.Spec) (reason, detail string) {
	if a.node.CPUs == nil {
		return "", ""
	}
	if r := a.placed(a.node.CPUs.Clone(), spec); r != nil {
		return r.Reason, r.Message
	}
	return "", ""
}

// place gives the containers of a pod what they request for themselves. placeable has accepted the
// pod, or it waits for others.
func (a *admission) place(spec *pod.Spec) {
	if a.node.CPUs != nil {
		_ = a.placed(a.node.CPUs, spec)
	}
}

// placed gives the containers of a pod of the state what they request for themselves. While an
// edit is judged, they get what they have already first.
func (a *admission) placed(s *cpuset.State, spec *pod.Spec) *cpuset.Rejection {
	if a.excluded != nil {
		s.Replace(a.excluded.Pod, spec.Pod)
	}
	return s.Admit(spec.Pod)
}

// terminating reports of which UIDs the admitted pods are that terminate.
func terminating(admitted []*pod.Spec, keys map[pod.Key]bool) func(uid string) bool {
	uids := map[string]bool{}
	for _, spec := range admitted {
		if keys[spec.Key] {
			uids[spec.UID()] = true
		}
	}
	return func(uid string) bool { return uids[uid] }
}
