package probe

import (
	"errors"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// State is the probe status of one container, with the results since its last change. It is
// a value: After returns the next one.
//
//	published   result            run                 → published
//	none        any               below threshold     → none
//	none        any               at its threshold    → that result
//	success     failure           failureThreshold    → failure
//	failure     success           successThreshold    → success
//	any         prober failed     –                   → unchanged, not counted
type State struct {
	// Status is the published probe status; it is undefined while Known is false.
	Status pod.ProbeStatus
	// Known says that Status is defined: a status was published for this container, or the probe is
	// a liveness probe, which begins with success.
	Known bool

	kind  pod.ProbeKind
	run   int  // equal results in a row
	runOK bool // whether they are successes
}

// Begin returns the state of one probe at the start of a container (C-1.29.4). A liveness probe
// begins with success. Readiness and startup probes begin without a status: a new container counts as
// neither ready nor started. After a restart of the agent, a container keeps its reported status until
// the first new one.
func Begin(kind pod.ProbeKind, containerID string) State {
	alive := kind == pod.Liveness
	return State{kind: kind, Known: alive, Status: pod.ProbeStatus{ContainerID: containerID, OK: alive}}
}

// Final reports whether the probe status of this container can no longer change: a liveness
// failure, or any status of a startup probe (C-1.29.9).
func (s State) Final() bool {
	switch s.kind {
	case pod.Liveness:
		return !s.Status.OK
	case pod.Startup:
		return s.Known
	}
	return false
}

// IsProberError reports whether err, as Prober.Probe returns it, is a failure of the prober and
// no answer of the container.
func IsProberError(err error) bool {
	var failure *pod.ProbeFailure
	var warning *pod.ProbeWarning
	return err != nil && !errors.As(err, &failure) && !errors.As(err, &warning)
}

// After returns the state after one run of p; err is the result of Prober.Probe. published says that
// the run published a status that differs from the one before. A run publishes its result if as many
// equal results as the threshold have followed each other (C-1.29.8). A *pod.ProbeWarning is a
// success. A failure of the prober itself changes nothing (C-1.29.7).
func (s State) After(p *v1.Probe, err error) (next State, published bool) {
	if IsProberError(err) {
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
	published = !s.Known || s.Status.OK != ok
	s.Known, s.Status.OK, s.Status.Message = true, ok, ""
	if !ok {
		s.Status.Message = err.Error()
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
