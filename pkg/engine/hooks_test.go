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

var webKey = pod.Key{Namespace: "default", Name: "web"}

// hooked gives a pod's container hooks of both kinds.
func hooked(p *v1.Pod) {
	run := &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"hook"}}}
	p.Spec.Containers[0].Lifecycle = &v1.Lifecycle{PostStart: run, PreStop: run}
}

func preStopped(p *v1.Pod) {
	p.Spec.Containers[0].Lifecycle = &v1.Lifecycle{PreStop: &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"hook"}}}}
}

// stopsOf returns the times and grace periods of the stops of the pod's container, from the
// transcript.
func stopsOf(m *machine) []string {
	var lines []string
	for _, line := range m.rt.Transcript() {
		if strings.Contains(line, "StopContainer") {
			lines = append(lines, line)
		}
	}
	return lines
}

// Shows: C-1.23, C-1.23.3
func TestC_1_23_3_PreStopTakesItsTimeOutOfTheGrace(t *testing.T) {
	for name, c := range map[string]struct {
		takes time.Duration
		want  string // the stop, and its time
	}{
		"short":   {10 * time.Second, "10s StopContainer default/web/app attempt=0 grace=20"},
		"instant": {200 * time.Millisecond, "200ms StopContainer default/web/app attempt=0 grace=30"},
		"hanging": {time.Hour, "30s StopContainer default/web/app attempt=0 grace=2"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, m *machine) {
				m.disk.hookTakes = map[string]time.Duration{"app": c.takes}
				m.src.set(mkpod("web", preStopped))
				m.arrive()
				m.src.set()
				m.pass(2 * time.Minute)
				if got := stopsOf(m); len(got) != 1 || got[0] != c.want {
					t.Errorf("stops %q, want %q", got, c.want)
				}
				m.want()
			})
		})
	}
}

// A failed hook does not prevent the stop (C-1.23.3). After the agent dies, the next one does
// not run a completed hook again.
//
// Shows: F1
func TestF1_PreStopThatHasEndedRunsOnce(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.disk.hookFails = map[string]error{"app": errors.New("no")}
		m.src.set(mkpod("web", preStopped, image("slow-term-20s")))
		m.arrive()
		m.src.set()
		m.pass(5 * time.Second)
		m.die()
		m.arrive()
		m.pass(2 * time.Minute)
		m.want()
		if got := m.disk.ran(); len(got) != 1 {
			t.Errorf("%d hooks ran", len(got))
		}
	})
}

// Shows: C-1.22.8
func TestC_1_22_8_FailedPostStartEndsTheContainer(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.disk.hookFails = map[string]error{"app": errors.New("no")}
		web := mkpod("web", hooked)
		m.src.set(web)
		m.arrive()
		m.pass(5 * time.Second)
		st := m.disk.last(webKey).pod.Status.ContainerStatuses[0]
		if st.State.Running != nil || starts(m, "web") != 2 {
			t.Errorf("%d starts, state %+v", starts(m, "web"), st.State)
		}
		if w := st.State.Waiting; w == nil || w.Reason != "CrashLoopBackOff" && w.Reason != "PostStartHookError" {
			t.Errorf("waiting %+v", w)
		}
		if strings.Contains(m.log.String(), "after no") {
			t.Error("the output of the hook is in the log")
		}
	})
}

// A container's hook delays the next container (C-1.22.1). If the agent dies while the hook
// runs, the record says that it is due.
//
// Shows: F1
func TestF1_PostStartIsRunAgainWhenTheAgentDiedOverIt(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.disk.hookTakes = map[string]time.Duration{"app": 10 * time.Second}
		m.src.set(mkpod("web", hooked, func(p *v1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: "next", Image: "app:1", ImagePullPolicy: v1.PullIfNotPresent})
		}))
		m.arrive()
		m.pass(5 * time.Second)
		if strings.Contains(m.rt.State(), "web/next") {
			t.Error("the next container has not waited for the hook")
		}
		m.die()
		m.arrive()
		m.pass(11 * time.Second)
		if got := m.disk.ran(); len(got) != 2 {
			t.Errorf("%d hooks ran", len(got))
		}
		if got := starts(m, "web"); got != 2 {
			t.Errorf("%d starts, want one of each container", got)
		}
		m.die()
		m.arrive()
		m.pass(time.Minute)
		if got := m.disk.ran(); len(got) != 2 {
			t.Errorf("%d hooks ran: one that has succeeded ran again", len(got))
		}
	})
}

// A hook that hangs delays its pod's start, not its removal.
//
// Shows: F82
func TestF82_HangingPostStartIsGivenUpWhenThePodGoes(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.disk.hookTakes = map[string]time.Duration{"app": time.Hour}
		web := mkpod("web", hooked)
		web.Pod.Spec.Containers[0].Lifecycle.PreStop = nil
		m.src.set(web, mkpod("db"))
		m.arrive()
		m.pass(time.Minute)
		if got := m.phase("db"); got != "Running" {
			t.Errorf("db is %s", got)
		}
		m.src.set(mkpod("db"))
		m.pass(time.Minute)
		if got := m.phase("web"); got != "gone" {
			t.Errorf("web is %s", got)
		}
	})
}

// A deletion without grace shortens a stop in progress (C-1.16.12); the kubelet lets it run
// on (C-1.18.2).
//
// Shows: C-1.16.12
func TestC_1_16_12_ForceDeleteShortensAStop(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		web := of("api", "/k", mkpod("web", preStopped, image("ignore-term"), graceSeconds(600)))
		m.src.name = "api:/k"
		m.disk.hookTakes = map[string]time.Duration{"app": 100 * time.Second}
		m.src.set(web)
		m.arrive()
		m.src.set(deletedAt(web, 600))
		m.pass(10 * time.Second)
		m.src.set(deletedAt(web, 0))
		m.pass(5 * time.Second)
		if strings.Contains(m.rt.State(), "running") {
			t.Errorf("runtime:\n%s", m.rt.State())
		}
	})
}

// deletedAt is a pod that its API server shows as being deleted, with grace.
func deletedAt(s *pod.Spec, grace int64) *pod.Spec {
	now := *s
	now.Pod = s.Pod.DeepCopy()
	at := metav1.Now()
	now.Pod.DeletionTimestamp, now.Pod.DeletionGracePeriodSeconds = &at, &grace
	return &now
}
