package plan_test

import (
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/nodectl/nodectl/pkg/plan/plantest"
	"github.com/nodectl/nodectl/pkg/pod"
)

// kubeletBackoff is the kubelet's crash back-off as in C-1.22.5. Unlike ours, it keeps state: an
// entry that doubles. It drops the entry when an exit is more than twice the cap after its last
// change.
type kubeletBackoff struct {
	max, delay time.Duration
	changed    time.Time
	exited     time.Time // of the newest exited container; zero when none
}

// starts returns when the next container starts if it is requested at now.
func (k *kubeletBackoff) starts(now time.Time) time.Time {
	if k.exited.IsZero() {
		return now
	}
	known := k.delay > 0 && k.exited.Sub(k.changed) <= 2*k.max
	if wait := k.exited.Add(k.delay).Sub(now); known && wait > 0 {
		now = now.Add(wait)
	}
	if k.delay = min(2*k.delay, k.max); !known {
		k.delay = min(10*time.Second, k.max)
	}
	k.changed = now
	return now
}

// kill returns when the next container starts after a probe's kill that ended at now.
func (k *kubeletBackoff) kill(now time.Time) time.Time {
	known := k.delay > 0 && !k.exited.IsZero()
	if blocked := known && now.Sub(k.exited) < k.delay; blocked {
		k.exited = now // the next read finds the killed container
		return k.starts(now)
	}
	at := k.starts(now)
	k.exited = now
	return at
}

// TestC_1_22_5_StartsWhenTheKubeletWould lets a container crash, and be killed by its probe,
// after random times, and compares its start times with the kubelet's own arithmetic.
//
// Shows: C-1.22.5
func TestC_1_22_5_StartsWhenTheKubeletWould(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := newSim()
		f := podShape{policy: "Always", containers: 1, probes: true}
		runUp(m, &f)
		model := kubeletBackoff{max: 5 * time.Minute}
		for n := range rapid.IntRange(1, 14).Draw(t, "containers") {
			kill := rapid.Bool().Draw(t, "kill")
			lasts := rapid.SampledFrom([]int{1, 5, 9, 12, 25, 45, 90, 200, 400, 550}).Draw(t, "seconds")
			if !kill && rapid.IntRange(0, 9).Draw(t, "long") == 0 {
				lasts = 700
			}
			m.stopTakes = time.Duration(rapid.IntRange(0, 30).Draw(t, "stop")) * time.Second
			c := m.container(m.have().Containers["c0"].ID)
			m.now = m.now.Add(time.Duration(lasts) * time.Second)
			var want time.Time
			if kill {
				m.health.Live["c0"] = pod.ProbeStatus{ContainerID: c.ID}
				want = model.kill(m.now.Add(m.stopTakes))
			} else {
				m.exit(c, 1)
				model.exited = m.now
				want = model.starts(m.now)
			}
			for range 5 {
				if p := m.round(-1); len(p.Steps) == 0 {
					m.now = m.now.Add(p.Wait)
				}
				if next := m.have().Containers["c0"]; next.ID != c.ID && next.State == pod.StateRunning {
					break
				}
			}
			next := m.have().Containers["c0"]
			if next.ID == c.ID || !next.StartedAt.Equal(want) || len(m.broken) > 0 {
				t.Fatalf("container %d, killed %t after %d s: next at +%s, the kubelet at +%s %v", n+1, kill, lasts,
					next.StartedAt.Sub(plantest.Now), want.Sub(plantest.Now), m.broken)
			}
		}
	})
}

// TestC_1_21_3_RestartAllIsHeldBack: a rule that restarts all containers cannot make them restart
// without a pause. The container whose rule matched backs off like one that crashes, although each
// restart removes it.
//
// Shows: C-1.21.3
func TestC_1_21_3_RestartAllIsHeldBack(t *testing.T) {
	t.Parallel()
	m := newSim()
	f := podShape{policy: "Never", containers: 2, inits: 1, sidecars: 1, own: "Never", rule: "RestartAllContainers"}
	runUp(m, &f)
	one := int32(1)
	m.ends = func(name string) *int32 {
		switch name {
		case "c0":
			return &one
		case "init0":
			return new(int32)
		}
		return nil
	}
	var gaps []int
	first := m.have().Containers["c0"]
	last := m.now
	m.exitAll("c0", 1)
	for seen := first.Restarts; len(gaps) < 8; {
		p := m.round(-1)
		if len(m.broken) > 0 {
			t.Fatal(m.broken)
		}
		if len(p.Steps) == 0 {
			m.now = m.now.Add(p.Wait)
		}
		if c, ok := m.have().Containers["c0"]; ok && c.Restarts > seen {
			if c.Restarts != seen+1 {
				t.Fatalf("restart count goes from %d to %d", seen, c.Restarts)
			}
			seen = c.Restarts
			gaps = append(gaps, int(m.now.Sub(last).Seconds()))
			last = m.now
		}
	}
	if diff := gocmp.Diff([]int{0, 10, 20, 40, 80, 160, 300, 300}, gaps); diff != "" {
		t.Errorf("seconds between restarts (-want +got):\n%s", diff)
	}
	if c := m.have().Containers["side0"]; c.Restarts != first.Restarts+8 || slices.ContainsFunc(m.have().Dead, func(d pod.Container) bool { return d.Name == "side0" }) {
		t.Errorf("sidecar %v was not restarted with the others", c)
	}
}
