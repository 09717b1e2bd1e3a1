package engine

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/shutdown"
	"github.com/nodectl/nodectl/pkg/status"
)

// drained is the halt of a node by a person, off the one of a machine that shuts down.
var (
	drained = Halt{HaltReason: plan.HaltReason{Reason: "NodeDrained", Message: "the node is drained"}}
	off     = Halt{HaltReason: plan.HaltReason{Reason: "NodeShutdown", Message: "Pod was rejected as the node is shutting down."}, Shutdown: true}
)

// halt halts the node. Agents that arrive later get the halt from the start, as from the file
// that package agent keeps.
func (m *machine) halt(h Halt) (ended <-chan struct{}) {
	m.t.Helper()
	m.alter = func(c *Config) { c.Halted = &h }
	ended, err := m.agent.engine.Halt(context.Background(), h)
	if err != nil {
		m.t.Error(err)
	}
	return ended
}

func (m *machine) resume() {
	m.t.Helper()
	m.alter = nil
	if err := m.agent.engine.Resume(context.Background()); err != nil {
		m.t.Error(err)
	}
}

// closed reports whether a channel is closed.
func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (m *machine) statusOf(name string) v1.PodStatus {
	m.t.Helper()
	l := m.disk.last(pod.Key{Namespace: "default", Name: name})
	if l == nil {
		m.t.Fatalf("pod %s was never reported", name)
	}
	return l.pod.Status
}

// TestHalt_DrainedNode_StopsInOrderAndStartsNothing: dependents stop first, nothing of a pod is
// left but exited containers, and nothing starts before Resume: neither a crashed container, a
// new pod nor a pod that an agent finds after a restart. Then pods start in order.
func TestHalt_DrainedNode_StopsInOrderAndStartsNothing(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *machine) {
		front := after("front", pod.Dependency{Name: "web", Until: pod.Started})
		web := after("web", pod.Dependency{Name: "db", Until: pod.Started})
		crashes := mkpod("crashes", image("exit-1-after-1s"), policy(v1.RestartPolicyNever))
		m.src.set(front, web, mkpod("db", image("slow-term-2s")), crashes, mkpod("loop", image("exit-1-after-3s")))
		m.arrive()
		m.pass(10 * time.Second)
		m.rt.Reset()
		ended := m.halt(drained)
		m.pass(time.Second)
		again := m.halt(drained) // an equal one changes nothing
		if closed(ended) || closed(again) {
			t.Error("all have ended before db has")
		}
		m.pass(10 * time.Second)
		late := m.halt(drained)
		m.settle()
		if !closed(ended) || !closed(again) || !closed(late) || strings.Contains(m.rt.State(), "running") || strings.Contains(m.rt.State(), " ready") || len(m.disk.volumes) > 1 { // those of crashes, which had terminated
			t.Errorf("ended: %t, volumes %v, runtime:\n%s", closed(ended), m.disk.volumes, m.rt.State())
		}
		if !strings.Contains(m.log.String(), `msg="Finished stopping all pods"`) {
			t.Error("the end of the drain was not logged")
		}
		if got := order(m, "StopContainer"); !slices.Equal(got, []string{"front", "web", "db"}) {
			t.Errorf("stopped in the order %v", got)
		}
		m.src.set(front, web, mkpod("db", image("slow-term-2s")), crashes, mkpod("loop", image("exit-1-after-3s")), mkpod("new"))
		m.pass(time.Minute)
		m.die()
		m.arrive()
		m.pass(time.Minute)
		for _, line := range m.rt.Transcript() {
			if strings.Contains(line, " RunPodSandbox ") || strings.Contains(line, " StartContainer ") {
				t.Errorf("it starts something: %s", line)
			}
		}
		for _, name := range []string{"web", "new"} {
			if st := m.statusOf(name); st.Phase != v1.PodPending || st.Reason != "NodeDrained" || st.Message != "the node is drained" {
				t.Errorf("pod %s: %s %s %s", name, st.Phase, st.Reason, st.Message)
			}
		}
		m.rt.Reset()
		m.resume()
		m.pass(10 * time.Second)
		if got := order(m, "StartContainer"); !slices.Equal(got, []string{"db", "web", "front"}) || m.phase("new") != "Running" || m.phase("crashes") != "Failed" {
			t.Errorf("started in the order %v; new is %s, crashes is %s", got, m.phase("new"), m.phase("crashes"))
		}
		if n := m.instance(); n != 2 {
			t.Errorf("instance %d", n)
		}
	})
}

// TestHalt_GracePeriods_AreKept: a pod gets its own grace, at most the period of its class, also
// if the agent is killed meanwhile. A class that takes too long does not delay the next one.
//
// Shows: C-1.36.2
func TestHalt_GracePeriods_AreKept(t *testing.T) {
	t.Parallel()
	priority := func(n int32) func(*v1.Pod) { return func(p *v1.Pod) { p.Spec.Priority = &n } }
	bubble(t, func(t *testing.T, m *machine) {
		m.src.set(mkpod("web", image("ignore-term"), graceSeconds(600)), mkpod("db", image("ignore-term"), graceSeconds(7)),
			mkpod("front", image("ignore-term"), priority(shutdown.CriticalPriority)))
		m.arrive()
		m.pass(time.Second)
		h := off
		h.Order.Classes = shutdown.Classes(30*time.Second, 10*time.Second)
		begun := time.Now()
		m.halt(h)
		m.pass(5 * time.Second)
		m.die()
		m.pass(time.Second)
		m.arrive()
		ended := m.halt(h)
		up := map[string]time.Duration{"web": 0, "db": 0, "front": 0}
		for range 60 {
			for name := range up {
				if strings.Contains(m.rt.State(), "default/"+name+"/app") && m.running(name) {
					up[name] = time.Since(begun)
				}
			}
			m.pass(time.Second)
		}
		// The second agent has the time of the first stop from the records.
		for name, least := range map[string]time.Duration{"web": 20 * time.Second, "db": 7 * time.Second, "front": 30 * time.Second} {
			if got := up[name] + time.Second; got < least || got > least+9*time.Second {
				t.Errorf("pod %s ran for %s, want %s", name, got, least)
			}
		}
		if !closed(ended) {
			t.Error("it is not over")
		}
	})
}

func (m *machine) running(name string) bool {
	for line := range strings.Lines(m.rt.State()) {
		if strings.Contains(line, "default/"+name+"/app") && strings.Contains(line, "running") {
			return true
		}
	}
	return false
}

// TestHalt_Shutdown_EndsPodsOfAnAPIServer: they stay Failed, with the words of the kubelet;
// new ones are rejected. A static pod starts again after the next boot, whatever its policy.
//
// Shows: C-1.36.2
func TestHalt_Shutdown_EndsPodsOfAnAPIServer(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *machine) {
		static := mkpod("web", image("slow-term-2s"), policy(v1.RestartPolicyNever))
		m.src.set(static)
		m.more = newWishes()
		m.more.name = "api:/k"
		theirs, stuck := atAPI(mkpod("db", image("slow-term-2s"))), atAPI(mkpod("front", dependsOn("nothing")))
		stuck.DependsOn = []pod.Dependency{{Name: "nothing", Until: pod.Started}}
		m.more.set(theirs, stuck)
		m.arrive()
		m.pass(5 * time.Second)
		ended := m.halt(off)
		late := atAPI(mkpod("late"))
		m.more.set(theirs, stuck, late)
		m.pass(10 * time.Second)
		if !closed(ended) {
			t.Error("it is not over")
		}
		for name, message := range map[string]string{"db": status.ShutdownMessage, "front": status.ShutdownMessage} {
			st := m.statusOf(name)
			i := slices.IndexFunc(st.Conditions, func(c v1.PodCondition) bool { return c.Type == v1.DisruptionTarget })
			if st.Phase != v1.PodFailed || st.Reason != "Terminated" || st.Message != message || i < 0 || st.Conditions[i].Reason != v1.PodReasonTerminationByKubelet {
				t.Errorf("pod %s: %s %s %s %v", name, st.Phase, st.Reason, st.Message, st.Conditions)
			}
		}
		if st := m.statusOf("late"); st.Phase != v1.PodFailed || st.Reason != "NodeShutdown" || st.Message != "Pod was rejected: Pod was rejected as the node is shutting down." {
			t.Errorf("pod late: %s %s %s", st.Phase, st.Reason, st.Message)
		}
		m.die()
		m.rt.Reboot()
		m.alter = nil // the boot ID is another one
		m.arrive()
		m.pass(5 * time.Second)
		for name, want := range map[string]string{"web": "Running", "db": "Failed", "front": "Failed", "late": "Failed"} {
			if got := m.phase(name); got != want {
				t.Errorf("after the boot pod %s is %s, want %s", name, got, want)
			}
		}
	})
}

// TestHalt_SourceAnswersLate_ItsPodsStop: a pod of an earlier agent stops once its source has
// answered, even if all others had stopped before.
func TestHalt_SourceAnswersLate_ItsPodsStop(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *machine) {
		m.src.set(mkpod("web"))
		m.arrive()
		m.pass(5 * time.Second)
		m.leave()
		m.src.fail(errSilent)
		m.arrive()
		m.pass(5 * time.Second)
		ended := m.halt(drained)
		m.pass(5 * time.Second)
		if !closed(ended) || !m.running("web") {
			t.Fatalf("before the source answers, ended: %t, runtime:\n%s", closed(ended), m.rt.State())
		}
		m.src.set(mkpod("web"))
		m.pass(time.Minute)
		if m.running("web") {
			t.Errorf("after the source has answered:\n%s", m.rt.State())
		}
	})
}

// TestHalt_ContainerDoesNotExit_IsLogged: the halt ends when the time of the pods is over, and the
// log says that one still runs.
func TestHalt_ContainerDoesNotExit_IsLogged(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *machine) {
		m.src.set(mkpod("web", graceSeconds(10)))
		m.arrive()
		m.pass(5 * time.Second)
		lift := m.rt.Fault(critest.Fault{Method: "StopContainer", Container: "app", Hang: true})
		ended := m.halt(drained)
		m.pass(5 * time.Minute)
		if log := m.log.String(); !closed(ended) || !strings.Contains(log, `level=WARN msg="Pods still run after their grace period" pods=1`) || strings.Contains(log, "Finished stopping all pods") {
			t.Errorf("ended: %t, log:\n%s", closed(ended), log)
		}
		lift()
	})
}

// TestHalt_SyncLoopHangs_IsAnError: the caller of a halt does not wait forever.
func TestHalt_SyncLoopHangs_IsAnError(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e, begun := &Engine{halts: make(chan haltRequest)}, time.Now()
		_, err := e.Halt(context.Background(), off)
		if err == nil || !strings.Contains(err.Error(), "the sync loop is not responding") || time.Since(begun) != operationTimeout {
			t.Errorf("error %v after %s", err, time.Since(begun))
		}
	})
}

// TestHalt_Pull_IsCancelled: a pull in progress does not delay the shutdown.
func TestHalt_Pull_IsCancelled(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *machine) {
		m.rt.Fault(critest.Fault{Method: "PullImage", Delay: 10 * time.Minute})
		m.src.set(mkpod("web"))
		m.arrive()
		m.pass(5 * time.Second)
		ended := m.halt(off)
		m.pass(5 * time.Second)
		if !closed(ended) {
			t.Errorf("the pull delays the shutdown:\n%s", m.rt.State())
		}
	})
}
