package plan

import (
	"cmp"
	"slices"
	"strings"

	"github.com/nodectl/nodectl/pkg/pod"
)

// StartOrder compares two pods by who starts first: the one of higher priority
// (critical pods have the highest, from 2,000,000,000 on), then the one that
// stands earlier (file, line), then by key. It is 0 only for pods of one key and
// place.
func StartOrder(a, b *pod.Spec) int {
	return cmp.Or(
		-cmp.Compare(Priority(a), Priority(b)),
		strings.Compare(a.Origin.File, b.Origin.File),
		cmp.Compare(a.Origin.Line, b.Origin.Line),
		a.Key.Compare(b.Key),
	)
}

// Priority returns the pod's priority, 0 where it has none. Critical pods have
// 2,000,000,000 and more (C-1.4.2).
func Priority(s *pod.Spec) int32 {
	if s.Pod.Spec.Priority == nil {
		return 0
	}
	return *s.Pod.Spec.Priority
}

// Sweep returns the keys of the pods on the node that keep does not want to
// keep, sorted. A key of which nothing is left is not named.
func Sweep(have []pod.Actual, keep func(pod.Actual) bool) []pod.Key {
	var keys []pod.Key
	for _, a := range have {
		if !a.Empty() && !keep(a) {
			keys = append(keys, a.Key)
		}
	}
	slices.SortFunc(keys, pod.Key.Compare)
	return slices.Compact(keys)
}
