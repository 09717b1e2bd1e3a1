// Package shutdown decides in which order the pods of a node stop when the machine shuts down
// or the node is drained, and how long each may take.
//
// The engine observes the pods, calls Order.Next and stops the pods that Next names. It calls
// Next again when a pod has ended, and at Decision.Again.
//
// The package has no I/O, no clock and no goroutine.
package shutdown

import (
	"math"
	"slices"
	"time"

	"github.com/nodectl/nodectl/pkg/cycle"
	"github.com/nodectl/nodectl/pkg/pod"
)

// Class is the pods whose priority is at least Priority and below that of the next class. Pods
// below the lowest class belong to it (C-1.36.2).
type Class struct {
	Priority int32
	Period   time.Duration // how long the pods of the class may take together
}

// Order is how the pods of a node stop. The classes stop one after another, the lowest priority
// first. In a class, a pod stops when the pods that depend on it have ended.
type Order struct {
	// Classes are sorted by priority. If there are none, the pods of each priority form a class
	// without a period. The next of these classes starts when the pods of this one have ended, or
	// after ten minutes. Pods with a longer grace period keep it.
	Classes []Class
	// MaxGrace is the maximum of every pod's grace period, in seconds; nil is no limit.
	MaxGrace *int64
}

// CriticalPriority is the lowest priority of pods that are critical for the system (C-1.36.3).
const CriticalPriority = 2000000000

// Classes divides the period total into two classes: critical of it is for critical pods, the
// rest for all others (C-1.36.3). It returns nil if total is 0.
func Classes(total, critical time.Duration) []Class {
	if total <= 0 {
		return nil
	}
	return []Class{{0, total - critical}, {CriticalPriority, critical}}
}

// Total is how long all classes may take together; 0 without classes.
func Total(classes []Class) (sum time.Duration) {
	for _, c := range classes {
		sum += c.Period
	}
	return sum
}

// Pod is a pod of the node that may run.
type Pod struct {
	Key      pod.Key
	Priority int32
	Grace    int64 // its own grace period in seconds
	// Dependents are the indexes of the pods that depend on this one: they end first.
	Dependents []int
	Begun      time.Time // when Next decided to stop it; zero: it has not yet
	Ended      bool      // it does not run: it has stopped, or never ran
}

// Progress is how far the stop of a node has come. The zero value is the beginning.
type Progress struct {
	class int32     // the highest class that has started to stop
	since time.Time // when it started; zero: none has
}

// Stop says that a pod has to stop now. Its grace period is the smaller of its own and Limit.
type Stop struct {
	Pod   int   // its index
	Limit int64 // in seconds
}

// Decision has the pods to stop now, and the time of the next decision.
type Decision struct {
	Stops []Stop
	// Again is when another decision is due, if no pod ends before; zero is never.
	Again time.Time
	// Done says that no pod is left to stop or to wait for. Pods that did not end within the
	// time of their class may still run.
	Done bool
}

// overtime is how long after its grace period the other pods still wait for a pod of a class without
// a period: a pod that cannot be killed must not block them forever.
const overtime = time.Minute

// longestDelay is how long a class without a period delays the next one.
const longestDelay = 10 * time.Minute

// Next decides which pods stop now, and updates the progress.
//
// MaxGrace and the period of its class limit the grace period of a pod. A pod stops when the pods
// that depend on it have ended. In a class with a period, it stops earlier if its grace period
// would otherwise end after that period. A pod belongs to the class of its priority or, if that is
// higher, to the class of a pod that depends on it. Pods that depend on each other in a circle do
// not wait for each other.
func (o Order) Next(pods []Pod, p *Progress, now time.Time) (d Decision) {
	s, left := o.sort(pods), false
	for _, class := range s.classes() {
		live := s.live(class)
		if len(live) == 0 {
			continue
		}
		if p.since.IsZero() || class > p.class {
			p.class, p.since = class, now
		}
		open := false
		for _, i := range live {
			begun := pods[i].Begun
			if begun.IsZero() {
				if latest, waits := s.waits(i, *p, now); waits {
					open = true
					d.again(latest)
					continue
				}
				d.Stops = append(d.Stops, Stop{i, s.limit(i)})
				begun = now
			}
			if end := s.end(i, begun, *p); now.Before(end) {
				open = true
				d.again(end)
			}
		}
		if !open {
			continue
		}
		if len(o.Classes) > 0 {
			return d
		}
		if next := p.since.Add(longestDelay); class == p.class && now.Before(next) {
			d.again(next)
			return d
		}
		left = true
	}
	d.Done = !left
	return d
}

func (d *Decision) again(at time.Time) {
	if !at.IsZero() && (d.Again.IsZero() || at.Before(d.Again)) {
		d.Again = at
	}
}

// sorted has the pods with their classes.
type sorted struct {
	Order
	pods      []Pod
	class     []int32 // of each pod: the priority of the class
	component []int   // of each pod; the pods of a circle share one
}

func (o Order) sort(pods []Pod) *sorted {
	s := &sorted{o, pods, make([]int32, len(pods)), make([]int, len(pods))}
	for n, members := range cycle.Components(len(pods), func(i int) []int { return pods[i].Dependents }) {
		for _, i := range members {
			s.component[i] = n
		}
		top := int32(math.MinInt32)
		for _, i := range members {
			top = max(top, o.classOf(pods[i].Priority))
			for _, j := range pods[i].Dependents {
				if s.component[j] != n { // of an earlier component: its class is known
					top = max(top, s.class[j])
				}
			}
		}
		for _, i := range members {
			s.class[i] = top
		}
	}
	return s
}

// classOf returns the priority of the class that pods of a priority belong to.
func (o Order) classOf(priority int32) int32 {
	if len(o.Classes) == 0 {
		return priority
	}
	at := o.Classes[0].Priority
	for _, c := range o.Classes {
		if c.Priority <= priority {
			at = c.Priority
		}
	}
	return at
}

// classes returns the classes that have pods, the lowest first.
func (s *sorted) classes() []int32 {
	all := slices.Clone(s.class)
	slices.Sort(all)
	return slices.Compact(all)
}

// live returns the pods of a class that have not ended.
func (s *sorted) live(class int32) (list []int) {
	for i := range s.pods {
		if s.class[i] == class && !s.pods[i].Ended {
			list = append(list, i)
		}
	}
	return list
}

// period returns the period of the class of pod i; ok is false if the class has none.
func (s *sorted) period(i int) (d time.Duration, ok bool) {
	for _, c := range s.Classes {
		if c.Priority == s.class[i] {
			return c.Period, true
		}
	}
	return 0, false
}

// limit returns the maximum of the grace period of pod i, in seconds.
func (s *sorted) limit(i int) int64 {
	limit := int64(math.MaxInt64)
	if s.MaxGrace != nil {
		limit = *s.MaxGrace
	}
	if d, ok := s.period(i); ok {
		limit = min(limit, int64(d/time.Second))
	}
	return limit
}

// grace returns the grace period of pod i, limited.
func (s *sorted) grace(i int) time.Duration {
	const longest = int64(math.MaxInt64 / time.Second / 4) // more could overflow when it is added to a time
	return time.Duration(min(max(s.pods[i].Grace, 0), s.limit(i), longest)) * time.Second
}

// end returns when the other classes, and the pods that pod i depends on, stop waiting for pod i.
func (s *sorted) end(i int, begun time.Time, p Progress) time.Time {
	if d, ok := s.period(i); ok {
		if s.class[i] == p.class {
			return p.since.Add(d)
		}
		return begun.Add(s.grace(i)) // a higher class has started already
	}
	return begun.Add(s.grace(i) + overtime)
}

// waits reports whether pod i waits for a pod that depends on it. latest is when it stops although
// that pod still runs; zero is never.
func (s *sorted) waits(i int, p Progress, now time.Time) (latest time.Time, waits bool) {
	if d, ok := s.period(i); ok {
		latest = p.since.Add(d - s.grace(i))
		if !now.Before(latest) {
			return latest, false
		}
	}
	for _, j := range s.pods[i].Dependents {
		switch other := s.pods[j]; {
		case other.Ended, s.component[j] == s.component[i], len(s.Classes) > 0 && s.class[j] != s.class[i]:
		case other.Begun.IsZero(), now.Before(s.end(j, other.Begun, p)):
			waits = true
		}
	}
	return latest, waits
}
