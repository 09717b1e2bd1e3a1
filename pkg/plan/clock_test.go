package plan_test

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
)

// jumps are changes of the clock between two reads.
var jumps = []time.Duration{0, time.Second, -time.Second, time.Hour, -time.Hour, 10 * 365 * 24 * time.Hour, -10 * 365 * 24 * time.Hour}

// TestF14_JumpingClockCostsNoContainer changes the clock between two reads. Running
// containers continue, and a crashed container restarts within its longest delay. A stop
// takes at most its grace, and at least the minimum.
//
// Shows: F14
func TestF14_JumpingClockCostsNoContainer(t *testing.T) {
	t.Parallel()
	const longest = 5 * time.Minute
	rapid.Check(t, func(t *rapid.T) {
		m := newSim()
		f := podShape{policy: "Always", containers: 2, sidecars: 1, inits: 1, grace: 5}
		runUp(m, &f)
		jump := func() { m.now = m.now.Add(rapid.SampledFrom(jumps).Draw(t, "jump")) }
		id := func(name string) string { return m.have().Containers[name].ID }
		innocent := map[string]string{"c1": id("c1"), "side0": id("side0")}
		restarts := 0
		for range rapid.IntRange(1, 8).Draw(t, "lives") {
			jump()
			if p := m.round(-1); len(p.Steps) > 0 {
				t.Fatalf("nothing happened, and the plan is\n%s", p)
			}
			was := id("c0")
			m.now = m.now.Add(time.Duration(rapid.IntRange(0, 900).Draw(t, "seconds")) * time.Second)
			m.exit(m.container(was), 1)
			waited := time.Duration(0)
			for range 8 {
				jump()
				if p := m.round(-1); len(p.Steps) == 0 && p.Wait > 0 {
					if waited = max(waited, p.Wait); p.Wait > longest {
						t.Fatalf("waits %s: %s", p.Wait, p.WaitFor)
					}
					if rapid.Bool().Draw(t, "in time") {
						m.now = m.now.Add(p.Wait)
						m.round(-1)
					}
				}
				if now := m.have().Containers["c0"]; now.ID != was && now.State == pod.StateRunning {
					break
				}
			}
			for now := m.have().Containers["c0"]; now.ID == was || now.State != pod.StateRunning; now = m.have().Containers["c0"] {
				p := m.round(-1) // the clock is right from here on
				if len(p.Steps) == 0 && (p.Wait <= 0 || p.Wait > longest) {
					t.Fatalf("c0 does not come back: %s", p)
				}
				m.now = m.now.Add(p.Wait)
			}
			if now := int(m.have().Containers["c0"].Restarts); now <= restarts {
				t.Fatalf("restart count goes from %d to %d", restarts, now)
			} else {
				restarts = now
			}
			for name, was := range innocent {
				if now := m.have().Containers[name]; now.ID != was || now.State != pod.StateRunning {
					t.Fatalf("%s was %s, is %v", name, was, now)
				}
			}
		}
		if len(m.broken) > 0 {
			t.Fatal(m.broken)
		}
		m.want = nil
		for range 4 {
			jump()
			for _, s := range m.round(0).Steps {
				if s.Action == plan.StopContainer && (s.Grace < 2 || s.Grace > 15) {
					t.Fatalf("a grace of 15 is %d", s.Grace)
				}
			}
		}
		if p, ok := m.settle(); !ok || !p.Gone {
			t.Fatalf("the pod does not go: %s", p)
		}
		for _, law := range m.broken {
			if !strings.HasPrefix(law, "grace grew") { // the clock was set back; grace never exceeds the original
				t.Fatal(law)
			}
		}
	})
}
