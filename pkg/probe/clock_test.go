package probe_test

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/nodectl/nodectl/pkg/probe"
)

// TestF14_DueUnderAJumpingClock: a container's start time comes from the wall clock, which
// may be years off. A probe is due now or within its own times, never in the past, and
// missed runs count as one.
//
// Shows: F14
func TestF14_DueUnderAJumpingClock(t *testing.T) {
	t.Parallel()
	const year = 365 * 24 * time.Hour
	rapid.Check(t, func(t *rapid.T) {
		p := &v1.Probe{
			InitialDelaySeconds: int32(rapid.IntRange(0, 600).Draw(t, "delay")),
			PeriodSeconds:       int32(rapid.IntRange(1, 600).Draw(t, "period")),
		}
		now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
		started := now.Add(rapid.SampledFrom([]time.Duration{-10 * year, -time.Hour, -time.Minute, 0, time.Second, time.Hour, 10 * year}).Draw(t, "started"))
		var last time.Time
		if ago := rapid.IntRange(-1, 2000).Draw(t, "ago"); ago >= 0 { // by the monotonic clock
			last = now.Add(-time.Duration(ago) * time.Second)
		}
		due := probe.Due(p, started, last, now)
		longest := time.Duration(max(p.InitialDelaySeconds, p.PeriodSeconds)) * time.Second
		if wait := due.Sub(now); wait < 0 || wait > longest {
			t.Fatalf("waits %s, at most %s", wait, longest)
		}
		if started.After(now) && last.IsZero() && !due.Equal(now) {
			t.Fatalf("a start in the future puts the first run off by %s", due.Sub(now))
		}
	})
}
