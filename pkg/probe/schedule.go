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

// Period returns the time from the start of one run of p to the start of the
// next.
func Period(p *v1.Probe) time.Duration {
	if p == nil || p.PeriodSeconds <= 0 {
		return defaultPeriod
	}
	return time.Duration(p.PeriodSeconds) * time.Second
}

// Due returns when p is to run next, never before now.
//
// No run is due before the initial delay after startedAt is over (C-1.29.5). A later run (last
// is not zero) is also not due before a period after last, the start of the previous run, is
// over (C-1.29.3). Missed runs, because the machine slept or a run took longer than a period,
// are skipped. A startedAt after now comes from a clock that was set back; the delay then
// counts as over.
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

// Spread returns the delay of the first run of p after a start of the agent, so that the
// probes of a full node do not run all at once (C-1.29.3). fraction is random, from 0 up to
// 1. Only containers that started before the agent get a delay: a new one is probed at
// once, where the kubelet waits.
func Spread(p *v1.Probe, startedAt, agentStart, now time.Time, fraction float64) time.Duration {
	if !startedAt.Before(agentStart) || now.Sub(agentStart) >= Period(p) {
		return 0
	}
	return time.Duration(fraction * float64(Period(p)))
}

// stall is how late a wake-up may be on a machine that is only busy.
const stall = 750 * time.Millisecond

// Stalled reports whether a wake-up that was due at planned and happened at now was late
// because the process was stopped, or the machine slept (F5). It compares both clocks: the
// monotonic one may stop with the machine, the wall clock does not. A wall clock that is
// set forward looks the same.
func Stalled(planned, now time.Time) bool {
	return now.Sub(planned) > stall || now.Round(0).Sub(planned.Round(0)) > stall
}
