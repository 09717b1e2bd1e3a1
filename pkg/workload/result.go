package workload

import (
	"fmt"
	"iter"
	"slices"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// result collects a Decision.
type result struct {
	in      *Input
	out     Decision
	taken   map[string]bool // names of pods
	removed int             // pods that this decision removes, except terminated ones
}

func newResult(in *Input) *result {
	taken := make(map[string]bool, len(in.Pods))
	for _, p := range in.Pods {
		taken[p.Spec.Name] = true
	}
	return &result{in: in, taken: taken, out: Decision{State: in.State}}
}

// present returns the pods of the last decision.
func (r *result) present() iter.Seq[Pod] {
	return func(yield func(Pod) bool) {
		for _, p := range r.in.Pods {
			if !p.Leaving && !yield(p) {
				return
			}
		}
	}
}

func (r *result) keep(p Pod) { r.out.Pods = append(r.out.Pods, r.in.keep(p)) }

func (r *result) add(s *pod.Spec, reason string) {
	r.out.Pods = append(r.out.Pods, s)
	r.out.Steps = append(r.out.Steps, Step{Add, s.Key, reason})
}

func (r *result) remove(p Pod, reason string) {
	if !p.isTerminated() {
		r.removed++
	}
	r.out.Steps = append(r.out.Steps, Step{Remove, p.Spec.Key, reason})
}

func (r *result) event(kind, reason, message string) {
	r.out.Events = append(r.out.Events, Event{kind, reason, message})
}

// terminating returns how many pods the node stops, including the pods that this decision removes.
// As in Kubernetes, a terminated pod does not count.
func (r *result) terminating() int32 {
	n := int32(r.removed)
	for _, p := range r.in.Pods {
		if p.Leaving && !p.isTerminated() {
			n++
		}
	}
	return n
}

type counts struct{ ready, available int32 }

// count counts the ready and available ones of the pods. It makes the decision due again when the
// next of them becomes available.
func (r *result) count(pods []Pod, minReady int32) counts {
	var c counts
	for _, p := range pods {
		available, due := p.isAvailable(minReady, r.in.Now)
		switch {
		case available:
			c.available++
		default:
			r.out.Wake = earlier(r.out.Wake, due)
		}
		if p.isReady() {
			c.ready++
		}
	}
	return c
}

func (r *result) finish() Decision {
	slices.SortFunc(r.out.Pods, func(a, b *pod.Spec) int { return a.Compare(b.Key) })
	r.noteHostPorts()
	return r.out
}

// noteHostPorts adds to the reason of each new pod the host port that it waits for. A pod waits if
// a pod that stays, or a new pod before it, has the port.
func (r *result) noteHostPorts() {
	added := make(map[pod.Key]bool)
	for _, step := range r.out.Steps {
		added[step.Key] = step.Action == Add
	}
	var holders []*pod.Spec
	for _, s := range r.out.Pods {
		if added[s.Key] || len(pod.HostPorts(s.Pod)) == 0 {
			continue
		}
		if !slices.ContainsFunc(r.in.Pods, func(p Pod) bool { return p.Spec == s && p.isTerminated() }) {
			holders = append(holders, s)
		}
	}
	for i := range r.out.Steps {
		step := &r.out.Steps[i]
		at, found := slices.BinarySearchFunc(r.out.Pods, step.Key, func(s *pod.Spec, key pod.Key) int { return s.Compare(key) })
		if step.Action != Add || !found || len(pod.HostPorts(r.out.Pods[at].Pod)) == 0 {
			continue
		}
		s := r.out.Pods[at]
		for _, h := range holders {
			if port, conflict := pod.PortConflict(s.Pod, h.Pod); conflict {
				step.Reason += fmt.Sprintf("; the pod waits for host port %d of pod %s%s", port.HostPort, h.Name, r.portRemedy(s, h))
				break
			}
		}
		holders = append(holders, s)
	}
}

// portRemedy returns the edit of the workload with which an update stops the pod of the older revision
// first, which frees the host port. It returns "" for two pods of the same revision.
func (r *result) portRemedy(fresh, holder *pod.Spec) string {
	for label, remedy := range map[string]string{
		appsv1.DefaultDeploymentUniqueLabelKey: ": maxSurge 0 or the strategy Recreate is needed",
		appsv1.ControllerRevisionHashLabelKey:  ": maxSurge 0 is needed",
	} {
		a, b := fresh.Pod.Labels[label], holder.Pod.Labels[label]
		if a != "" && b != "" && a != b {
			return remedy
		}
	}
	return ""
}
