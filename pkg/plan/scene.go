package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

const (
	always = v1.RestartPolicyAlways
	never  = v1.RestartPolicyNever
)

// scene is a View, what the ladder derives from it once, and the plan being
// written.
type scene struct {
	View
	// target is the instance that Want runs as, or is to start as.
	target int
	// anew is why target is a new instance: why the newest one is over; "" when
	// that goes on.
	anew string
	// sandbox is the ready sandbox of target; nil when one has to be made.
	sandbox *pod.Sandbox
	// home is the instance of every sandbox by its ID.
	home map[string]int

	p Plan
}

func newScene(v View) *scene {
	s := &scene{View: v, home: make(map[string]int, 1+len(v.Have.Older))}
	if b := v.Have.Sandbox; b != nil {
		s.home[b.ID] = s.instanceOf(b)
	}
	for i := range v.Have.Older {
		s.home[v.Have.Older[i].ID] = s.instanceOf(&v.Have.Older[i])
	}
	if v.Want == nil {
		return s
	}
	s.target = max(1, s.newest())
	if s.anew = s.whyAnew(); s.anew != "" {
		s.target++
	}
	if b := v.Have.Sandbox; b != nil && b.Ready && s.instanceOf(b) == s.target {
		s.sandbox = b
	}
	return s
}

func (s *scene) add(step Step) { s.p.Steps = append(s.p.Steps, step) }

// wait notes that the plan changes at until; the earliest counts.
func (s *scene) wait(until time.Time, waitFor string) {
	if d := until.Sub(s.Now); s.p.Wait == 0 || d < s.p.Wait {
		s.p.Wait, s.p.WaitFor = d, waitFor
	}
}

// waitFor says what has to happen before anything changes; the first counts.
func (s *scene) waitFor(what string) { s.p.WaitFor = cmp.Or(s.p.WaitFor, what) }

func (s *scene) policy() v1.RestartPolicy {
	return cmp.Or(s.Want.Pod.Spec.RestartPolicy, always)
}

// uid is the UID of the pod on the node, or of the record of one that was.
func (s *scene) uid() string {
	switch {
	case s.Have.UID != "":
		return s.Have.UID
	case s.Record.Want != nil:
		return s.Record.Want.UID()
	case s.Want != nil:
		return s.Want.UID()
	}
	return ""
}

// record returns the newest record of container name, unless it belongs to an
// instance that is over.
func (s *scene) record(name string) (pod.Container, bool) {
	c, ok := s.Have.Containers[name]
	if n, known := s.home[c.SandboxID]; ok && known && n != s.target {
		return c, false
	}
	return c, ok
}

// here reports whether c belongs to the ready sandbox.
func (s *scene) here(c pod.Container) bool {
	return s.sandbox != nil && c.SandboxID == s.sandbox.ID
}

// nextAttempt is the number of the next life of container name, "" for the
// sandbox. Numbers rise over sandboxes and instances of one UID (I4,
// C-1.22.7). A container that was created and never started has not lived.
func (s *scene) nextAttempt(name string) uint32 {
	var next uint32
	if s.Record.Want == nil || s.Record.Want.UID() == s.Want.UID() {
		next = s.Record.Attempts[name]
	}
	if name == "" {
		if b := s.Have.Sandbox; b != nil {
			next = max(next, b.Attempt+1)
		}
		for _, b := range s.Have.Older {
			next = max(next, b.Attempt+1)
		}
		return next
	}
	count := func(c pod.Container) {
		n := max(c.Attempt, uint32(max(c.Restarts, 0)))
		if c.State != pod.StateCreated {
			n++
		}
		next = max(next, n)
	}
	if c, ok := s.Have.Containers[name]; ok {
		count(c)
	}
	for _, c := range s.Have.Dead {
		if c.Name == name {
			count(c)
		}
	}
	return next
}

// alive reports whether any container of the pod may run.
func (s *scene) alive() bool {
	return slices.ContainsFunc(s.everyContainer(), func(c pod.Container) bool {
		return c.State == pod.StateRunning || c.State == pod.StateUnknown
	})
}

// hasRun reports whether a container of the instance has been started: a record
// that was only created proves nothing.
func (s *scene) hasRun() bool {
	for name := range s.Have.Containers {
		if c, ok := s.record(name); ok && c.State != pod.StateCreated {
			return true
		}
	}
	return false
}

// sortedContainers returns the newest records by name.
func sortedContainers(have pod.Actual) []pod.Container {
	return slices.SortedFunc(maps.Values(have.Containers), func(a, b pod.Container) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.ID, b.ID))
	})
}

// everyContainer returns all records, by name, older ones after newer ones.
func (s *scene) everyContainer() []pod.Container {
	all := append(sortedContainers(s.Have), s.Have.Dead...)
	slices.SortStableFunc(all, func(a, b pod.Container) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// madeFrom is the spec of the pod on the node, as far as it is known.
func (s *scene) madeFrom() *pod.Spec {
	for _, spec := range []*pod.Spec{s.Record.Want, s.Want} {
		if spec != nil && (s.Have.UID == "" || s.Have.UID == spec.UID()) {
			return spec
		}
	}
	return nil
}

// deleting reports whether the pod is wanted no more than its source still
// shows it: a pod that an API server deletes gracefully (C-1.2.9). It never
// starts again.
func (s *scene) deleting() bool { return s.Want != nil && s.Want.Pod.DeletionTimestamp != nil }

// knows reports whether the wanted pod has a container of this name.
func (s *scene) knows(name string) bool {
	c, _ := s.Want.Container(name)
	return c != nil
}

func (s *scene) isEphemeral(name string) bool {
	return slices.ContainsFunc(s.Want.Pod.Spec.EphemeralContainers, func(e v1.EphemeralContainer) bool { return e.Name == name })
}

// troubleText says that something is tried again later, and why not now.
func troubleText(what string, t pod.Trouble) string {
	return fmt.Sprintf("%s is tried again: %s", what, cmp.Or(t.Reason, t.Message))
}
