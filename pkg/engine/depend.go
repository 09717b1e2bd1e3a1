package engine

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/cycle"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podview"
)

// dependencyState is how far a pod has come, for the pods that depend on it.
type dependencyState int

const (
	stateNone dependencyState = iota
	stateStarted
	stateReady
	stateDone
)

// dependencyStateOf derives the state from the report of a pod's worker. While the worker has
// steps to do, the state is stateNone.
func dependencyStateOf(r *report) dependencyState {
	s := &r.pod.Status
	switch {
	case r.busy || r.gone || s.Phase == v1.PodFailed:
		return stateNone
	case s.Phase == v1.PodSucceeded:
		return stateDone
	case isReady(s):
		return stateReady
	case allStarted(s):
		return stateStarted
	}
	return stateNone
}

func isReady(s *v1.PodStatus) bool {
	return slices.ContainsFunc(s.Conditions, func(c v1.PodCondition) bool {
		return c.Type == v1.PodReady && c.Status == v1.ConditionTrue
	})
}

// reached reports whether a pod in state s has met the dependency condition c. A pod that has
// Succeeded counts as started and ready.
func (s dependencyState) reached(c pod.DependencyCondition) bool {
	switch c {
	case pod.Done:
		return s == stateDone
	case pod.Ready:
		return s >= stateReady
	}
	return s >= stateStarted
}

// podOrder is the order in which pods start and stop.
type podOrder struct {
	// dependents holds, by the key of a pod, the admitted pods that name it as a dependency.
	// A pod names many keys, most of which may not exist: a key costs one slice.
	dependents map[pod.Key][]*entry
	current    bool // entry.stops is up to date in the terminating pods
}

// noteOrder adds e to the dependents of the pods that it names, if e is admitted. A spec that is
// never admitted may name any number of pods, so it is not added. Call forgetOrder before
// e.lastWant changes.
func (l *loop) noteOrder(e *entry) {
	if e.admitted {
		l.order.current = false
	}
	if e.lastWant == nil {
		return
	}
	if e.admitted && !e.ended { // a terminated pod delays the stop of no other
		for _, d := range e.lastWant.DependsOn {
			for _, key := range e.lastWant.Targets(d) {
				l.order.dependents[key] = append(l.order.dependents[key], e)
			}
		}
	}
	if e.isBeingRemoved() {
		l.updateDependencies(e)
	}
}

// forgetOrder removes e from the dependents of the pods that it names. The order of stops has
// to be computed again only if e was in one of these lists; a refused pod is in none.
func (l *loop) forgetOrder(e *entry) {
	if e.lastWant == nil {
		return
	}
	for _, d := range e.lastWant.DependsOn {
		for _, key := range e.lastWant.Targets(d) {
			list := l.order.dependents[key]
			i := slices.Index(list, e)
			switch {
			case i < 0:
				continue
			case len(list) == 1:
				delete(l.order.dependents, key)
			default:
				list[i] = list[len(list)-1]
				list[len(list)-1] = nil
				l.order.dependents[key] = list[:len(list)-1]
			}
			l.order.current = false
		}
	}
}

// updateDependents queues an update for the pods that depend on e: they may start now. It does the
// same for the pods that e depends on: they may stop now.
func (l *loop) updateDependents(e *entry) {
	dependents := slices.SortedFunc(slices.Values(l.order.dependents[e.key]), func(a, b *entry) int { return a.key.Compare(b.key) })
	for _, d := range dependents {
		l.queueUpdate(d, false)
	}
	l.updateDependencies(e)
}

// updateDependencies queues an update for the pods that e depends on, which may stop now.
func (l *loop) updateDependencies(e *entry) {
	if e.lastWant == nil {
		return
	}
	for _, d := range e.lastWant.DependsOn {
		for _, key := range e.lastWant.Targets(d) {
			if on := l.pods[key]; on != nil && on.updates != nil {
				l.queueUpdate(on, false)
			}
		}
	}
}

// waits says which pod has to reach its condition before e starts; "" for none.
func (l *loop) waits(e *entry) string {
	if e.want == nil {
		return ""
	}
	for _, d := range e.want.DependsOn {
		on := l.dependency(e.want, d)
		switch {
		case on == nil:
			return fmt.Sprintf("waits for pod %s, which no source defines", d.Name)
		case !on.dependencyState.reached(d.Until):
			return fmt.Sprintf("waits for pod %s to be %s", on.key.Name, d.Until)
		}
	}
	return ""
}

// dependency finds the desired pod that d names.
func (l *loop) dependency(want *pod.Spec, d pod.Dependency) *entry {
	key, found := want.ResolveDependency(d, l.cfg.Visible, func(key pod.Key) *pod.Spec {
		on := l.pods[key]
		if on == nil {
			return nil
		}
		return cmp.Or(on.want, on.next)
	})
	if !found {
		return nil
	}
	return l.pods[key]
}

// A terminating pod waits for a dependent pod for at most that pod's grace and stopMargin. For all
// dependent pods together it waits for at most longestStop, so that a pod that cannot be killed
// does not block others forever.
const (
	stopMargin  = time.Minute
	longestStop = time.Hour
)

// stopOrder says which pods have to be gone before a terminating pod stops.
type stopOrder struct {
	node  int           // the number of the pod in the graph that orderStops makes
	first *entry        // the first, by key, of the pods that have to be gone; nil for none
	limit time.Duration // of the wait until all of them are gone
}

// stopWaits says which pod has to be gone before e stops, and until when e waits for it; "" for
// none. e waits only for terminating pods that depend on it. The source of such a pod must also be
// allowed to name the objects of e's source (maySee). A pod that was not admitted has nothing to
// stop.
func (l *loop) stopWaits(e *entry) (waits string, until time.Time) {
	if !e.isBeingRemoved() || !e.admitted {
		e.removalSince = time.Time{}
		return "", time.Time{}
	}
	if e.removalSince.IsZero() {
		e.removalSince = time.Now()
	}
	if !l.order.current {
		l.orderStops()
		l.order.current = true
	}
	if e.stops.first == nil {
		return "", time.Time{}
	}
	return fmt.Sprintf("waits until pod %s, which depends on it, is removed", e.stops.first.key.Name), e.removalSince.Add(e.stops.limit)
}

// orderStops finds, for all terminating pods, which pods have to be gone before each, and how
// long these may take in sequence. Edits at different times can make running pods depend on each
// other in a cycle: pods on a cycle do not wait for one another. The work is linear in the numbers
// of pods and dependencies, because sources decide these numbers and the sync loop does nothing
// else meanwhile.
func (l *loop) orderStops() {
	var going []*entry
	for _, e := range l.pods {
		if e.isBeingRemoved() {
			e.stops = stopOrder{node: len(going)}
			going = append(going, e)
		}
	}
	before := make([][]int, len(going)) // by pod: the pods that have to be gone
	for i, e := range going {
		for _, d := range l.order.dependents[e.key] {
			if d.isBeingRemoved() && !d.ended && l.maySee(d, e) {
				before[i] = append(before[i], d.stops.node)
			}
		}
	}
	component := make([]int, len(going))
	for n, members := range cycle.Components(len(going), func(i int) []int { return before[i] }) {
		for _, i := range members {
			component[i] = n
		}
		for _, i := range members {
			of := &going[i].stops
			for _, j := range before[i] {
				if component[j] == n {
					continue
				}
				d := going[j] // of an earlier component: its order is known
				if of.first == nil || d.key.Compare(of.first.key) < 0 {
					of.first = d
				}
				grace := min(podview.Grace(d.lastWant, nil, pod.Actual{}), int64(longestStop/time.Second))
				of.limit = max(of.limit, min(d.stops.limit+time.Duration(grace)*time.Second+stopMargin, longestStop))
			}
		}
	}
}

// maySee reports whether the pods of d's source may name the objects of e's source. Only then may
// they delay the stop of its pods.
func (l *loop) maySee(d, e *entry) bool {
	if d.lastWant == nil || e.lastWant == nil {
		return false
	}
	from, to := d.lastWant.Origin.Source, e.lastWant.Origin.Source
	return from == to || l.cfg.Visible != nil && l.cfg.Visible(from, to)
}

// isBeingRemoved reports whether a pod is to be stopped and removed.
func (e *entry) isBeingRemoved() bool { return e.want == nil || deleting(e.want) }
