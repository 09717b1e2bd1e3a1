package engine

import (
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/pod"
)

// replacements notes whether the newest report says that containers are being replaced.
func replacements(m *machine) *atomic.Bool {
	newest := new(atomic.Bool)
	m.disk.onReport = func(r pod.StatusReport) { newest.Store(r.Replacing) }
	return newest
}

func renamed(p *v1.Pod) { p.Spec.Containers[0].Name = "other" }

func onHostNetwork(p *v1.Pod) { p.Spec.HostNetwork = true }

// slow is a pod whose container takes 20 seconds to stop.
func slow() *pod.Spec { return mkpod("web", image("slow-term-20s"), graceSeconds(30)) }

// TestReport_EditStopsContainers_SaysSoUntilTheyHaveStopped also if the agent restarts meanwhile. A
// step after the stop, such as a long pull, does not count.
//
// Shows: C-1.13.9
func TestReport_EditStopsContainers_SaysSoUntilTheyHaveStopped(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]func(*v1.Pod){"another instance": onHostNetwork, "another container": renamed, "another image": image("app:2")} {
		for _, restarts := range []bool{false, true} {
			t.Run(name+map[bool]string{true: ", the agent restarts"}[restarts], func(t *testing.T) {
				t.Parallel()
				bubble(t, func(t *testing.T, m *machine) {
					newest := replacements(m)
					m.disk.hookTakes = map[string]time.Duration{"app": time.Hour, "other": time.Hour}
					m.src.set(slow())
					m.arrive()
					m.pass(time.Minute)
					if newest.Load() {
						t.Error("nothing was edited yet")
					}
					m.src.set(mkpod("web", image("app:1"), edit, hooked))
					m.pass(5 * time.Second)
					if restarts {
						m.die()
						newest.Store(false)
						m.arrive()
						m.pass(time.Second)
					}
					if !newest.Load() {
						t.Error("the old container stops, and the report does not say so")
					}
					m.pass(30 * time.Second)
					if newest.Load() {
						t.Errorf("the old container has stopped, and the report does not say so:\n%s", m.rt.State())
					}
				})
			})
		}
	}
}

// TestReport_EditIsBlocked_ReplacesNothing: an image cannot be pulled, so the old container runs on.
//
// Shows: C-1.13.9
func TestReport_EditIsBlocked_ReplacesNothing(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *machine) {
		newest := replacements(m)
		m.src.set(slow())
		m.arrive()
		m.pass(time.Minute)
		lift := m.rt.Fault(critest.Fault{Method: "PullImage", Err: errFull})
		m.src.set(mkpod("web", image("remote:2")))
		m.pass(5 * time.Second)
		if newest.Load() {
			t.Error("the report says that the old container stops")
		}
		lift()
		m.pass(15 * time.Second)
		if !newest.Load() {
			t.Errorf("the old container stops, and the report does not say so:\n%s", m.rt.State())
		}
	})
}

// TestReport_RuntimeIsNotReady_ReplacesNothing: an edit begins with a pull, which waits until the
// runtime is ready, so the old container runs on.
//
// Shows: C-1.13.9
func TestReport_RuntimeIsNotReady_ReplacesNothing(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]func(*v1.Pod){"another instance": onHostNetwork, "another image": image("remote:2")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, m *machine) {
				newest := replacements(m)
				m.src.set(slow())
				m.arrive()
				m.pass(time.Minute)
				m.rt.SetReady(false, true, "it starts")
				m.pass(20 * time.Second)
				m.src.set(mkpod("web", image("remote:2"), edit))
				m.pass(20 * time.Second)
				if newest.Load() {
					t.Error("the report says that the old container stops")
				}
				m.rt.SetReady(true, true, "")
				m.pass(10 * time.Second)
				if !newest.Load() {
					t.Errorf("the old container stops, and the report does not say so:\n%s", m.rt.State())
				}
			})
		})
	}
}
