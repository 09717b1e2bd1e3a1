package plan

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podspec"
	"github.com/nodectl/nodectl/pkg/podview"
)

// Instance returns the number of the instance that v.Want runs as, or will start as; 0 if
// v.Want is nil. It differs from v.Record.Instance if the pod is new, or a new instance has to
// replace the newest one. It also differs if the record lacks the newest one.
func Instance(v View) int { return newPlanner(v).target }

// Replaces reports whether an edit from old to want needs a new instance. It does if it changes the
// UID or another field that only a new sandbox can change. Replaces returns false if a spec is nil.
func Replaces(old, want *pod.Spec) bool {
	if old == nil || want == nil {
		return false
	}
	return old.UID() != want.UID() || compare(old, want).podChanged(old.SandboxHash)
}

// RestartsTerminated reports whether an edit from old to want may start a terminated pod again
// (C-1.26.15). Next also compares the hashes of its containers, and may find that the pod does
// not start. A pod of an API server never starts again. RestartsTerminated returns false if one of
// the specs is nil.
func RestartsTerminated(old, want *pod.Spec) bool {
	if old == nil || want == nil || want.Origin.FromAPI() {
		return false
	}
	return compare(old, want).contentChanged()
}

// compare returns a planner that can compare two specs of a pod, without a state on the node.
func compare(old, want *pod.Spec) *planner {
	v := View{Want: want, Record: pod.Record{Want: old}}
	return &planner{View: v, State: podview.ToPlan(want, v.Have, v.Record, v.Health)}
}

// whyNewInstance returns the reason why a new instance has to replace the newest one; "" if the
// newest one continues, or there is none yet. The first row that matches decides.
//
//	 the newest instance                                      | as shown by
//	----------------------------------------------------------+-----------------------
//	 has another UID than the desired pod                     | the runtime, the record
//	 was made from another definition of the pod              | the sandbox or the record
//	 was being stopped, on request or while not desired       | the record
//	 has terminated, and its content was edited (C-1.26.15)   | the record
//	 was evicted for pressure of the node that has ended      | the record
//
// The newest instance is that of the newest sandbox or that of the record, whichever is later.
// If a recorded instance has no sandbox, its sandbox was not created yet, or is already removed.
// The last three rows apply only if the record is of the newest instance.
func (s *planner) whyNewInstance() string {
	want, b := s.Want, s.Have.Sandbox
	byRecord := b == nil || s.InstanceOf(b) < s.Record.Instance
	recorded := byRecord || s.InstanceOf(b) == s.Record.Instance
	made := "" // the sandbox hash of the newest instance
	switch {
	case !byRecord:
		made = b.SandboxHash
	case s.Record.Want != nil:
		made = s.Record.Want.SandboxHash
	}
	switch {
	case s.Have.UID != "" && s.Have.UID != want.UID():
		return "pod uid changed"
	case byRecord && s.Record.Instance == 0: // there is no instance
		return ""
	case byRecord && s.Record.Want != nil && s.Record.Want.UID() != want.UID():
		return "pod uid changed"
	case s.podChanged(made):
		return s.changedText("pod definition changed")
	case !recorded:
		return ""
	case !s.Record.StopSince.IsZero() && s.Record.StopAsked:
		return cmp.Or(s.Record.StopReason, "deletion of the pod was requested")
	case !s.Record.StopSince.IsZero():
		return "pod was added again while it was stopping"
	case s.Record.Terminal != "" && !want.Origin.FromAPI() && s.contentChanged():
		return s.changedText("definition changed after the pod had terminated")
	}
	if e := s.Record.Evicted(); e != nil && e.Over {
		return fmt.Sprintf("pod was evicted for %s, and starts again after it", e.Condition)
	}
	return ""
}

// podChanged reports whether the desired pod needs another sandbox than one with this sandbox
// hash. If the hashes have different versions, it compares the recorded spec with the desired
// one instead. Without a recorded spec it reports no change: an upgrade of nodectl may bring a new
// hash version, and must not restart a pod.
func (s *planner) podChanged(hash string) bool {
	if hash == "" || s.Want.SandboxHash == "" || hash == s.Want.SandboxHash {
		return false
	}
	if podspec.HashVersion(hash) == podspec.HashVersion(s.Want.SandboxHash) {
		return true
	}
	whole, _, _ := podspec.Restart(s.Record.Want, s.Want)
	return whole
}

// contentChanged reports whether a terminated instance had other content than the desired pod. The
// content is the set of containers, their resources, and the fields whose edit restarts the pod or
// a container. Labels, probes and other fields that restart nothing do not count.
func (s *planner) contentChanged() bool {
	if s.Record.Want == nil {
		return s.contentDiffersFromContainers()
	}
	for name := range s.Want.ContainerHashes {
		if _, ok := s.Record.Want.ContainerHashes[name]; !ok || len(pod.ResourcesChanged(s.Record.Want.Resources(name), s.Want.Resources(name))) > 0 {
			return true
		}
	}
	for name := range s.Record.Want.ContainerHashes {
		if _, ok := s.Want.ContainerHashes[name]; !ok {
			return true
		}
	}
	whole, names, _ := podspec.Restart(s.Record.Want, s.Want)
	if whole {
		return true
	}
	// A container that was restarted within the instance already has the desired definition,
	// even if the recorded spec is older.
	return slices.ContainsFunc(names, func(name string) bool {
		c, ok := s.Container(name)
		return !ok || c.Hash != s.Want.ContainerHash(name)
	})
}

// contentDiffersFromContainers is contentChanged without a recorded spec: it compares the
// hashes of the containers. An edit of an init container that is no sidecar counts only if no
// regular container exists: the pod has terminated at an init container.
func (s *planner) contentDiffersFromContainers() bool {
	regular := false
	for name := range s.Have.Containers {
		if !s.inSpec(name) {
			return true
		}
	}
	for _, c := range s.Want.Pod.Spec.Containers {
		if r, ok := s.Container(c.Name); ok {
			regular = true
			if s.Changed(r) {
				return true
			}
		}
	}
	for _, c := range s.Want.Pod.Spec.InitContainers {
		if r, ok := s.Container(c.Name); ok && (!regular || pod.Restartable(&c)) && s.Changed(r) {
			return true
		}
	}
	return false
}

// changedText names the fields that changed, where the recorded spec shows them.
func (s *planner) changedText(what string) string {
	if s.Record.Want == nil {
		return what
	}
	if _, _, reason := podspec.RestartByData(s.Record.Want, s.Want); reason != "" {
		return reason
	}
	return what
}
