package status_test

import (
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/nodectl/nodectl/pkg/plan/plantest"
	"github.com/nodectl/nodectl/pkg/status"
)

// TestF14_StatusUnderAJumpingClock checks the invariants of the status while the clock jumps by an
// hour or ten years, forward and back, between reads.
//
// Shows: F14
func TestF14_StatusUnderAJumpingClock(t *testing.T) {
	t.Parallel()
	const year = 365 * 24 * time.Hour
	rapid.Check(t, func(t *rapid.T) {
		want, err := plantest.Spec(fmt.Appendf(nil, everyKindOfContainer, "Always", "Always", "Restart"))
		if err != nil {
			t.Fatal(err)
		}
		now := plantest.Now
		notes := status.Notes{StartTime: now, Instance: 1}
		var before v1.PodStatus
		for range rapid.IntRange(2, 12).Draw(t, "computations") {
			shown := now // the runtime and the probes have times from before the jump
			now = now.Add(rapid.SampledFrom([]time.Duration{-10 * year, -time.Hour, -time.Second, time.Second, time.Hour, 10 * year}).Draw(t, "jump"))
			have := drawActual(t, want, shown)
			health := drawNotes(t, &notes, have, shown)
			st := status.Of(want, have, health, before, notes, now)
			if why := violation(before, st, now); why != "" {
				t.Fatalf("%s\nbefore %+v\nafter %+v", why, before, st)
			}
			before = st
		}
	})
}
