package invariant

import (
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

// A History is which pods the sources of one agent desired, and when. A test records each
// change of a source here before it makes it.
type History struct {
	mu      sync.Mutex
	changes map[string][]change // by the pod's full name, oldest first
	excused map[string]bool
}

// change is the version of a pod that a source desired from a moment on; nil for none. A broken
// change makes the source unreadable: the pods desired before stay desired. A tagged change differs
// from the one before in labels and annotations only: no promise about the pod ends with it.
type change struct {
	at             time.Time
	pod            *v1.Pod
	broken, tagged bool
}

func (h *History) add(name string, c change) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.changes == nil {
		h.changes = make(map[string][]change)
	}
	c.at = time.Now()
	c.tagged = c.pod != nil && same(newest(h.changes[name]), c.pod)
	h.changes[name] = append(h.changes[name], c)
}

// newest returns the pod that list desires now: nil for none.
func newest(list []change) *v1.Pod {
	for _, c := range slices.Backward(list) {
		if !c.broken {
			return c.pod
		}
	}
	return nil
}

// same reports whether an edit of one pod to another restarts nothing, under any agent.
func same(a, b *v1.Pod) bool {
	return a != nil && a.UID == b.UID && equality.Semantic.DeepEqual(a.Spec, b.Spec)
}

// Want says that a source is about to desire a pod; name is its full name.
func (h *History) Want(name string, p *v1.Pod) { h.add(name, change{pod: p.DeepCopy()}) }

// Break says that the pod's source is about to become unreadable.
func (h *History) Break(name string) { h.add(name, change{broken: true}) }

// Away says that no source desires the pod any more.
func (h *History) Away(name string) { h.add(name, change{}) }

// Gap says that the pod may have been missing from its source for a moment.
func (h *History) Gap(name string) {
	h.mu.Lock()
	p := newest(h.changes[name])
	h.mu.Unlock()
	h.Away(name)
	h.Want(name, p)
}

// Excuse says that the agent may end this pod's containers, and that they need not run at the
// end: a probe fails, its deadline passes, its image is missing.
func (h *History) Excuse(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.excused == nil {
		h.excused = make(map[string]bool)
	}
	h.excused[name] = true
}

// isExcused also returns true for unknown pods.
func (h *History) isExcused(name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.excused[name] || len(h.changes[name]) == 0
}

// has reports whether a manifest has ever named the pod.
func (h *History) has(name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.changes[name]) > 0
}

// wanted returns the pods that are desired now, by full name.
func (h *History) wanted() map[string]*v1.Pod {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := make(map[string]*v1.Pod)
	for name, list := range h.changes {
		if p := newest(list); p != nil {
			all[name] = p
		}
	}
	return all
}

// desired reports whether the same pod was desired from one moment to another, and whether
// its source was unreadable at the end.
func (h *History) desired(name string, from, to time.Time) (all, broken bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.changes[name] {
		switch {
		case c.at.After(to):
			return all, broken
		case c.broken:
			broken = true
		case c.tagged:
			broken = false
		case c.pod == nil, c.at.After(from):
			all, broken = false, false
		default:
			all, broken = true, false
		}
	}
	return all, broken
}

// awaySince returns since when the pod is not desired at a moment: zero while it is.
func (h *History) awaySince(name string, at time.Time) (since time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.changes[name] {
		if c.at.After(at) {
			break
		}
		if since = (time.Time{}); c.pod == nil && !c.broken {
			since = c.at
		}
	}
	return since
}

// changed reports whether a pod was changed between two moments, except for tagged changes.
func (h *History) changed(name string, from, to time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.ContainsFunc(h.changes[name], func(c change) bool { return !c.tagged && c.at.After(from) && c.at.Before(to) })
}
