package engine

import (
	"cmp"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/pod"
)

// ofServer makes a pod one of an API server.
func ofServer(s *pod.Spec) *pod.Spec {
	s.Origin.Source, s.Origin.Location = "api", "/s"
	return s
}

func labelled(value string) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Labels = map[string]string{"a": value} }
}

func in(name string) pod.Key { return pod.Key{Namespace: "default", Name: name} }

// The only pod of a node cannot be read: it is left alone, and others start.
//
// Shows: F22
func TestF22_TheOnlyPodOfANodeHangs(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.src.set(mkpod("a"))
		m.arrive()
		m.leave()
		m.rt.Fault(critest.Fault{Method: "ContainerStatus", Pod: in("a"), Hang: true})
		m.rt.Reset()
		m.src.set(mkpod("a"), mkpod("b"))
		m.arrive()
		m.pass(time.Minute)
		if got := m.phase("b"); got != "Running" {
			t.Errorf("b = %s beside a pod that cannot be read", got)
		}
		if i := indexOf(m.rt.Transcript(), "default/a"); i >= 0 {
			t.Errorf("the engine acted on a pod that cannot be read: %q", m.rt.Transcript())
		}
	})
}

// A pending resize is pending for the next agent too: it was never given.
//
// Shows: C-1.34.2
func TestC_1_34_2_HeldResizeIsHeldByTheNextAgent(t *testing.T) {
	for what, much := range map[string]string{"Deferred": "3", "Infeasible": "5"} {
		t.Run(what, func(t *testing.T) {
			bubble(t, func(t *testing.T, m *machine) {
				m.on(cores("4"))
				a, b := mkpod("a", cpu("1")), mkpod("b", cpu("2"))
				m.src.set(a, b)
				m.arrive()
				m.src.set(resized(a, cpu(much)), b)
				m.pass(time.Minute)
				m.leave()
				m.arrive()
				m.pass(time.Minute)
				if got := resizeCondition(t, m, "a"); got != "PodResizePending "+what {
					t.Errorf("condition %q after a restart of the agent", got)
				}
				if n := m.rt.Calls()["UpdateContainerResources"]; n > 0 {
					t.Error("what does not fit was given")
				}
			})
		})
	}
}

// A terminated pod takes no port and no resources from later pods: not when the agent starts,
// and not when its labels are edited.
//
// Shows: C-1.31
func TestC_1_31_APodThatHasEndedHoldsNothing(t *testing.T) {
	job := func(edits ...func(*v1.Pod)) *pod.Spec {
		return ofServer(mkpod("job", append(edits, hostPort(8080), image("exit-0"), policy(v1.RestartPolicyNever))...))
	}
	next := ofServer(mkpod("next", hostPort(8080)))
	t.Run("the agent starts", func(t *testing.T) {
		bubble(t, func(t *testing.T, m *machine) {
			m.src.set(job())
			m.arrive()
			m.pass(time.Minute)
			m.leave()
			m.src.set(job(), next)
			m.arrive()
			m.pass(time.Minute)
			m.expect("job", "Succeeded", true)
			m.expect("next", "Running", true)
		})
	})
	t.Run("it is labelled", func(t *testing.T) {
		bubble(t, func(t *testing.T, m *machine) {
			m.src.set(job())
			m.arrive()
			m.pass(time.Minute)
			m.src.set(job(labelled("1")), next)
			m.pass(time.Minute)
			m.expect("job", "Succeeded", true)
			m.expect("next", "Running", true)
		})
	})
}

// P21: a dependency stops after the pod that depends on it, also if that pod is desired again
// meanwhile.
//
// Shows: P21
func TestP21_DependencyStopsThoughItsDependentComesBack(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		web := func() *pod.Spec {
			s := mkpod("web", image("slow-term-20s"))
			s.DependsOn = []pod.Dependency{{Name: "db", Until: pod.Started}}
			return s
		}
		m.src.set(web(), mkpod("db"))
		m.arrive()
		m.pass(10 * time.Second)
		m.src.set()
		m.pass(5 * time.Second)
		m.src.set(web())
		m.pass(time.Minute)
		m.expect("db", "gone", false)
		m.src.set(web(), mkpod("db"))
		m.pass(time.Minute)
		m.expect("web", "Running", true)
	})
}

// A disk that hangs holds no start slot.
//
// Shows: F22
func TestF22_HungVolumesBlockNoOther(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.disk.stuck = time.Hour
		mounts := func(p *v1.Pod) {
			p.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/mnt"}}}}
		}
		m.src.set(mkpod("a", mounts), mkpod("b", mounts))
		m.arrive()
		m.src.set(mkpod("a", mounts), mkpod("b", mounts), mkpod("c"))
		m.pass(30 * time.Second)
		if got := m.phase("c"); got != "Running" {
			t.Errorf("c = %s", got)
		}
		m.pass(m.disk.stuck) // the calls have to end before the test does
	})
}

// An edit during a postStart hook is carried out before the steps that were planned after the
// hook.
func TestEditDuringAHookIsNotForgotten(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		two := func(img string) *pod.Spec {
			return mkpod("web", func(p *v1.Pod) {
				p.Spec.Containers[0].Lifecycle = &v1.Lifecycle{PostStart: &v1.LifecycleHandler{Sleep: &v1.SleepAction{Seconds: 20}}}
				p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: "side", Image: img, ImagePullPolicy: v1.PullIfNotPresent})
			})
		}
		m.disk.hookTakes = map[string]time.Duration{"app": 20 * time.Second}
		m.src.set(two("side:1"))
		m.arrive()
		m.pass(10 * time.Second)
		m.src.set(two("side:2"))
		m.pass(time.Minute)
		made := 0
		for _, line := range m.rt.Transcript() {
			if strings.Contains(line, "CreateContainer default/web/side") {
				made++
			}
		}
		if made != 1 {
			t.Errorf("side was made %d times: %q", made, m.rt.Transcript())
		}
		m.expect("web", "Running", true)
	})
}

// Labels cancel no pull.
//
// Shows: C-1.39
func TestC_1_39_LabelsDoNotCancelAPull(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.rt.Fault(critest.Fault{Method: "PullImage", Delay: time.Minute})
		m.src.set(mkpod("web", image("remote:1")))
		m.arrive()
		for i := range 5 {
			m.pass(10 * time.Second)
			m.src.set(mkpod("web", image("remote:1"), labelled(strings.Repeat("x", i+1))))
		}
		m.pass(20 * time.Second)
		if n := m.rt.Calls()["PullImage"]; n != 1 {
			t.Errorf("%d pulls", n)
		}
		m.expect("web", "Running", true)
	})
}

// F12: a record of an older instance than the running one, left by a full disk, stops
// nothing.
//
// Shows: F12
func TestF12_RecordOfAnInstanceBeforeIsNotBelieved(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		job := func(img string) *pod.Spec {
			return mkpod("job", hostPort(8080), image(img), policy(v1.RestartPolicyNever))
		}
		m.src.set(job("exit-0"))
		m.arrive()
		m.pass(time.Minute)
		m.disk.mu.Lock()
		m.disk.full = true
		m.disk.mu.Unlock()
		m.src.set(job("app:1"))
		m.pass(time.Minute)
		m.expect("job", "Running", true)
		m.die()
		m.disk.refuse(false)
		m.src.set(job("app:1"), mkpod("next", hostPort(8080)))
		m.arrive()
		m.pass(time.Minute)
		m.expect("job", "Running", true)
		m.expect("next", "Pending NodePorts", false)
		if r, _, _ := m.disk.Load(in("job"), ""); r.Terminal != "" || r.Instance != 2 {
			t.Errorf("record: instance %d, %q", r.Instance, r.Terminal)
		}
	})
}

// C-1.31: an edit that needs a new instance is admitted like a new pod. If it is refused, the
// running instance continues, and the edit takes effect once there is room.
//
// Shows: C-1.31
func TestC_1_31_EditThatDoesNotFitWaits(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		other := func(p *v1.Pod) { p.Spec.Hostname = "other" }
		m.src.set(mkpod("a", hostPort(8080)), mkpod("b", hostPort(9090)))
		m.arrive()
		m.pass(time.Second)
		m.rt.Reset()
		m.src.set(mkpod("a", hostPort(8080)), mkpod("b", hostPort(8080), other))
		m.pass(time.Minute)
		if lines := m.rt.Transcript(); len(lines) > 0 {
			t.Errorf("an edit that does not fit was carried out: %q", lines)
		}
		m.expect("b", "Running", true)
		m.src.set(mkpod("b", hostPort(8080), other))
		m.pass(time.Minute)
		if !slices.ContainsFunc(m.rt.Transcript(), func(l string) bool { return strings.Contains(l, "RunPodSandbox default/b attempt=1") }) {
			t.Errorf("it was not carried out when it fitted: %q", m.rt.Transcript())
		}
		m.expect("b", "Running", true)
	})
}

// A blocked edit keeps the old port.
//
// Shows: C-1.31
func TestC_1_31_HeldEditKeepsTheOldPort(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		other := func(p *v1.Pod) { p.Spec.Hostname = "other" }
		a := mkpod("a", hostPort(8080))
		m.src.set(a, mkpod("b", hostPort(9090)))
		m.arrive()
		m.src.set(a, mkpod("b", hostPort(8080), other))
		m.pass(time.Minute)
		m.src.set(a, mkpod("b", hostPort(8080), other), mkpod("c", hostPort(9090)))
		m.pass(time.Minute)
		m.expect("c", "Pending NodePorts", false)
	})
}

// C-1.34.1: a container that starts while its pod's resize is pending gets the resources that
// the pod was given.
//
// Shows: C-1.34.1
func TestC_1_34_1_HeldResizeIsNotGivenByACrash(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.on(cores("4"))
		a, b := mkpod("a", cpu("1")), mkpod("b", cpu("2"))
		m.src.set(a, b)
		m.arrive()
		m.src.set(resized(a, cpu("3")), b)
		m.pass(time.Second)
		m.rt.Exit(in("a"), "app", 1)
		m.pass(time.Minute)
		status := m.disk.last(in("a")).pod.Status
		if got := resizeCondition(t, m, "a"); got != "PodResizePending Deferred" {
			t.Errorf("condition %q", got)
		}
		if n := status.ContainerStatuses[0].RestartCount; n != 1 {
			t.Fatalf("%d restarts", n)
		}
		if has := status.ContainerStatuses[0].AllocatedResources.Cpu(); has.String() != "1" {
			t.Errorf("it was given %s cores by its crash", has)
		}
		if asked := m.disk.last(in("a")).pod.Spec.Containers[0].Resources.Requests.Cpu(); asked.String() != "3" {
			t.Errorf("the status shows the request %s", asked)
		}
		m.src.set(resized(a, cpu("3")))
		m.pass(time.Minute)
		if n := m.rt.Calls()["UpdateContainerResources"]; n != 1 {
			t.Errorf("%d updates when there is room", n)
		}
	})
}

// A pod has terminated, as its API server shows it. An agent without a record of it does not
// run it, and it takes no room.
//
// Shows: C-1.16.22
func TestC_1_16_22_EndedPodOfAServerIsNotRunAgain(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		job := ofServer(mkpod("job", hostPort(8080), policy(v1.RestartPolicyNever)))
		job.Pod.Status.Phase = v1.PodSucceeded
		m.src.set(job, ofServer(mkpod("next", hostPort(8080))))
		m.arrive()
		m.pass(time.Minute)
		m.expect("job", "Succeeded", false)
		m.expect("next", "Running", true)
	})
}

// C-1.26.13: a pod with restart policy Never that is replaced after an edit does not become
// Failed in between.
//
// Shows: C-1.26.13
func TestC_1_26_13_ReplacedIsNotFailed(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		job := func(host string) *pod.Spec {
			return mkpod("job", policy(v1.RestartPolicyNever), func(p *v1.Pod) { p.Spec.Hostname = host })
		}
		m.src.set(job("a"))
		m.arrive()
		m.pass(time.Minute)
		m.src.set(job("b"))
		m.pass(time.Minute)
		m.expect("job", "Running", true)
		count := int32(0)
		for _, l := range m.disk.lines {
			if p := l.pod.Status.Phase; p != v1.PodPending && p != v1.PodRunning {
				t.Errorf("the status was %s: %+v", p, l.pod.Status.ContainerStatuses)
			}
			c := l.pod.Status.ContainerStatuses[0]
			if c.RestartCount < count {
				t.Errorf("its restarts fall from %d to %d", count, c.RestartCount)
			}
			if end := cmp.Or(c.State.Terminated, c.LastTerminationState.Terminated); end != nil && end.ExitCode == 137 {
				t.Errorf("the status showed a lost container: %+v", c)
			}
			count = c.RestartCount
		}
	})
}

// A terminated pod takes no room, but its UID stays its own: directories, records and users
// are keyed by it. Another pod with that UID waits until the terminated one is gone.
//
// Shows: C-1.31
func TestC_1_31_UIDOfAnEndedPodIsTaken(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		own := func(p *v1.Pod) {
			p.UID = "own-uid"
			p.Spec.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}
		}
		m.exits(time.Second, 0)
		a := mkpod("a", own, policy(v1.RestartPolicyNever))
		m.src.set(a)
		m.arrive()
		m.pass(time.Minute)
		b := mkpod("b", own)
		m.src.set(a, b)
		m.again()
		m.pass(time.Minute)
		if st := m.disk.last(pod.Key{Namespace: "default", Name: "b"}); st == nil || st.pod.Status.Reason != "DuplicateUID" || m.phase("a") != "Succeeded" {
			t.Errorf("a is %s, b is %+v", m.phase("a"), st)
		}
		m.src.set(b)
		m.pass(time.Minute)
		if _, put := m.disk.volumes["own-uid/1"]; m.phase("b") != "Running" || !put {
			t.Errorf("b is %s, volumes %v", m.phase("b"), m.disk.volumes)
		}
	})
}

// TestC_1_40_WorkerStartsAreTimed: one measurement for each pod.
//
// Shows: C-1.40
func TestC_1_40_WorkerStartsAreTimed(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *machine) {
		var took []time.Duration
		m.alter = func(c *Config) { c.WorkerStarted = func(d time.Duration) { took = append(took, d) } }
		m.src.set(mkpod("web"), mkpod("db"))
		m.arrive()
		m.pass(time.Minute)
		if len(took) != 2 || max(took[0], took[1]) > time.Second {
			t.Errorf("workers of two pods began after %v", took)
		}
	})
}
