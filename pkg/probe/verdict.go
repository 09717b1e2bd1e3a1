package probe

import (
	"errors"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

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

// Begin returns the state of one life of a container, with nothing published:
// whoever shows it takes a fresh container for not ready, and lets what was said
// before an agent's restart stand until the first verdict (C-1.29.4).
func Begin(containerID string) State {
	return State{Verdict: pod.Verdict{ContainerID: containerID}}
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
