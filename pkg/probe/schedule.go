package probe

import (
	"time"

	v1 "k8s.io/api/core/v1"
)

// Defaults for a probe without defaulted fields (C-1.29.2).
const (
	defaultTimeout = time.Second
	defaultPeriod  = 10 * time.Second
	defaultSuccess = 1
	defaultFailure = 3
)

// Timeout returns the time limit of one try of p.
func Timeout(p *v1.Probe) time.Duration {
	if p == nil || p.TimeoutSeconds <= 0 {
		return defaultTimeout
	}
	return time.Duration(p.TimeoutSeconds) * time.Second
}

// Period returns the time from the start of one run of p to the start of the next one.
func Period(p *v1.Probe) time.Duration {
	if p == nil || p.PeriodSeconds <= 0 {
		return defaultPeriod
	}
	return time.Duration(p.PeriodSeconds) * time.Second
}

// Due returns when p is to run next, never before now.
//
// startedAt is when the container started: no run is due before the initial delay after that is over
// (C-1.29.5). last is the start of the previous run, zero for none: the next run is due a period after
// it (C-1.29.3). Due skips runs that were missed because the machine slept or a run took longer than a
// period. If startedAt is after now, the clock was set back, and the delay counts as over.
func Due(p *v1.Probe, startedAt, last, now time.Time) time.Time {
	due := now
	if !startedAt.After(now) {
		due = startedAt.Add(time.Duration(p.InitialDelaySeconds) * time.Second)
	}
	if !last.IsZero() {
		if next := last.Add(Period(p)); next.After(due) {
			due = next
		}
	}
	if due.Before(now) {
		return now
	}
	return due
}

// Spread returns the delay of the first run of p after a start of the agent. It keeps the probes of a
// full node from running all at once (C-1.29.3). fraction is random, from 0 up to 1. Only the probes of
// containers that started before the agent get a delay. Unlike the kubelet, nodectl does not delay the
// first probe of a new container.
func Spread(p *v1.Probe, startedAt, agentStart, now time.Time, fraction float64) time.Duration {
	if !startedAt.Before(agentStart) || now.Sub(agentStart) >= Period(p) {
		return 0
	}
	return time.Duration(fraction * float64(Period(p)))
}

// stall is how late a wake-up may be on a busy machine.
const stall = 750 * time.Millisecond

// Stalled reports whether the process was stopped, or the machine slept, before a wake-up (F5). The
// wake-up was due at planned and happened at now. Stalled compares both clocks: while the machine
// sleeps, the monotonic clock may stop, but the wall clock does not. If the wall clock was set
// forward, Stalled returns true as well.
func Stalled(planned, now time.Time) bool {
	return now.Sub(planned) > stall || now.Round(0).Sub(planned.Round(0)) > stall
}
