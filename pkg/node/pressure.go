package node

import (
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Level is the capacity of a resource, and how much of it is available.
type Level struct{ Available, Capacity int64 }

// Pressure holds when each pressure of a node was last observed. The zero value has
// none.
type Pressure struct {
	seen map[v1.NodeConditionType]time.Time
}

// See notes the thresholds that levels, by signal, are below. What was not
// measured is not below.
func (p *Pressure) See(thresholds []pod.Threshold, levels map[string]Level, now time.Time) {
	for _, t := range thresholds {
		l, ok := levels[t.Signal]
		if !ok || l.Available >= t.Of(l.Capacity) {
			continue
		}
		if p.seen == nil {
			p.seen = map[v1.NodeConditionType]time.Time{}
		}
		p.seen[pod.ConditionOf(t.Signal)] = now
	}
}

// Now returns the pressures that were seen within the period (C-1.35.4), in the
// order of their names.
func (p *Pressure) Now(period time.Duration, now time.Time) []v1.NodeConditionType {
	var under []v1.NodeConditionType
	for _, c := range slices.Sorted(maps.Keys(p.seen)) {
		if now.Sub(p.seen[c]) <= period {
			under = append(under, c)
		}
	}
	return under
}
