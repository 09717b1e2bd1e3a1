package invariant

import (
	"fmt"
	"slices"
	"time"
)

// slack is how long an agent on a busy machine may take to learn of a change, and to end its
// current work.
const slack = 10 * time.Second

const clock = "15:04:05.000"

// Twice returns every pair of runs of one container that overlap (I1).
func Twice(lives []Life) (found []Violation) {
	for i, a := range lives {
		for _, b := range lives[i+1:] {
			if a.Pod == b.Pod && a.Name == b.Name && (a.To.IsZero() || b.From.Before(a.To)) {
				found = append(found, Violation{"I1", b.From, b.Pod,
					fmt.Sprintf("%s began while %s lived, until %s", b, a, a.To.Format(clock))})
			}
		}
	}
	return found
}

// innocent returns the calls by which the agent ended a running container that was desired
// all the time (I2), or by its last good manifest (I9).
func (s *Scope) innocent(lives []Life) (found []Violation) {
	for _, call := range s.Stops {
		if s.History.isExcused(call.Pod) {
			continue
		}
		for _, l := range lives {
			if call.ID != l.ID && call.ID != l.Box || !l.livesAt(call.Began) {
				continue
			}
			wanted, broken := s.History.desired(l.Pod, l.From, call.Began)
			if !wanted {
				continue
			}
			v := Violation{"I2", call.Began, l.Pod, fmt.Sprintf("%s met %s, which lived and was wanted", call.Method, l)}
			if broken {
				v.Promise = "I9"
			}
			found = append(found, v)
		}
	}
	return found
}

// rising returns the lives whose attempt is not above that of the life before (I4). For a pod
// that was away in between, the attempts start again. So they do for a pod that no manifest names:
// a workload decides when it leaves and returns, and the history does not have that.
func rising(lives []Life, h *History) (found []Violation) {
	for i, l := range lives {
		if !h.has(l.Pod) {
			continue
		}
		before := slices.IndexFunc(lives[:i], func(o Life) bool {
			return o.UID == l.UID && o.Name == l.Name && o.Attempt >= l.Attempt && !h.changed(l.Pod, o.From, l.From)
		})
		if before >= 0 {
			found = append(found, Violation{"I4", l.From, l.Pod, fmt.Sprintf("%s came after %s", l, lives[before])})
		}
	}
	return found
}

// ghosts returns the lives that began after their pod was no longer desired (I4).
func ghosts(lives []Life, h *History) (found []Violation) {
	for _, l := range lives {
		if since := h.awaySince(l.Pod, l.From); !since.IsZero() && l.From.Sub(since) > slack {
			found = append(found, Violation{"I4", l.From, l.Pod, fmt.Sprintf("%s began, the pod is away since %s", l, since.Format(clock))})
		}
	}
	return found
}
