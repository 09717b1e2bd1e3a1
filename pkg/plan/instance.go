package plan

import (
	"slices"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podview"
)

// Instance returns the number of the instance that v.Want runs as, or is to be
// started as: another one than v.Record.Instance exactly when the newest instance is
// over or was never recorded. It is 0 for a pod that is not wanted. The
// worker asks for the volumes of this instance, and keeps the record of the old
// one (its spec, its end) until this one starts.
func Instance(v View) int { return newScene(v).target }

// Replaces reports whether want runs as another pod than what was made from made:
// under another UID, or edited in what replaces the whole pod.
func Replaces(made, want *pod.Spec) bool {
	if made == nil || want == nil {
		return false
	}
	return made.UID() != want.UID() || compare(made, want).podChanged(made.SandboxHash)
}

// Revives reports whether want may bring back a pod that was made from made and
// has ended (C-1.26.15); what its containers were made from has the last word.
// Nothing brings back one of an API server.
func Revives(made, want *pod.Spec) bool {
	if made == nil || want == nil || want.Origin.FromAPI() {
		return false
	}
	return compare(made, want).contentChanged()
}

// compare is the scene of a pod of which only the specs are known.
func compare(made, want *pod.Spec) *scene {
	v := View{Want: want, Record: pod.Record{Want: made}}
	return &scene{View: v, State: podview.ToPlan(want, v.Have, v.Record, v.Health)}
}

// whyAnew says why Want runs as another instance than the newest; "" when it runs
// as that one, or there is none. The sandbox speaks of the newest instance, or the
// record where that knows of a later one: whose volumes were put and whose sandbox
// was not made yet, or is gone.
//
//	 who speaks         | the newest is over, because
//	--------------------+------------------------------------------------------
//	 runtime, record    | it has another UID
//	 sandbox or record  | it was made from another definition of the pod
//	 the record, of the | it was being stopped, on request or while nothing wanted it
//	 one it knows       | it had ended, and its content was edited (C-1.26.15)
func (s *scene) whyAnew() string {
	want, b := s.Want, s.Have.Sandbox
	byRecord := b == nil || s.InstanceOf(b) < s.Record.Instance
	recorded := byRecord || s.InstanceOf(b) == s.Record.Instance
	made := "" // the hash it was made with
	switch {
	case !byRecord:
		made = b.SandboxHash
	case s.Record.Want != nil:
		made = s.Record.Want.SandboxHash
	}
	switch {
	case s.Have.UID != "" && s.Have.UID != want.UID():
		return "pod uid changed"
	case byRecord && s.Record.Instance == 0: // there is none
		return ""
	case byRecord && s.Record.Want != nil && s.Record.Want.UID() != want.UID():
		return "pod uid changed"
	case s.podChanged(made):
		return s.changedText("pod definition changed")
	case !recorded:
		return ""
	case !s.Record.StopSince.IsZero() && s.Record.StopAsked:
		return "deletion of the pod was requested"
	case !s.Record.StopSince.IsZero():
		return "pod is wanted again while it stops"
	case s.Record.Terminal != "" && !want.Origin.FromAPI() && s.contentChanged():
		return s.changedText("definition changed after the pod had ended")
	}
	return ""
}

// podChanged reports whether the wanted pod differs from the one that was made
// with hash in what replaces the whole pod. Hashes made by other rules say
// nothing: then the kept spec is compared, and without one nothing changed, so
// that no upgrade restarts a pod.
func (s *scene) podChanged(hash string) bool {
	if hash == "" || s.Want.SandboxHash == "" || hash == s.Want.SandboxHash {
		return false
	}
	if pod.HashVersion(hash) == pod.HashVersion(s.Want.SandboxHash) {
		return true
	}
	whole, _, _ := pod.Restart(s.Record.Want, s.Want)
	return whole
}

// contentChanged reports whether a terminal instance was made from another
// content than the wanted one: anything that restarts the pod or a container,
// other resources, or another set of containers. Labels and the like do not bring
// a pod back, and nothing brings back one from an API server.
func (s *scene) contentChanged() bool {
	if s.Record.Want == nil {
		return s.contentDiffersFromRecords()
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
	whole, names, _ := pod.Restart(s.Record.Want, s.Want)
	if whole {
		return true
	}
	// A container that was restarted within the instance has the wanted
	// definition already, however old the kept spec is.
	return slices.ContainsFunc(names, func(name string) bool {
		c, ok := s.Container(name)
		return !ok || c.Hash != s.Want.ContainerHash(name)
	})
}

// contentDiffersFromRecords is contentChanged without a kept spec. An edit of an
// init container that had its turn counts only when the pod ended there.
func (s *scene) contentDiffersFromRecords() bool {
	regular := false
	for name := range s.Have.Containers {
		if !s.knows(name) {
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

// changedText names the fields that changed, where the kept spec tells.
func (s *scene) changedText(what string) string {
	if s.Record.Want == nil {
		return what
	}
	if _, _, reason := pod.RestartByData(s.Record.Want, s.Want); reason != "" {
		return reason
	}
	return what
}
