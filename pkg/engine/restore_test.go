package engine

import (
	"errors"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// of puts a pod into another layer.
func of(source, location string, s *pod.Spec) *pod.Spec {
	p := *s
	p.Origin = pod.Origin{Source: source, Location: location, File: location + "#" + s.Key.String()}
	return &p
}

// Shows: C-1.3.8
func TestC_1_3_8_RestoredPodsStartBeforeTheirSourceAnswers(t *testing.T) {
	for _, c := range []struct {
		name string
		fail error
	}{{"silent", nil}, {"failing", errors.New("no route to host")}} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, m *machine) {
				m.disk.keepSets()
				m.src.set(mkpod("a"), mkpod("b"))
				m.arrive()
				m.pass(5 * time.Second)
				m.leave()
				m.rt.Reboot()
				if c.fail != nil {
					m.src.fail(c.fail)
				} else {
					m.mute = true
				}
				m.arrive()
				m.pass(5 * time.Second)
				if state := m.rt.State(); strings.Count(state, "running") < 2 {
					t.Errorf("after a reboot without its source:\n%s", state)
				}
				if !strings.Contains(m.log.String(), `msg="Using last good set until the source answers" source=file:/m pods=2`) {
					t.Error("the restored pods were not logged")
				}
			})
		})
	}
}

// Shows: C-1.3.8
func TestC_1_3_8_RestoredPodThatVanishedStopsByItsOwnGrace(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.disk.keepSets()
		m.src.set(mkpod("a"), mkpod("b", graceSeconds(17)))
		m.arrive()
		m.pass(5 * time.Second)
		m.leave()
		m.src.set(mkpod("a"))
		m.rt.Reset()
		m.arrive()
		m.pass(time.Minute)
		if got := strings.Join(m.rt.Transcript(), "\n"); !strings.Contains(got, "StopContainer default/b/app attempt=0 grace=17") || strings.Contains(got, "default/a") {
			t.Errorf("did\n%s", got)
		}
		if m.phase("b") != "gone" || len(m.disk.restored()["file:/m"].Files) != 1 {
			t.Errorf("b is %s, %d files are kept", m.phase("b"), len(m.disk.restored()["file:/m"].Files))
		}
	})
}

// Shows: C-1.3.8
func TestC_1_3_8_RestoredPodOfAnAPIServerWaitsForItsAnswer(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.disk.keepSets()
		m.src.name = "api:/k"
		m.src.set(of("api", "/k", mkpod("set-0")), of("api", "/k", mkpod("set-1")))
		m.arrive()
		m.pass(5 * time.Second)
		m.leave()
		m.rt.Reboot()
		m.src.fail(errors.New("connection refused"))
		m.rt.Reset()
		m.arrive()
		m.pass(time.Hour)
		if got := m.rt.Transcript(); len(got) > 0 {
			t.Fatalf("before the server answers:\n%s", strings.Join(got, "\n"))
		}
		if !strings.Contains(m.log.String(), `msg="Not starting pod until its source answers" pod=default/set-0`) {
			t.Error("the waiting pods were not logged")
		}
		// The server has moved one of them to another node.
		m.src.set(of("api", "/k", mkpod("set-1")))
		m.pass(time.Minute)
		if state := m.rt.State(); strings.Count(state, "running") != 1 || !strings.Contains(state, "default/set-1") {
			t.Errorf("after the server has answered:\n%s", state)
		}
	})
}

// Shows: C-1.3.8
func TestC_1_3_8_RunningPodOfAnAPIServerIsKept(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.disk.keepSets()
		m.src.name = "api:/k"
		m.src.set(of("api", "/k", mkpod("set-0")))
		m.arrive()
		m.pass(5 * time.Second)
		m.leave()
		m.src.fail(errors.New("connection refused"))
		m.rt.Reset()
		m.arrive()
		m.pass(time.Minute)
		if got := m.rt.Transcript(); len(got) > 0 {
			t.Fatalf("a running pod was touched:\n%s", strings.Join(got, "\n"))
		}
		m.rt.Exit(pod.Key{Namespace: "default", Name: "set-0"}, "app", 1)
		m.pass(time.Minute)
		if got := strings.Join(m.rt.Transcript(), "\n"); !strings.Contains(got, "StartContainer default/set-0/app attempt=1") {
			t.Errorf("after a crash in it the pod was not repaired:\n%s", got)
		}
	})
}

// Shows: C-1.2.9
func TestC_1_2_9_DeletedPodStopsOnceAndStaysAway(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.src.name = "api:/k"
		m.src.set(of("api", "/k", mkpod("web")))
		m.arrive()
		m.pass(5 * time.Second)
		m.rt.Reset()
		at, grace := metav1.NewTime(time.Now()), int64(4)
		deleting := of("api", "/k", mkpod("web", func(p *v1.Pod) { p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &at, &grace }))
		m.src.set(deleting)
		m.pass(time.Hour)
		got := strings.Join(m.rt.Transcript(), "\n")
		if strings.Count(got, "StopContainer") != 1 || !strings.Contains(got, "grace=4") || strings.Contains(got, "RunPodSandbox") {
			t.Errorf("did\n%s", got)
		}
		m.want()
		// Another agent finds it deleted and gone, and does not start it.
		m.leave()
		m.rt.Reset()
		m.arrive()
		m.pass(time.Hour)
		if again := m.rt.Transcript(); len(again) > 0 {
			t.Errorf("the next agent did\n%s", strings.Join(again, "\n"))
		}
		m.src.set()
		m.pass(time.Minute)
		if m.phase("web") != "gone" {
			t.Errorf("phase %s", m.phase("web"))
		}
	})
}

// Shows: F12
func TestF12_SetsOnAFullDiskDelayNoPod(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.disk.keepSets()
		m.disk.refuse(true)
		m.arrive()
		m.src.set(mkpod("a"))
		m.pass(5 * time.Second)
		if !strings.Contains(m.rt.State(), "running") {
			t.Errorf("runtime:\n%s", m.rt.State())
		}
		if n := strings.Count(m.log.String(), "Failed to write last good set"); n != 1 {
			t.Errorf("logged %d times", n)
		}
		m.disk.refuse(false)
		m.src.set(mkpod("a"), mkpod("b"))
		m.pass(5 * time.Second)
		if n := len(m.disk.restored()["file:/m"].Files); n != 2 {
			t.Errorf("%d files are kept once there is room", n)
		}
	})
}

// Shows: I9
func TestI9_UnansweredSourceIsLogged(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.mute = true
		m.arrive()
		m.pass(4 * time.Second)
		const line = `msg="Source has not answered yet" source=file:/m`
		if strings.Contains(m.log.String(), line) {
			t.Error("logged after four seconds")
		}
		m.pass(time.Hour)
		if n := strings.Count(m.log.String(), line); n != 1 {
			t.Errorf("logged %d times", n)
		}
	})
}
