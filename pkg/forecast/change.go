package forecast

import (
	"slices"
	"strings"

	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/podspec"
	"github.com/nodectl/nodectl/pkg/podview"
)

func hashReason(c Change) string {
	switch {
	case c.RestartPod:
		return "the hash of the pod differs"
	case len(c.RestartContainers) > 0:
		return "the hash of the container differs"
	}
	return ""
}

// ofContainer reports whether a field path is in a container.
func ofContainer(path, name string) bool {
	for _, list := range []string{"spec.containers[", "spec.initContainers["} {
		if strings.HasPrefix(path, list+name+"]") {
			return true
		}
	}
	return false
}

// unknown returns the containers, sorted, that the steps stop because New does not
// name them. Where the whole pod restarts it returns none.
func (c Change) unknown() []string {
	var out []string
	for _, s := range c.Steps {
		if s.Action == plan.StopContainer && !c.RestartPod && !hasContainer(c.New, s.Container) {
			out = append(out, s.Container)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// hasContainer reports whether s has a container of this name.
func hasContainer(s *pod.Spec, container string) bool {
	c, _ := s.Container(container)
	return c != nil
}

func changeOf(want, was *pod.Spec) Change {
	return Change{Op: podconfig.UPDATE, Key: want.Key, Old: was, New: want, Source: want.Origin.Source, Origin: want.Origin, UID: want.UID()}
}

// change records c, or counts an unchanged pod if c changes nothing.
func (f *Forecast) change(c Change) {
	switch {
	case c.New.Pod.DeletionTimestamp != nil && (c.Old == nil || c.Old.Pod.DeletionTimestamp == nil):
		c.Op, c.Grace = podconfig.DELETE, podview.Grace(c.New, nil, pod.Actual{})
	case len(c.Fields) == 0 && !c.Restarts() && len(c.Resizes) == 0 && c.Reason == "":
		f.Unchanged++
		return
	}
	f.Changes = append(f.Changes, c)
}

// differences returns the fields that differ between two versions of a pod, and in the data
// they are bound to.
func differences(old, new *pod.Spec) []podspec.FieldChange {
	return append(podspec.Differences(old.Pod, new.Pod), podspec.DataDifferences(old, new)...)
}
