package probe

import (
	"errors"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// State is what the results of one probe add up to over one life of a container.
// It is a value: After returns the next one.
//
//	published   result            run                 → published
//	none        any               below threshold     → none
//	none        any               at its threshold    → that result
//	well        failure           failureThreshold    → not well
//	not well    success           successThreshold    → well
//	any         prober's trouble  –                   → unchanged, not counted
type State struct {
	// Verdict is the published result; meaningless while Known is false.
	Verdict pod.Verdict
	// Known says that a result stands in this life.
	Known bool

	kind  pod.ProbeKind
	run   int  // results in a row that say the same
	runOK bool // what they say
}

// Begin returns the state of one probe at the beginning of a container's life
// (C-1.29.4). Liveness begins well: only a failure is news. Readiness and startup
// begin with nothing published: whoever shows them takes a fresh container for
// neither ready nor started, and lets what was said before an agent's restart
// stand until the first verdict.
func Begin(kind pod.ProbeKind, containerID string) State {
	alive := kind == pod.Liveness
	return State{kind: kind, Known: alive, Verdict: pod.Verdict{ContainerID: containerID, OK: alive}}
}

// Final reports whether the probe has said its last word about this life: a
// liveness failure, or any verdict of a startup probe (C-1.29.9).
func (s State) Final() bool {
	switch s.kind {
	case pod.Liveness:
		return !s.Verdict.OK
	case pod.Startup:
		return s.Known
	}
	return false
}

// Trouble reports whether err, as Prober.Probe returns it, is the prober's own
// trouble and no answer of the container.
func Trouble(err error) bool {
	var failure *pod.ProbeFailure
	var warning *pod.ProbeWarning
	return err != nil && !errors.As(err, &failure) && !errors.As(err, &warning)
}

// After returns the state after one run of p that ended with err, as
// Prober.Probe returns it, and whether a verdict was published that differs
// from the one before. Results count when they repeat to their threshold
// (C-1.29.8): a *pod.ProbeWarning is a success, and the prober's own trouble changes nothing
// (C-1.29.7).
func (s State) After(p *v1.Probe, err error) (next State, published bool) {
	if Trouble(err) {
		return s, false
	}
	var failure *pod.ProbeFailure
	ok := !errors.As(err, &failure)
	if s.runOK != ok {
		s.run = 0
	}
	s.run, s.runOK = s.run+1, ok
	if s.run < threshold(p, ok) {
		return s, false
	}
	published = !s.Known || s.Verdict.OK != ok
	s.Known, s.Verdict.OK, s.Verdict.Message = true, ok, ""
	if !ok {
		s.Verdict.Message = err.Error()
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
