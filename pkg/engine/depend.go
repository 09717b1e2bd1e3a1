package engine

import (
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
)

// stage is how far a pod is, for those that depend on it.
type dependencyState int

const (
	stateNone dependencyState = iota
	stateStarted
	stateReady
	stateDone
)

// stageOf says how far a pod is by what its worker reports. A pod that is about
// to change is nowhere.
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

// reached reports whether a pod at stage s has passed milestone m. A pod that has
// Succeeded has started and was ready.
func (s dependencyState) reached(m pod.Milestone) bool {
	switch m {
	case pod.Done:
		return s == stateDone
	case pod.Ready:
		return s >= stateReady
	}
	return s >= stateStarted
}

// noteOrder remembers whom e depends on; forgetOrder comes before e.runs changes.
func (l *loop) noteOrder(e *entry) {
	if e.runs == nil {
		return
	}
	for _, d := range e.runs.DependsOn {
		for _, key := range e.runs.Targets(d) {
			if l.dependents[key] == nil {
				l.dependents[key] = make(map[pod.Key]bool)
			}
			l.dependents[key][e.key] = true
		}
	}
	if e.isTerminating() {
		l.pokeDependencies(e)
	}
}

// forgetOrder forgets whom e, which is gone, depended on.
func (l *loop) forgetOrder(e *entry) {
	if e.runs == nil {
		return
	}
	for _, d := range e.runs.DependsOn {
		for _, key := range e.runs.Targets(d) {
			delete(l.dependents[key], e.key)
			if len(l.dependents[key]) == 0 {
				delete(l.dependents, key)
			}
		}
	}
}

// pokeDependents tells those that depend on e that it has come or gone, and those
// that e depends on, which may stop now.
func (l *loop) pokeDependents(e *entry) {
	for _, key := range sortedKeys(l.dependents[e.key]) {
		if d := l.pods[key]; d != nil {
			l.queueUpdate(d, false)
		}
	}
	l.pokeDependencies(e)
}

func (l *loop) pokeDependencies(e *entry) {
	if e.runs == nil {
		return
	}
	for _, d := range e.runs.DependsOn {
		for _, key := range e.runs.Targets(d) {
			if on := l.pods[key]; on != nil && on.updates != nil {
				l.queueUpdate(on, false)
			}
		}
	}
}

// waits says which pod has to come before e starts; "" when none.
func (l *loop) waits(e *entry) string {
	if e.want == nil {
		return ""
	}
	for _, d := range e.want.DependsOn {
		on := l.dependency(e.want, d)
		switch {
		case on == nil:
			return fmt.Sprintf("waits for pod %s, which no source wants", d.Name)
		case !on.dependencyState.reached(d.Until):
			return fmt.Sprintf("waits for pod %s to be %s", on.key.Name, d.Until)
		}
	}
	return ""
}

// dependency finds the wanted pod that d means.
func (l *loop) dependency(want *pod.Spec, d pod.Dependency) *entry {
	for _, k := range want.Targets(d) {
		if on := l.pods[k]; on != nil && (on.want != nil || on.next != nil) {
			return on
		}
	}
	return nil
}

// stopMargin is how much longer than its grace a pod that goes is waited for, and
// longestStop how long in all: what cannot be killed holds nothing up for ever.
const (
	stopMargin  = time.Minute
	longestStop = time.Hour
)

// stopWaits says which pod, one that depends on e and goes as well, has to be
// gone before e stops, and until when that is waited for; "" when none. One that stays
// holds nothing up, and neither does one of a source that may not name e's objects.
func (l *loop) stopWaits(e *entry) (waits string, until time.Time) {
	if !e.isTerminating() {
		e.terminatingSince = time.Time{}
		return "", time.Time{}
	}
	if e.terminatingSince.IsZero() {
		e.terminatingSince = time.Now()
	}
	for _, d := range l.stopsBefore(e) {
		return fmt.Sprintf("waits for pod %s, which depends on it, to be gone", d.key.Name),
			e.terminatingSince.Add(min(l.stopTime(e, map[*entry]bool{}), longestStop))
	}
	return "", time.Time{}
}

// stopsBefore returns the pods that have to be gone before e stops.
func (l *loop) stopsBefore(e *entry) (before []*entry) {
	for _, key := range sortedKeys(l.dependents[e.key]) {
		d := l.pods[key]
		if d == nil || !d.isTerminating() || d.ended || !l.maySee(d, e) || !l.follows(d, e) || l.follows(e, d) {
			continue // a circle, made of specs of different times, holds nothing up
		}
		before = append(before, d)
	}
	return before
}

// stopTime is how long the pods that have to be gone before e may take, one after the
// other.
func (l *loop) stopTime(e *entry, seen map[*entry]bool) time.Duration {
	var longest time.Duration
	if seen[e] {
		return 0
	}
	seen[e] = true
	for _, d := range l.stopsBefore(e) {
		grace := time.Duration(min(plan.Grace(d.runs, pod.Actual{}), int64(longestStop/time.Second))) * time.Second
		longest = max(longest, l.stopTime(d, seen)+grace+stopMargin)
	}
	return longest
}

// maySee reports whether the pods of d's source may name the objects of e's: then they may
// order its stop.
func (l *loop) maySee(d, e *entry) bool {
	if d.runs == nil || e.runs == nil {
		return false
	}
	from, to := d.runs.Origin.Source, e.runs.Origin.Source
	return from == to || l.cfg.Visible != nil && l.cfg.Visible(from, to)
}

// goes reports whether a pod is on its way out.
func (e *entry) isTerminating() bool { return e.want == nil || deleting(e.want) }

// follows reports whether d depends on e, itself or through others.
func (l *loop) follows(d, e *entry) bool {
	seen := make(map[*entry]bool)
	var walk func(*entry) bool
	walk = func(d *entry) bool {
		if d.runs == nil || seen[d] {
			return false
		}
		seen[d] = true
		for _, on := range d.runs.DependsOn {
			for _, key := range d.runs.Targets(on) {
				if next := l.pods[key]; next != nil && (next == e || walk(next)) {
					return true
				}
			}
		}
		return false
	}
	return walk(d)
}
