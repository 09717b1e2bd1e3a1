package plan

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podview"
)

const (
	always = v1.RestartPolicyAlways
	never  = v1.RestartPolicyNever
)

// planner holds the state of one call of Next: the View, values that newPlanner derives from it,
// and the plan so far.
type planner struct {
	View
	*podview.State // the pod's containers and sandbox as those of instance target
	// target is the number of the instance that Want runs as, or will start as.
	target int
	// newInstance is the reason why a new instance, target, has to replace the newest one; "" if
	// the newest one continues.
	newInstance string

	p Plan
}

func newPlanner(v View) *planner {
	s := &planner{View: v, State: podview.ToPlan(v.Want, v.Have, v.Record, v.Health)}
	if v.Want == nil {
		return s
	}
	if s.newInstance = s.whyNewInstance(); s.newInstance != "" {
		s.State = s.State.Next()
	}
	s.target = s.Instance()
	return s
}

func (s *planner) add(step Step) { s.p.Steps = append(s.p.Steps, step) }

// wait notes that the plan may change at until, and the condition that it waits for. The earliest
// time wins.
func (s *planner) wait(until time.Time, waitFor string) {
	if d := until.Sub(s.Now); s.p.Wait == 0 || d < s.p.Wait {
		s.p.Wait, s.p.WaitFor = d, waitFor
	}
}

// waitFor notes the condition that the plan waits for, other than a time. The first condition wins.
func (s *planner) waitFor(what string) { s.p.WaitFor = cmp.Or(s.p.WaitFor, what) }

func (s *planner) policy() v1.RestartPolicy {
	return cmp.Or(s.Want.Pod.Spec.RestartPolicy, always)
}

// uid returns the UID of the pod on the node, else that of the recorded spec, else that of Want.
func (s *planner) uid() string {
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

// nextAttempt returns the attempt number of the next container of this name, or of the next sandbox
// if name is "". Attempt numbers rise over sandboxes and instances of one UID (I4, C-1.22.7). A
// container that was created and never started does not count.
func (s *planner) nextAttempt(name string) uint32 {
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

// madeFrom returns the spec that the pod on the node was made from: the recorded one, else Want. It
// returns nil if both have another UID than the pod on the node.
func (s *planner) madeFrom() *pod.Spec {
	for _, spec := range []*pod.Spec{s.Record.Want, s.Want} {
		if spec != nil && (s.Have.UID == "" || s.Have.UID == spec.UID()) {
			return spec
		}
	}
	return nil
}

// deleting reports whether the pod's source shows it as being deleted: an API server deletes
// it gracefully (C-1.2.9). Such a pod never starts again.
func (s *planner) deleting() bool { return s.Want != nil && s.Want.Pod.DeletionTimestamp != nil }

// inSpec reports whether the desired pod has a container of this name.
func (s *planner) inSpec(name string) bool {
	c, _ := s.Want.Container(name)
	return c != nil
}

func (s *planner) isEphemeral(name string) bool {
	return slices.ContainsFunc(s.Want.Pod.Spec.EphemeralContainers, func(e v1.EphemeralContainer) bool { return e.Name == name })
}

// failureText returns the text for a retry after a failure.
func failureText(what string, t pod.Failure) string {
	return fmt.Sprintf("retrying %s after %s", what, cmp.Or(t.Reason, t.Message))
}
