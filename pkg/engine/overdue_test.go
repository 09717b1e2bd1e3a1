package engine

import (
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/status"
)

// TestF32_OverdueStopIsLogged: after twice the grace, during the stop, the pod's status names a
// container that does not exit. Each agent logs it once, however often the stop is retried. A
// command beside the agent shows it too.
//
// Shows: F32
func TestF32_OverdueStopIsLogged(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		web := pod.Key{Namespace: "default", Name: "web"}
		side := func(p *v1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: "side", Image: "side:1", ImagePullPolicy: v1.PullIfNotPresent})
		}
		m.src.set(mkpod("web", side, graceSeconds(10)))
		m.arrive()
		lift := m.rt.Fault(critest.Fault{Method: "StopContainer", Container: "app", Hang: true})
		m.src.set()
		m.settle()
		began := time.Now()
		m.pass(20*time.Second - time.Millisecond)
		if st := m.disk.last(web).pod.Status; st.Reason != "" {
			t.Errorf("before twice its grace: %s %s", st.Reason, st.Message)
		}
		m.pass(2 * time.Millisecond)
		p := m.disk.last(web).pod
		if want := "stop began at " + began.UTC().Format(time.RFC3339) + " with a grace period of 10 s; containers still running: app"; p.Status.Reason != "StopOverdue" ||
			p.Status.Message != want || p.Status.Phase != v1.PodRunning || p.DeletionTimestamp == nil {
			t.Errorf("after it: %s, reason %s\n%s\nwant\n%s", p.Status.Phase, p.Status.Reason, p.Status.Message, want)
		}
		have, err := m.config(m.rt.Connect()).Runtime.Pods(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		kept, _ := m.disk.All()
		if seen := status.Pods(&have, nil, kept, nil, time.Now()); len(seen) != 1 || seen[0].Status.Reason != "StopOverdue" || seen[0].Status.Message != p.Status.Message {
			t.Errorf("from beside: %+v", seen)
		}
		said := func() int {
			return strings.Count(m.log.String(), "Container is still running after its grace period; waiting for it")
		}
		if !strings.Contains(m.log.String(), "containers=app stopping_for=20s") {
			t.Error("the duration of the stop was not logged")
		}
		m.pass(time.Hour) // the call's own deadline passes many times
		if n := said(); n != 1 {
			t.Errorf("logged %d times", n)
		}
		if st := m.disk.last(web).pod.Status; st.Reason != "StopOverdue" {
			t.Errorf("an hour later: %q", st.Reason)
		}
		m.leave()
		m.arrive()
		if n := said(); n != 2 {
			t.Errorf("logged %d times by two agents", n)
		}
		lift()
		m.pass(5 * time.Minute)
		if got := m.phase("web"); got != "gone" {
			t.Errorf("when it ended at last: %s", got)
		}
		for _, line := range []string{`msg="Starting container" pod=default/web container=app`, `msg="Pod removed" pod=default/web reason="no longer in the desired set"`} {
			if !strings.Contains(m.log.String(), line) {
				t.Errorf("the log lacks %s", line)
			}
		}
	})
}

// TestF32_StopInTimeIsNotOverdue: a stop that takes all of its grace, or has none, is not
// overdue.
//
// Shows: F32
func TestF32_StopInTimeIsNotOverdue(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.src.set(mkpod("a", image("ignore-term"), graceSeconds(30)), mkpod("b", image("ignore-term"), graceSeconds(0)))
		m.arrive()
		m.src.set()
		m.pass(time.Hour)
		if a, b := m.phase("a"), m.phase("b"); a != "gone" || b != "gone" {
			t.Errorf("a %s, b %s", a, b)
		}
		for _, l := range m.disk.lines {
			if l.pod.Status.Reason == "StopOverdue" {
				t.Errorf("%s was called overdue", l.pod.Name)
			}
		}
	})
}
