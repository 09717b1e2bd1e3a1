package podspec

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// ContainerResize is one container whose resources change while it runs.
type ContainerResize struct {
	Container string            `json:"container"`
	Resources []v1.ResourceName `json:"resources"` // those that change, in order
}

// Resizes returns the containers that replacing old by new resizes in place, by name:
// none of them restarts (Restart).
func Resizes(old, new *pod.Spec) []ContainerResize {
	whole, restart, _ := Restart(old, new)
	if whole || old == nil || new == nil || old.Pod == nil || new.Pod == nil || old.UID() != new.UID() {
		return nil
	}
	var out []ContainerResize
	for name, changed := range resizes(old, new) {
		if !slices.Contains(restart, name) {
			out = append(out, ContainerResize{Container: name, Resources: changed})
		}
	}
	slices.SortFunc(out, func(a, b ContainerResize) int { return strings.Compare(a.Container, b.Container) })
	return out
}

// resizes returns the resources that change, by the name of each container or
// sidecar that both specs have.
func resizes(old, new *pod.Spec) map[string][]v1.ResourceName {
	var out map[string][]v1.ResourceName
	for _, c := range withSidecars(new.Pod).Spec.Containers {
		was, init := old.Container(c.Name)
		if was == nil || init && !pod.Restartable(was) {
			continue
		}
		changed := pod.ResourcesChanged(old.Resources(c.Name), new.Resources(c.Name))
		if len(changed) == 0 {
			continue
		}
		if out == nil {
			out = map[string][]v1.ResourceName{}
		}
		out[c.Name] = changed
	}
	return out
}

// restartingResizes returns the names of the containers that a change of
// resources restarts.
func restartingResizes(old, new *pod.Spec) map[string]bool {
	out := map[string]bool{}
	for name, changed := range resizes(old, new) {
		if c, _ := new.Container(name); pod.ResizeRestarts(c, changed) {
			out[name] = true
		}
	}
	return out
}
