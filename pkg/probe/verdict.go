package probe

import (
	"errors"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// adoptedAfter is how much older than the agent a container must be for its
// readiness to survive the agent's restart (C-1.29.4).
const adoptedAfter = 10 * time.Second

// State is what the results of one readiness probe add up to over one life of a
// container. It is a value: After returns the next one.
//
//	published   result            run                 → published
//	none        any               below threshold     → none
//	none        any               at its threshold    → that result
//	ready       failure           failureThreshold    → not ready
//	not ready   success           successThreshold    → ready
//	any         prober's trouble  –                   → unchanged, not counted
type State struct {
	// Verdict is the published result; meaningless while Known is false.
	Verdict pod.Verdict
	// Known says that a result was published in this life.
	Known bool

	run   int  // results in a row that say the same
	runOK bool // what they say
}

// Begin returns the state of a container's new life: not ready until a probe
// says otherwise. A container that ran well before the agent started begins
// with nothing published, so that what was said of it before stands until the
// first verdict (C-1.29.4).
func Begin(containerID string, startedAt, agentStart time.Time) State {
	s := State{Verdict: pod.Verdict{ContainerID: containerID}}
	if agentStart.Sub(startedAt) > adoptedAfter {
		return s
	}
	s.Known = true
	s.Verdict.Message = "not probed yet"
	return s
}

// After returns the state after one run of p that ended with err, as
// Prober.Probe returns it, and whether a verdict was published that differs
// from the one before. Results count when they repeat to their threshold
// (C-1.29.8); an error that is no *pod.ProbeFailure changes nothing (C-1.29.7).
func (s State) After(p *v1.Probe, err error) (next State, published bool) {
	var failure *pod.ProbeFailure
	ok := err == nil
	if !ok && !errors.As(err, &failure) {
		return s, false
	}
	if s.runOK != ok {
		s.run = 0
	}
	s.run, s.runOK = s.run+1, ok
	if s.run < threshold(p, ok) {
		return s, false
	}
	published = !s.Known || s.Verdict.OK != ok
	s.Known, s.Verdict.OK, s.Verdict.Message = true, ok, ""
	if failure != nil {
		s.Verdict.Message = failure.Message
	}
	return s, published
}

// threshold returns how many results in a row publish ok (C-1.29.2).
func threshold(p *v1.Probe, ok bool) int {
	n, unset := int(p.FailureThreshold), defaultFailure
	if ok {
		n, unset = int(p.SuccessThreshold), defaultSuccess
	}
	if n <= 0 {
		return unset
	}
	return n
}
