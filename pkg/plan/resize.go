package plan

import (
	"cmp"
	"fmt"

	"github.com/nodectl/nodectl/pkg/pod"
)

// resize gives a running container the resources that its spec names: in place,
// or in another life where its resize policy asks for that (C-1.34.4). What one
// was given that was made by an agent that did not note it is not known, and
// stays. A container that does not run gets them when it starts.
func (s *scene) resize(c pod.Container) {
	has := cmp.Or(s.Lives[c.ID].Resources, c.Resources)
	if has == "" && s.Kept != nil { // made by an agent that did not note it
		has = s.Kept.Resources(c.Name)
	}
	if has == "" {
		return
	}
	want := s.Want.Resources(c.Name)
	if has == want {
		return
	}
	if spec, _ := s.Want.Container(c.Name); pod.ResizeRestarts(spec, pod.ResourcesChanged(has, want)) {
		s.replace(c, whyResized)
		return
	}
	if s.ResizeHeld != "" {
		s.waitFor(s.ResizeHeld)
		return
	}
	if s.mayStart(c.Name) {
		s.add(Step{Action: UpdateContainer, Container: c.Name, ID: c.ID, Why: fmt.Sprintf("%s: %s → %s", whyResized, has, want)})
	}
}
