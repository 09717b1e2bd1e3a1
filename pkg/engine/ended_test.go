package engine

import (
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// failedAtServer makes a pod one that its API server shows as Failed.
func failedAtServer(p *v1.Pod) { p.Status.Phase = v1.PodFailed }

// Pods whose end their API server shows, and which never ran here, are not read from the
// runtime again: a server may have very many of them.
//
// Shows: I5
func TestIdle_PodsEndedAtTheirServer_AreNotLookedAt(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *machine) {
		var pods []*pod.Spec
		for i := range 20 {
			pods = append(pods, ofServer(mkpod(fmt.Sprint("job-", i), failedAtServer)))
		}
		m.src.set(pods...)
		m.arrive()
		m.pass(8 * time.Second)
		m.rt.Reset()
		m.pass(10 * time.Minute)
		if n := m.rt.Calls()["ListContainers"]; n > 11 {
			t.Errorf("%d lists in ten minutes of nothing", n)
		}
	})
}

// A pod of an API server has the UID of a running pod, and never ran here. The server shows that it
// has ended. The agent tears nothing down under that UID, and no plan contains such a step.
func TestEnded_UIDOfARunningPod_TakesNothingOfIt(t *testing.T) {
	t.Parallel()
	for name, lost := range map[string]bool{"it has its record": false, "its record is lost": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, m *machine) {
				m.groups = &groups{memory: map[string]int64{}}
				victim := mkpod("victim", ofUID("own"))
				m.src.set(victim)
				m.arrive()
				m.expect("victim", "Running", true)
				if lost {
					m.disk.mu.Lock()
					clear(m.disk.records)
					m.disk.mu.Unlock()
				}
				m.src.set(victim, ofServer(mkpod("thief", ofUID("own"), failedAtServer)))
				m.pass(time.Minute)
				m.expect("victim", "Running", true)
				m.expect("thief", "Failed", false)
				if !m.put("own") || !strings.Contains(m.groups.all(), "own") {
					t.Errorf("volumes %v, cgroups %s", m.disk.volumes, m.groups.all())
				}
				if n := strings.Count(m.log.String(), "Not removing anything"); n > 0 {
					t.Errorf("it was tried %d times", n)
				}
			})
		})
	}
}

// A terminated static pod is edited while the node has no room for it: once it runs, it takes
// the room that it was given.
func TestAdmission_TerminatedPodEditedWhileFull_TakesRoomOnceItRuns(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *machine) {
		m.on(cores("2"))
		web := mkpod("web", cpu("2"))
		m.src.set(mkpod("job", image("exit-0"), policy(v1.RestartPolicyNever)))
		m.arrive()
		m.pass(time.Minute)
		m.expect("job", "Succeeded", true)
		edited := mkpod("job", cpu("2"), policy(v1.RestartPolicyNever))
		m.src.set(mkpod("job", image("exit-0"), policy(v1.RestartPolicyNever)), web)
		m.pass(time.Minute)
		m.expect("web", "Running", true)
		m.src.set(edited, web)
		m.pass(time.Minute)
		if n := starts(m, "job"); n != 1 {
			t.Fatalf("%d starts without room", n)
		}
		m.src.set(edited)
		m.pass(time.Minute)
		m.expect("job", "Running", true)
		m.src.set(edited, mkpod("late", cpu("2")))
		m.pass(time.Minute)
		m.expect("late", "Pending OutOfcpu", false)
	})
}

// A pod replaces, in one set, a pod of its name that never ran here and is Failed: no report of
// it has the other one's phase or start.
func TestReport_PodReplacesOneThatNeverRan_IsItsOwn(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]func(*v1.Pod){"ended at its server": failedAtServer, "rejected by admission": cpu("100")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, m *machine) {
				m.on(cores("4"))
				begun := time.Now().Add(time.Minute)
				m.disk.onReport = func(r pod.StatusReport) {
					if st := r.Pod.Status; r.Pod.UID == "second" && (st.Phase == v1.PodFailed || st.StartTime.Time.Before(begun)) {
						t.Errorf("%s since %s, want nothing before %s", st.Phase, st.StartTime, begun)
					}
				}
				m.src.set(ofServer(mkpod("web", ofUID("first"), first)))
				m.arrive()
				m.pass(time.Minute)
				m.expect("web", "Failed", false)
				m.src.set(ofServer(mkpod("web", ofUID("second"))))
				m.pass(time.Minute)
				m.expect("web", "Running", true)
			})
		})
	}
}

// A refused static manifest over a pod of an API server stops that pod also where the agent
// has no record of it: its sandbox tells where it came from.
func TestEdit_RefusedManifestOverUnrecordedPodOfServer_PodStops(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *machine) {
		victim := mkpod("victim", ofUID("own"))
		m.src.set(victim, ofServer(mkpod("web", ofUID("first"))))
		m.arrive()
		m.expect("web", "Running", true)
		m.die()
		m.disk.mu.Lock()
		delete(m.disk.records, in("web"))
		m.disk.mu.Unlock()
		m.src.set(victim, mkpod("web", ofUID("own")))
		m.arrive()
		m.pass(2 * time.Minute)
		m.expect("web", "Pending DuplicateUID", false)
		m.expect("victim", "Running", true)
	})
}
