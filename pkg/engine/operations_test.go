package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/pod"
)

// asked returns the result of an operation, within a minute.
func (m *machine) asked(do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return do(ctx)
}

// instance is the newest instance of web, by its record.
func (m *machine) instance() int {
	r, _, _ := m.disk.Load(webKey, "")
	return r.Instance
}

func (m *machine) restart(containers ...string) {
	m.t.Helper()
	if err := m.asked(func(ctx context.Context) error { return m.agent.engine.Restart(ctx, webKey, containers, nil) }); err != nil {
		m.t.Errorf("restart %v: %v", containers, err)
	}
}

func (m *machine) remove(grace *int64) {
	m.t.Helper()
	if err := m.asked(func(ctx context.Context) error { return m.agent.engine.Delete(ctx, webKey, "", grace) }); err != nil {
		m.t.Errorf("delete: %v", err)
	}
}

// TestRestartOfAContainer: it restarts in the same sandbox, with its hook, whatever the
// policy and the crash streak; nothing else changes.
func TestRestartOfAContainer(t *testing.T) {
	t.Parallel()
	for _, p := range []v1.RestartPolicy{v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever} {
		bubble(t, func(t *testing.T, m *machine) {
			m.arrive()
			m.src.set(mkpod("web", preStopped, policy(p), beside("side", "side:1")))
			m.pass(time.Second)
			began := time.Now()
			m.restart("app")
			if took := time.Since(began); took != 0 {
				t.Errorf("%s: it was answered after %s", p, took)
			}
			m.pass(time.Second)
			m.restart("app") // restarts at once: no back-off
			m.pass(time.Second)
			if n := len(m.disk.ran()); n != 2 {
				t.Errorf("%s: %d hooks ran", p, n)
			}
			st := m.disk.last(webKey).pod.Status
			for i, want := range []int32{2, 0} {
				c := st.ContainerStatuses[i]
				if c.RestartCount != want || c.State.Running == nil {
					t.Errorf("%s: container %s restarted %d times, want %d: %v", p, c.Name, c.RestartCount, want, c.State)
				}
			}
			if st.Phase != v1.PodRunning || strings.Count(m.rt.State(), "sandbox") != 1 {
				t.Errorf("%s: %s\n%s", p, st.Phase, m.rt.State())
			}
		})
	}
}

// TestRestartWithoutNames: it restarts all running regular containers and sidecars.
func TestRestartWithoutNames(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *machine) {
		m.arrive()
		m.src.set(mkpod("web", initContainer("exit-0"), sidecar, beside("side", "side:1"), beside("done", "exit-0-after-1s"), policy(v1.RestartPolicyOnFailure)))
		m.pass(10 * time.Second)
		m.restart()
		m.pass(10 * time.Second)
		st := m.disk.last(webKey).pod.Status
		got := ""
		for _, c := range append(st.InitContainerStatuses, st.ContainerStatuses...) {
			got += fmt.Sprintf("%s %d\n", c.Name, c.RestartCount)
		}
		if want := "init 0\nproxy 1\napp 1\ndone 0\nside 1\n"; got != want {
			t.Errorf("restarted:\n%swant:\n%s", got, want)
		}
	})
}

// TestRestartEndsABackOff: a container in crash back-off starts at once.
func TestRestartEndsABackOff(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *machine) {
		m.arrive()
		m.src.set(mkpod("web", image("exit-1-after-1s")))
		m.pass(15 * time.Second) // it has crashed three times and waits for 20 s
		before := m.disk.last(webKey).pod.Status.ContainerStatuses[0]
		if before.State.Waiting == nil || before.State.Waiting.Reason != "CrashLoopBackOff" {
			t.Fatalf("it does not wait: %v", before.State)
		}
		m.restart("app")
		m.settle()
		now := m.disk.last(webKey).pod.Status.ContainerStatuses[0]
		if now.State.Running == nil || now.RestartCount != before.RestartCount+1 {
			t.Errorf("after a restart: %v, restarted %d times, %d before", now.State, now.RestartCount, before.RestartCount)
		}
	})
}

// TestRestartGrace: the requested grace applies; without any no hook runs.
func TestRestartGrace(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *machine) {
		m.arrive()
		m.src.set(mkpod("web", preStopped, image("ignore-term"), graceSeconds(600)))
		m.pass(time.Second)
		none := int64(0)
		if err := m.agent.engine.Restart(context.Background(), webKey, []string{"app"}, &none); err != nil {
			t.Fatal(err)
		}
		m.pass(3 * time.Second)
		if c := m.disk.last(webKey).pod.Status.ContainerStatuses[0]; c.RestartCount != 1 || c.State.Running == nil || len(m.disk.ran()) != 0 {
			t.Errorf("%v, restarted %d times, %d hooks", c.State, c.RestartCount, len(m.disk.ran()))
		}
	})
}

// TestOperationsThatAreRefused: the error names the alternative.
func TestOperationsThatAreRefused(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *machine) {
		m.arrive()
		job := mkpod("job", image("exit-0"), policy(v1.RestartPolicyNever))
		m.src.set(mkpod("web", initContainer("exit-0")), job, of("api", "/k", mkpod("theirs")))
		m.pass(time.Second)
		e := m.agent.engine
		key := func(name string) pod.Key { return pod.Key{Namespace: "default", Name: name} }
		minus := int64(-1)
		restart := func(name string, containers ...string) error {
			return m.asked(func(ctx context.Context) error { return e.Restart(ctx, key(name), containers, nil) })
		}
		remove := func(name string, grace *int64) error {
			return m.asked(func(ctx context.Context) error { return e.Delete(ctx, key(name), "", grace) })
		}
		for _, c := range []struct {
			err  error
			want string
		}{
			{restart("web", "nope"), `pod default/web has no container "nope"`},
			{restart("web", "init"), `container "init" of pod default/web is an init container: it runs only once`},
			{restart("job"), "pod default/job has terminated"},
			{remove("theirs", nil), "pod default/theirs comes from an API server: delete it there (kubectl delete pod theirs -n default)"},
			{m.asked(func(ctx context.Context) error { return e.Delete(ctx, webKey, "another", nil) }), "pod default/web now has another UID"},
			{remove("web", &minus), "grace period of -1 seconds must not be negative"},
		} {
			var refused *RefusedError
			if !errors.As(c.err, &refused) || c.err.Error() != c.want {
				t.Errorf("%v, want %s", c.err, c.want)
			}
		}
		for _, err := range []error{restart("none"), remove("none", nil)} {
			if !errors.Is(err, ErrNoPod) {
				t.Errorf("of a pod that is not there: %v", err)
			}
		}
		m.pass(time.Minute)
		if n := strings.Count(m.rt.State(), "attempt=1"); n != 0 {
			t.Errorf("something was restarted:\n%s", m.rt.State())
		}
		if err := m.asked(func(ctx context.Context) error { return e.Delete(ctx, webKey, string(mkpod("web").Pod.UID), nil) }); err != nil {
			t.Errorf("delete by its own UID: %v", err)
		}
	})
}

// TestDeleteOfAWantedPod: it starts again as a new instance, after its grace.
func TestDeleteOfAWantedPod(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *machine) {
		m.arrive()
		m.src.set(mkpod("web", preStopped, image("slow-term-2s")))
		m.pass(time.Minute)
		before := m.disk.last(webKey).pod.Status.StartTime
		m.remove(nil)
		m.pass(time.Second)
		if m.phase("web") != "Running" || len(m.disk.ran()) != 1 {
			t.Errorf("while it stops: %s, %d hooks", m.phase("web"), len(m.disk.ran()))
		}
		m.pass(10 * time.Second)
		st := m.disk.last(webKey).pod.Status
		if st.Phase != v1.PodRunning || m.instance() != 2 || !before.Before(st.StartTime) {
			t.Errorf("%s, instance %d, since %s", st.Phase, m.instance(), st.StartTime)
		}
		m.pass(time.Hour)
		if n := m.instance(); n != 2 {
			t.Errorf("instance %d an hour later", n)
		}
	})
}

// TestDelete_PodIsDesired_PlanShowsTheRequest: the reason of the stop is the request. The
// log and a plan computed beside the agent show it, also after a restart of the agent. The
// next instance does not carry it.
func TestDelete_PodIsDesired_PlanShowsTheRequest(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *machine) {
		m.arrive()
		m.src.set(mkpod("web", image("slow-term-20s")))
		m.pass(time.Minute)
		m.remove(nil)
		m.pass(time.Second)
		m.die()
		if r := m.disk.records[webKey]; !r.StopAsked || r.StopSince.IsZero() {
			t.Errorf("record: %+v", r)
		}
		m.arrive()
		m.pass(time.Minute)
		log := m.log.String()
		if strings.Contains(log, "added again") || !strings.Contains(log, "deletion of the pod was requested") {
			t.Error("the log does not say why the pod stopped")
		}
		if r := m.disk.records[webKey]; r.StopAsked || r.Instance != 2 {
			t.Errorf("record of the next instance: %+v", r)
		}
	})
}

// TestDeleteOfAnEndedPod: a terminated job that is deleted runs again.
func TestDeleteOfAnEndedPod(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *machine) {
		m.arrive()
		m.src.set(mkpod("web", image("exit-0-after-1s"), policy(v1.RestartPolicyNever)))
		m.pass(time.Minute)
		if m.phase("web") != "Succeeded" {
			t.Fatal(m.phase("web"))
		}
		m.remove(nil)
		m.settle()
		if m.phase("web") == "Succeeded" {
			t.Error("the pod has not started again")
		}
		m.pass(time.Minute)
		if m.phase("web") != "Succeeded" || m.instance() != 2 {
			t.Errorf("%s, instance %d", m.phase("web"), m.instance())
		}
	})
}

// TestDeleteOfAnOrphan: a pod that runonce left is removed and does not start again.
func TestDeleteOfAnOrphan(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *machine) {
		m.arrive()
		m.src.set(mkpod("web"))
		m.pass(time.Second)
		m.leave()
		m.mute = true // its source does not answer: the pod is kept
		m.arrive()
		m.pass(10 * time.Second)
		if !strings.Contains(m.rt.State(), "running") {
			t.Fatalf("it is not kept:\n%s", m.rt.State())
		}
		m.remove(nil)
		m.pass(time.Minute)
		m.want()
		if err := m.disk.empty(); err != nil {
			t.Error(err)
		}
	})
}

// TestC_1_16_12_DeleteGrace: the requested grace applies; a second request only shortens it.
//
// Shows: C-1.16.12
func TestC_1_16_12_DeleteGrace(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *machine) {
		m.arrive()
		m.src.set(mkpod("web", image("ignore-term"), graceSeconds(600)))
		m.pass(time.Second)
		long, short := int64(100), int64(10)
		m.remove(&long)
		m.pass(50 * time.Second)
		if n := m.instance(); n != 1 {
			t.Fatalf("instance %d after half of its grace", n)
		}
		m.remove(&short)
		m.pass(5 * time.Second)
		if n := m.instance(); n != 2 || m.phase("web") != "Running" {
			t.Errorf("instance %d, %s", n, m.phase("web"))
		}
	})
}

// TestF1_OperationsSurviveTheAgent: the next agent completes an acknowledged operation, and the
// hook runs once.
//
// Shows: F1
func TestF1_OperationsSurviveTheAgent(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *machine) {
		m.disk.hookTakes = map[string]time.Duration{"app": 5 * time.Second}
		m.arrive()
		m.src.set(mkpod("web", preStopped, policy(v1.RestartPolicyNever)))
		m.pass(time.Second)
		m.restart()
		m.pass(time.Second) // the hook runs
		m.die()
		m.arrive()
		m.pass(time.Minute)
		c := m.disk.last(webKey).pod.Status.ContainerStatuses[0]
		if c.RestartCount != 1 || c.State.Running == nil {
			t.Errorf("after a restart: %v, %d", c.State, c.RestartCount)
		}
		m.remove(nil)
		m.die()
		m.arrive()
		m.pass(time.Minute)
		if n := m.instance(); n != 2 || m.phase("web") != "Running" {
			t.Errorf("after a delete: instance %d, %s", n, m.phase("web"))
		}
	})
}

// TestLivePods: a watching reader sees every pod added, changed and removed.
func TestLivePods(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *machine) {
		m.arrive()
		m.src.set(mkpod("web"))
		m.pass(time.Second)
		live := m.agent.engine.Live()
		if p, ok := live.Pod(webKey); !ok || p.Status.Phase != v1.PodRunning {
			t.Errorf("%t, %v", ok, p)
		}
		ctx, cancel := context.WithCancel(context.Background())
		seen := make(chan string)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for how, p := range live.WatchPods(ctx) {
				seen <- how + " " + p.Name + " " + string(p.UID)
			}
		}()
		next := func(want string) {
			t.Helper()
			if got := <-seen; got != want {
				t.Errorf("%q, want %q", got, want)
			}
		}
		next("ADDED web uid-web")
		next("BOOKMARK  ")
		m.src.set(mkpod("web", func(p *v1.Pod) { p.Labels = map[string]string{"a": "b"} }))
		next("MODIFIED web uid-web")
		m.src.set(mkpod("web", func(p *v1.Pod) { p.Labels = map[string]string{"a": "b"} }), mkpod("other"))
		next("ADDED other uid-other")
		m.settle() // changes of other that the reader has not taken become one change
		m.pass(time.Minute)
		m.src.set(mkpod("web", func(p *v1.Pod) { p.Labels = map[string]string{"a": "b"} }))
		next("MODIFIED other uid-other")
		for got := ""; got != "DELETED other uid-other"; {
			got = <-seen
		}
		if _, ok := live.Pod(pod.Key{Namespace: "default", Name: "other"}); ok {
			t.Error("it is still there")
		}
		cancel()
		<-done
	})
}

// deleted is a pod that its API server shows as being deleted.
func deleted(s *pod.Spec, grace int64) *pod.Spec {
	now := metav1.Now()
	return of(s.Origin.Source, s.Origin.Location, mkpod(s.Name, func(p *v1.Pod) {
		*p = *s.Pod.DeepCopy()
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &now, &grace
	}))
}

// TestC_1_31_4_DeletedPodIsAdmittedAgain: a terminated pod that is deleted starts again only where
// there is room for it: another pod may have its port by now.
//
// Shows: C-1.31.4
func TestC_1_31_4_DeletedPodIsAdmittedAgain(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *machine) {
		m.arrive()
		web := mkpod("web", onPort, image("exit-0-after-1s"), policy(v1.RestartPolicyNever))
		m.src.set(web)
		m.pass(time.Minute)
		m.src.set(web, mkpod("other", onPort))
		m.pass(time.Minute)
		m.remove(nil)
		m.pass(time.Minute)
		if st := m.disk.last(webKey).pod.Status; st.Reason != "NodePorts" || m.phase("other") != "Running" || m.instance() != 1 {
			t.Errorf("%s %s, other %s, instance %d", st.Phase, st.Reason, m.phase("other"), m.instance())
		}
		m.src.set(web)
		m.pass(time.Minute)
		if m.phase("web") != "Succeeded" || m.instance() != 2 {
			t.Errorf("with the port free: %s, instance %d", m.phase("web"), m.instance())
		}
	})
}

// TestC_1_26_21_GatesOfTheServer: a condition that its API server shows opens a readiness
// gate; conditions of other owners stay as they are.
//
// Shows: C-1.26.21
func TestC_1_26_21_GatesOfTheServer(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *machine) {
		m.arrive()
		gated := func(generation int64, list ...v1.PodCondition) *pod.Spec {
			return atAPI(mkpod("web", func(p *v1.Pod) {
				p.Generation = generation
				p.Spec.ReadinessGates = []v1.PodReadinessGate{{ConditionType: "x/gate"}}
				p.Status.Conditions = list
			}))
		}
		ready := func() string {
			st := m.disk.last(webKey).pod.Status
			c := condition(&st, v1.PodReady)
			return fmt.Sprint(c.Status, " ", c.Reason, " ", c.ObservedGeneration, " ", st.ObservedGeneration)
		}
		m.src.set(gated(3))
		m.pass(time.Second)
		if got := ready(); got != "False ReadinessGatesNotReady 3 3" {
			t.Error(got)
		}
		gate := v1.PodCondition{Type: "x/gate", Status: v1.ConditionTrue, Message: "theirs"}
		disrupted := v1.PodCondition{Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: "EvictionByEvictionAPI", ObservedGeneration: 2}
		m.src.set(gated(4, gate, disrupted))
		m.pass(time.Second)
		if got := ready(); got != "True  4 4" {
			t.Error(got)
		}
		st := m.disk.last(webKey).pod.Status
		for _, want := range []v1.PodCondition{gate, disrupted} {
			if got := condition(&st, want.Type); got == nil || *got != want {
				t.Errorf("%v, want %v", got, want)
			}
		}
		gate.Status = v1.ConditionFalse
		m.src.set(gated(4, gate, disrupted))
		m.pass(time.Second)
		if got := ready(); got != "False ReadinessGatesNotReady 4 4" {
			t.Error(got)
		}
	})
}

// onPort gives the pod a host port.
func onPort(p *v1.Pod) {
	p.Spec.Containers[0].Ports = []v1.ContainerPort{{ContainerPort: 80, HostPort: 8080}}
}

// TestOperationsCutShort: an operation cancels a pull and a postStart hook. An operation on a
// pod that is still starting is carried out.
func TestOperationsCutShort(t *testing.T) {
	t.Parallel()
	hang := func(method string) critest.Fault {
		return critest.Fault{Method: method, Hang: true, Times: 1}
	}
	pulling := mkpod("web", beside("side", "remote:1"))
	for name, c := range map[string]struct {
		web       *pod.Spec
		fault     critest.Fault
		hookTakes time.Duration
		ask       func(*machine)
		instance  int
		restarts  int32
	}{
		"delete, pull":             {pulling, hang("PullImage"), 0, func(m *machine) { m.remove(nil) }, 2, 1},
		"restart, another's pull":  {pulling, critest.Fault{Method: "PullImage", Delay: 10 * time.Second, Times: 1}, 0, func(m *machine) { m.restart("app") }, 1, 1},
		"delete, hook":             {mkpod("web", postStarted), critest.Fault{}, time.Hour, func(m *machine) { m.remove(nil) }, 2, 1},
		"restart, hook":            {mkpod("web", postStarted), critest.Fault{}, time.Hour, func(m *machine) { m.restart("app") }, 1, 1},
		"restart no name, hook":    {mkpod("web", postStarted), critest.Fault{}, time.Hour, func(m *machine) { m.restart() }, 1, 1},
		"restart in vain, another": {mkpod("web", postStarted, beside("side", "side:1")), critest.Fault{}, 10 * time.Second, func(m *machine) { m.restart("side") }, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, m *machine) {
				m.arrive()
				if c.fault.Method != "" {
					defer m.rt.Fault(c.fault)()
				}
				m.disk.hookTakes = map[string]time.Duration{"app": c.hookTakes}
				m.src.set(c.web)
				m.pass(5 * time.Second)
				if got := m.phase("web"); starts(m, "web") != 1 {
					t.Errorf("before: %s, %d starts", got, starts(m, "web"))
				}
				m.disk.hookTakes = nil
				c.ask(m)
				m.pass(10 * time.Second)
				st := m.disk.last(webKey).pod.Status
				for _, have := range st.ContainerStatuses {
					want := c.restarts
					if have.Name != "app" {
						want = 0
					}
					if have.State.Running == nil || have.RestartCount != want {
						t.Errorf("%s restarted %d times, want %d: %v", have.Name, have.RestartCount, want, have.State)
					}
				}
				if n := m.instance(); st.Phase != v1.PodRunning || n != c.instance {
					t.Errorf("%s, instance %d, want %d", st.Phase, n, c.instance)
				}
			})
		})
	}
}

// TestOperationAmidAResize: a container that exits with 0 for a resize restarts, though another
// operation arrives meanwhile.
func TestOperationAmidAResize(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *machine) {
		m.arrive()
		web := mkpod("web", image("slow-term-3s"), beside("side", "side:1"), policy(v1.RestartPolicyOnFailure), cpu("1"), func(p *v1.Pod) {
			p.Spec.Containers[0].ResizePolicy = []v1.ContainerResizePolicy{{ResourceName: v1.ResourceCPU, RestartPolicy: v1.RestartContainer}}
		})
		m.src.set(web)
		m.pass(time.Second)
		m.src.set(resized(web, cpu("2")))
		m.pass(time.Second)
		m.restart("side")
		m.pass(time.Minute)
		for _, c := range m.disk.last(webKey).pod.Status.ContainerStatuses {
			if c.State.Running == nil || c.RestartCount != 1 {
				t.Errorf("%s restarted %d times: %v", c.Name, c.RestartCount, c.State)
			}
		}
	})
}

// TestHookOfWhatCannotBeRestarted: a postStart hook that a restart request cancelled runs
// again if the container cannot be replaced.
func TestHookOfWhatCannotBeRestarted(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *machine) {
		m.arrive()
		m.disk.hookTakes = map[string]time.Duration{"app": 5 * time.Second}
		m.src.set(mkpod("web", postStarted, func(p *v1.Pod) { p.Spec.Containers[0].ImagePullPolicy = v1.PullAlways }))
		m.pass(2 * time.Second)
		lift := m.rt.Fault(critest.Fault{Method: "PullImage", Err: status.Error(codes.Unknown, "no such registry")})
		m.restart("app")
		m.pass(8 * time.Second)
		if n, hooks := starts(m, "web"), len(m.disk.ran()); n != 1 || hooks != 2 {
			t.Errorf("without its image: %d starts, %d hooks", n, hooks)
		}
		lift()
		m.pass(5 * time.Minute)
		if c := m.disk.last(webKey).pod.Status.ContainerStatuses[0]; c.State.Running == nil || c.RestartCount != 1 {
			t.Errorf("with it: restarted %d times: %v", c.RestartCount, c.State)
		}
	})
}

// postStarted gives the pod's container a postStart hook.
func postStarted(p *v1.Pod) {
	p.Spec.Containers[0].Lifecycle = &v1.Lifecycle{PostStart: &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"hook"}}}}
}

// TestOperationsWhileThePodIsBusy: a delete is recorded at once. A restart that is not possible
// yet stays recorded, and the pod does not terminate meanwhile.
func TestOperationsWhileThePodIsBusy(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *machine) {
		m.arrive()
		m.src.set(mkpod("web", image("remote:1")))
		m.pass(500 * time.Millisecond)
		m.remove(nil)
		m.pass(900 * time.Millisecond)
		if n := m.instance(); n != 2 {
			t.Errorf("while it was pulled: instance %d", n)
		}
		m.pass(time.Minute)
		if m.phase("web") != "Running" || m.instance() != 2 {
			t.Errorf("%s, instance %d", m.phase("web"), m.instance())
		}
	})
	bubble(t, func(t *testing.T, m *machine) {
		m.arrive()
		m.src.set(mkpod("web", policy(v1.RestartPolicyNever)))
		m.pass(time.Second)
		lift := m.rt.Fault(critest.Fault{Method: "CreateContainer", Err: status.Error(codes.Internal, "no room")})
		m.restart()
		m.pass(time.Minute)
		st := m.disk.last(webKey).pod.Status
		if w := st.ContainerStatuses[0].State.Waiting; st.Phase != v1.PodRunning || w == nil || w.Reason != "CreateContainerError" {
			t.Errorf("while it cannot be made: %s, %v", st.Phase, st.ContainerStatuses[0].State)
		}
		m.leave()
		m.arrive()
		lift()
		m.pass(time.Minute)
		st = m.disk.last(webKey).pod.Status
		if c := st.ContainerStatuses[0]; st.Phase != v1.PodRunning || c.State.Running == nil || c.RestartCount != 1 {
			t.Errorf("when it can: %s, %v, restarted %d times", st.Phase, c.State, c.RestartCount)
		}
	})
}
