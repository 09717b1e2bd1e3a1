package workload

import (
	"iter"
	"slices"

	"github.com/nodectl/nodectl/pkg/pod"
)

// result collects a Decision.
type result struct {
	in      *Input
	out     Decision
	taken   map[string]bool // names of pods
	removed int             // pods that leave by this decision, without those that have terminated
}

func newResult(in *Input) *result {
	taken := make(map[string]bool, len(in.Pods))
	for _, p := range in.Pods {
		taken[p.Spec.Name] = true
	}
	return &result{in: in, taken: taken, out: Decision{State: in.State}}
}

// present returns the pods that the last decision had.
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

// terminating returns how many pods the node stops, those that this decision removes included.
// As in Kubernetes, a pod that has terminated does not count.
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

// count counts pods that stay. The decision is due again when one more of them is available.
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
	return r.out
}
