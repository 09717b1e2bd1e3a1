package engine

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
)

// forbidding has the next agents forbid the pods of these names.
func (m *machine) forbidding(names ...string) {
	m.alter = func(c *Config) {
		c.Forbids = func(want *pod.Spec) string {
			for _, name := range names {
				if want.Name == name {
					return `source policy rule "edge" does not allow host path "/"`
				}
			}
			return ""
		}
	}
}

// After a reboot a pod that a policy now forbids does not start: neither from the last good set of
// its source, nor from its record alone. The others start.
//
// Shows: D1
func TestForbidden_RestoredPodAfterReboot_DoesNotStart(t *testing.T) {
	for name, fail := range map[string]error{"silent": nil, "failing": errors.New("no route to host")} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, m *machine) {
				m.disk.keepSets()
				m.src.set(mkpod("good"), mkpod("bad"))
				m.arrive()
				m.pass(5 * time.Second)
				m.leave()
				m.rt.Reboot()
				m.rt.Reset()
				if m.mute = fail == nil; fail != nil {
					m.src.fail(fail)
				}
				m.forbidding("bad")
				m.arrive()
				m.pass(time.Hour)
				got := strings.Join(m.rt.Transcript(), "\n")
				if strings.Contains(got, "default/bad") || !strings.Contains(got, "StartContainer default/good/app") {
					t.Errorf("after a reboot:\n%s", got)
				}
				if n := strings.Count(m.log.String(), `msg="Not starting containers of the pod; running containers continue" pod=default/bad`); n != 1 {
					t.Errorf("reported %d times", n)
				}
			})
		})
	}
}

// A running pod continues when a policy forbids it: through a restart of the agent, an edit
// and a resize. An exited container of it does not restart, and the pod can be deleted.
//
// Shows: D1
func TestForbidden_RunningPod_GoesOnAndDoesNotRestart(t *testing.T) {
	bad := pod.Key{Namespace: "default", Name: "bad"}
	bubble(t, func(t *testing.T, m *machine) {
		m.disk.keepSets()
		m.src.set(mkpod("bad"))
		m.arrive()
		m.pass(5 * time.Second)
		m.leave()
		m.rt.Reset()
		m.forbidding("bad")
		m.arrive()
		m.pass(time.Minute)
		m.src.set(mkpod("bad", image("nginx:2")))
		m.pass(time.Minute)
		m.src.set(mkpod("bad", image("nginx:2"), graceSeconds(7)))
		m.pass(time.Minute)
		if got := m.rt.Transcript(); len(got) > 0 {
			t.Fatalf("a running pod was touched:\n%s", strings.Join(got, "\n"))
		}
		err := m.asked(func(ctx context.Context) error { return m.agent.engine.Restart(ctx, bad, nil, nil) })
		if refused := (*RefusedError)(nil); !errors.As(err, &refused) || !strings.Contains(err.Error(), "source policy") {
			t.Errorf("restart: %v", err)
		}
		m.rt.Exit(bad, "app", 1)
		m.pass(time.Hour)
		if got := strings.Join(m.rt.Transcript(), "\n"); strings.Contains(got, "StartContainer") || strings.Contains(got, "RunPodSandbox") {
			t.Errorf("a forbidden container started again:\n%s", got)
		}
		m.src.set()
		m.pass(time.Minute)
		if m.phase("bad") != "gone" {
			t.Errorf("after its manifest went it is %s", m.phase("bad"))
		}
	})
}

// A pod that is forbidden from the start is Pending, with the reason.
func TestForbidden_NewPod_IsPendingWithTheReason(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.forbidding("bad")
		m.src.set(mkpod("bad"))
		m.arrive()
		m.pass(time.Minute)
		if got := m.rt.Transcript(); len(got) > 0 {
			t.Errorf("did\n%s", strings.Join(got, "\n"))
		}
		if st := m.disk.last(pod.Key{Namespace: "default", Name: "bad"}).pod.Status; st.Phase != "Pending" || st.Reason != eventForbidden || !strings.Contains(st.Message, "source policy") {
			t.Errorf("%s %s %s", st.Phase, st.Reason, st.Message)
		}
	})
}
