package podview

import (
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
)

// MinGrace is the least time a container gets to exit, in seconds (C-1.23.5).
const MinGrace = 2

// LongestGrace, a hundred years in seconds, stands for all longer graces. The API accepts graces that
// are too long for a time.Duration.
const LongestGrace = 100 * 365 * 24 * 3600

// GraceDuration returns a grace in seconds as a duration, at most that of LongestGrace.
func GraceDuration(seconds int64) time.Duration {
	return time.Duration(min(seconds, LongestGrace)) * time.Second
}

// defaultGrace is the API's default, for a running pod without a known grace.
const defaultGrace = 30

// Grace returns how many seconds the pod on the node has to stop. The first of these that has
// a grace decides: the spec that the pod was made from, the sandboxes' annotations (newest
// first), the desired spec. Else the grace is 30. In a spec, the grace of a deletion comes first
// (C-1.23.1). Either spec may be nil.
func Grace(made, want *pod.Spec, have pod.Actual) int64 {
	if made != nil && (have.UID == "" || have.UID == made.UID()) {
		if g, ok := specGrace(made); ok {
			return g
		}
	}
	if b := have.Sandbox; b != nil && b.Grace >= 0 {
		return b.Grace
	}
	for _, b := range have.Older {
		if b.Grace >= 0 {
			return b.Grace
		}
	}
	if want != nil {
		if g, ok := specGrace(want); ok {
			return g
		}
	}
	return defaultGrace
}

func specGrace(spec *pod.Spec) (int64, bool) {
	switch {
	case spec.Pod.DeletionGracePeriodSeconds != nil:
		return *spec.Pod.DeletionGracePeriodSeconds, true
	case spec.Pod.Spec.TerminationGracePeriodSeconds != nil:
		return *spec.Pod.Spec.TerminationGracePeriodSeconds, true
	}
	return 0, false
}

// StopGrace returns how many seconds the stop of the whole pod may take: the grace of the
// request to stop it, else Grace.
func StopGrace(rec pod.Record, have pod.Actual) int64 {
	if rec.StopGrace != nil {
		return *rec.StopGrace
	}
	return Grace(rec.Want, nil, have)
}
