package engine

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/feed"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/sorted"
)

// once runs Once over specs on the machine, as runonce does.
func (m *machine) once(until Until, limit time.Duration, specs ...*pod.Spec) (feed.Report, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	slices.SortFunc(specs, func(a, b *pod.Spec) int { return a.Key.Compare(b.Key) })
	set := &podconfig.Merged{Pods: sorted.Of(specs...), Layers: []podconfig.LayerState{{Name: "file:/m", Source: "file", Location: "/m", Ready: true, Pods: len(specs)}}}
	return New(m.config(m.rt.Connect())).Once(ctx, set, until)
}

func hostPort(n int32) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Spec.Containers[0].Ports = []v1.ContainerPort{{ContainerPort: 80, HostPort: n}} }
}

// indexOf returns the place of the first line that ends with text, -1 for none.
func indexOf(lines []string, text string) int {
	return slices.IndexFunc(lines, func(l string) bool { return strings.Contains(l, text) })
}

// A worker reports first before it acts. A changed manifest then counts as running because
// the old pod runs, and Once would return in the middle of the replacement.
func TestOnceWaitsForAChangedPod(t *testing.T) {
	for name, edit := range map[string]func(*v1.Pod){
		"container": image("app:2"),
		"whole pod": func(p *v1.Pod) { p.Spec.HostNetwork = true },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, m *machine) {
				if _, err := m.once(UntilRunning, time.Minute, mkpod("web", image("slow-term-3s"))); err != nil {
					t.Fatal(err)
				}
				next := mkpod("web", image("slow-term-3s"), edit)
				if name == "whole pod" {
					next = mkpod("web", edit)
				}
				rep, err := m.once(UntilRunning, time.Minute, next)
				if err != nil || rep.Pods[0].Result != feed.ResultRunning {
					t.Fatalf("report %+v, %v", rep, err)
				}
				if !strings.Contains(m.rt.State(), "default/web/app attempt=1 running") {
					t.Errorf("reported %s, but the edited container does not run:\n%s", rep.Pods[0].Result, m.rt.State())
				}
			})
		})
	}
}

// A pod in a crash loop is ready for a moment, again and again. Once does not report it as
// ready because another pod took longer.
func TestOnceReadyMeansAllAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		late := func(p *v1.Pod) {
			p.Spec.Containers[0].ReadinessProbe = &v1.Probe{PeriodSeconds: 1, SuccessThreshold: 1, FailureThreshold: 1, TimeoutSeconds: 1, InitialDelaySeconds: 4}
		}
		rep, err := m.once(UntilReady, 8*time.Second, mkpod("crash", image("exit-1")), mkpod("web", late))
		if err == nil || rep.Pods[0].Result != feed.ResultTimeout || rep.Pods[1].Result != feed.ResultReady {
			t.Errorf("report %+v, %v", rep, err)
		}
	})
}

// An edited job that had succeeded runs again, also for runonce.
func TestOnceRunsAnEditedJobAgain(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		for _, img := range []string{"exit-0", "exit-0-after-1s"} {
			rep, err := m.once(UntilDone, time.Minute, mkpod("job", image(img), policy(v1.RestartPolicyOnFailure)))
			if err != nil || rep.Pods[0].Result != feed.ResultDone {
				t.Fatalf("report %+v, %v", rep, err)
			}
		}
		if got := starts(m, "job"); got != 2 {
			t.Errorf("the job was edited and ran %d times, want 2", got)
		}
	})
}

// One empty list of the runtime would start a second container of a running pod (F26, I1,
// I2).
//
// Shows: F26
func TestF26_OneEmptyListCostsNoContainer(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.src.set(mkpod("web"))
		m.arrive()
		m.rt.Reset()
		web := pod.Key{Namespace: "default", Name: "web"}
		m.rt.Fault(critest.Fault{Method: "ListPodSandbox", Pod: web, Empty: true, Times: 1})
		m.rt.Fault(critest.Fault{Method: "ListContainers", Pod: web, Empty: true, Times: 1})
		m.src.set(mkpod("web", func(p *v1.Pod) { p.Labels = map[string]string{"a": "b"} })) // makes the worker read the pod
		m.pass(time.Minute)
		transcript(t, m, ``)
	})
}

// A pod that terminates frees its port, and the waiting pod starts without another event.
//
// Shows: C-1.31
func TestC_1_31_RefusedPodStartsWhenThePortsHolderHasEnded(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.src.set(mkpod("a", hostPort(8080), image("exit-0-after-5s"), policy(v1.RestartPolicyNever)), mkpod("b", hostPort(8080)))
		m.arrive()
		m.pass(5 * time.Minute)
		if a, b := m.phase("a"), m.phase("b"); a != "Succeeded" || b != "Running" {
			t.Errorf("a %s, b %s", a, b)
		}
	})
}

// An edit starts a terminated pod again. It takes no port that another pod has by now.
//
// Shows: C-1.31
func TestC_1_31_EndedPodThatRunsAgainIsAdmittedAgain(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		job := func(img string) *pod.Spec {
			return mkpod("a", hostPort(8080), image(img), policy(v1.RestartPolicyNever))
		}
		m.src.set(job("exit-0"))
		m.arrive()
		m.pass(time.Second)
		m.src.set(job("exit-0"), mkpod("b", hostPort(8080)))
		m.pass(time.Second)
		if got := m.phase("b"); got != "Running" {
			t.Fatalf("b = %s", got)
		}
		m.src.set(job("app:9"), mkpod("b", hostPort(8080)))
		m.pass(time.Second)
		if s := m.rt.State(); strings.Contains(s, "default/a/app attempt=1 running") {
			t.Errorf("a and b both hold port 8080:\n%s", s)
		}
	})
}

// A terminating pod still holds its host port.
//
// Shows: C-1.31
func TestC_1_31_PortOfAStoppingPodIsTaken(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.src.set(mkpod("a", hostPort(8080), image("slow-term-20s")))
		m.arrive()
		m.rt.Reset()
		m.src.set(mkpod("b", hostPort(8080)))
		m.pass(time.Minute)
		lines := m.rt.Transcript()
		stopped, made := indexOf(lines, "StopPodSandbox default/a"), indexOf(lines, "RunPodSandbox default/b")
		if made < 0 || made < stopped {
			t.Errorf("b takes the port while a has it: %q", lines)
		}
	})
}

// A pod is renamed and keeps its UID: the removal of the old one must not remove the new
// one's directories.
func TestRenamedPodWithItsOwnUIDKeepsItsVolumes(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		own := func(p *v1.Pod) {
			p.UID = types.UID("own-uid")
			p.Spec.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}
		}
		m.src.set(mkpod("old", own, image("slow-term-5s")))
		m.arrive()
		m.src.set(mkpod("new", own))
		m.pass(time.Minute)
		if !strings.Contains(m.rt.State(), "default/new/app attempt=0 running") {
			t.Fatalf("state:\n%s", m.rt.State())
		}
		if ready, _, _ := m.disk.Ready(mkpod("new", own), 1); !ready {
			t.Error("the volumes of the running pod were taken away with those of the old name")
		}
	})
}

// A pod that is kept because its source has not answered holds its port.
//
// Shows: C-1.31
func TestC_1_31_PortOfAKeptPodIsTaken(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.more = newWishes()
		m.more.name = "file:/second"
		m.src.set(mkpod("a", hostPort(8080)))
		m.arrive()
		m.leave()
		m.mute = true
		b := mkpod("b", hostPort(8080))
		b.Origin.Location = "/second"
		m.more.set(b)
		m.arrive()
		m.pass(time.Minute)
		if s := m.rt.State(); strings.Contains(s, "default/b/app") {
			t.Errorf("a and b both hold port 8080:\n%s", s)
		}
	})
}

// Two calls that hang hold every start slot: no other pod starts (F22).
//
// Shows: F22
func TestF22_HungStartsBlockNoOther(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		for _, name := range []string{"a", "b"} {
			m.rt.Fault(critest.Fault{Method: "RunPodSandbox", Pod: pod.Key{Namespace: "default", Name: name}, Hang: true})
		}
		m.src.set(mkpod("a"), mkpod("b"))
		m.arrive()
		m.src.set(mkpod("a"), mkpod("b"), mkpod("c"))
		m.pass(30 * time.Second)
		if got := m.phase("c"); got != "Running" {
			t.Errorf("c = %s after 30 s", got)
		}
		m.leave()
	})
}

// A pod that is removed while it waits for a slot is never created.
func TestRemovedWhileWaitingForASlot(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		for _, name := range []string{"a", "b"} {
			m.rt.Fault(critest.Fault{Method: "RunPodSandbox", Pod: pod.Key{Namespace: "default", Name: name}, Delay: 20 * time.Second})
		}
		m.src.set(mkpod("a"), mkpod("b"))
		m.arrive()
		m.src.set(mkpod("a"), mkpod("b"), mkpod("c"))
		m.pass(time.Second / 2) // a slow start keeps its slot longer than this
		m.src.set(mkpod("a"), mkpod("b"))
		m.pass(time.Second)
		if got := m.phase("c"); got != "gone" {
			t.Errorf("c = %s a second after it was removed", got)
		}
		m.pass(time.Minute)
		if i := indexOf(m.rt.Transcript(), "RunPodSandbox default/c"); i >= 0 {
			t.Errorf("c was created although it is not desired: %q", m.rt.Transcript())
		}
	})
}

// A pod that stops holds no start slot during its grace.
func TestStopHoldsNoStartSlot(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		slow := func(p *v1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: "side", Image: "side:1"})
		}
		for _, name := range []string{"a", "b"} {
			m.rt.Fault(critest.Fault{Method: "CreateContainer", Pod: pod.Key{Namespace: "default", Name: name}, Container: "side", Delay: 2 * time.Second})
		}
		m.src.set(mkpod("a", image("ignore-term"), graceSeconds(300), slow), mkpod("b", image("ignore-term"), graceSeconds(300), slow))
		m.arrive()
		m.pass(time.Second)
		m.src.set(mkpod("c"))
		m.pass(30 * time.Second)
		if got := m.phase("c"); got != "Running" {
			t.Errorf("c = %s while others stop\n%s", got, m.rt.State())
		}
	})
}

// A sandbox that exits as soon as it is made is not made again and again without a pause.
//
// Shows: I3
func TestSandboxThatDiesAtOnceIsNotAHotLoop(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		made := 0
		m.rt.AfterEach(func(_ int, line string) {
			if strings.Contains(line, "RunPodSandbox") && made < 50 {
				made++
				m.rt.Reboot()
			}
		})
		m.src.set(mkpod("web"))
		m.arrive()
		if made > 5 {
			t.Errorf("%d sandboxes were made in no time", made)
		}
	})
}

// An edit of a readiness probe restarts nothing, and takes effect at once.
func TestEditedProbeTakesEffect(t *testing.T) {
	probed := func(path string) *pod.Spec {
		s := mkpod("web", func(p *v1.Pod) {
			p.Spec.Containers[0].ReadinessProbe = &v1.Probe{PeriodSeconds: 1, SuccessThreshold: 1, FailureThreshold: 1, TimeoutSeconds: 1,
				ProbeHandler: v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Path: path}}}
		})
		s.ContainerHashes["app"] = mkpod("web").ContainerHashes["app"]
		return s
	}
	bubble(t, func(t *testing.T, m *machine) {
		seen := &paths{}
		cfg := m.config(m.rt.Connect())
		cfg.Prober = seen
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error)
		m.src.set(probed("/old"))
		go func() { done <- New(cfg).Run(ctx) }()
		m.pass(5 * time.Second)
		m.src.set(probed("/new"))
		m.pass(5 * time.Second)
		if got := seen.last(); got != "/new" {
			t.Errorf("probed is %s, want /new", got)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if got := starts(m, "web"); got != 1 {
			t.Fatalf("%d starts: the test's hashes are wrong", got)
		}
	})
}

type paths struct {
	mu   sync.Mutex
	path string
}

func (p *paths) Probe(_ context.Context, r pod.ProbeRequest) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.path = r.Probe.HTTPGet.Path
	return nil
}

func (p *paths) Hook(context.Context, pod.HookRequest) error { return nil }

func (p *paths) last() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.path
}

// The pods that another agent with its own root starts on the same runtime are not stopped by
// this one.
//
// Shows: I2
func TestI2_PodsOfAnotherRootAreLeftAlone(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.src.set(mkpod("web"))
		m.arrive()
		mine := m.disk
		m.disk = newDisk() // runonce --root-dir elsewhere
		job := mkpod("job")
		job.Origin.Location = "/elsewhere"
		if _, err := m.once(UntilRunning, time.Minute, job); err != nil {
			t.Fatal(err)
		}
		m.disk = mine
		m.pass(time.Minute)
		if !strings.Contains(m.rt.State(), "default/job/app attempt=0 running") {
			t.Errorf("serve stopped a pod that another root started:\n%s", m.rt.State())
		}
	})
}

// Nothing is made while the runtime reports that it is not ready (F26).
//
// Shows: F26
func TestF26_NothingIsMadeWhileTheRuntimeIsNotReady(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.src.set()
		m.arrive()
		m.rt.SetReady(false, true, "starting")
		m.pass(20 * time.Second)
		m.src.set(mkpod("web"))
		m.pass(20 * time.Second)
		transcript(t, m, ``)
	})
}

// A worker whose pod is gone, and which was woken meanwhile, must not continue beside the
// worker of the same pod added again: two workers of one key.
//
// Shows: I1
func TestI1_PokedWorkerOfAGonePodDoesNotStopTheNextOne(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		web := pod.Key{Namespace: "default", Name: "web"}
		m.src.set(mkpod("web"))
		m.arrive()
		m.pass(58 * time.Second)
		m.settle()
		m.rt.Reset()
		m.src.set()
		m.rt.AfterEach(func(_ int, line string) {
			if strings.Contains(line, "RemovePodSandbox") {
				// The read that finds it gone takes 5 s, over the resync's wake-up, and so
				// does the read that this causes.
				m.rt.Fault(critest.Fault{Method: "ListPodSandbox", Pod: web, Delay: 5 * time.Second, Times: 2})
			}
		})
		m.pass(6 * time.Second)
		if got := m.phase("web"); got != "gone" {
			t.Fatalf("web = %s", got)
		}
		m.src.set(mkpod("web"))
		m.pass(30 * time.Second)
		if i := indexOf(m.rt.Transcript()[4:], "StopContainer default/web/app"); i >= 0 {
			t.Errorf("the new pod was stopped by the old one's worker: %q", m.rt.Transcript())
		}
	})
}

// One removed pod does not make the agent read every other one.
func TestRemovalReadsNoOtherPod(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		var all []*pod.Spec
		for _, n := range []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"} {
			all = append(all, mkpod(n))
		}
		m.src.set(all...)
		m.arrive()
		m.pass(10 * time.Second)
		m.rt.Reset()
		m.src.set(all[1:]...)
		m.pass(10 * time.Second)
		if n := m.rt.Calls()["ContainerStatus"]; n > 5 {
			t.Errorf("removing one pod of ten led to %d ContainerStatus calls: %v", n, m.rt.Calls())
		}
	})
}

// Of pods of one priority, the one that waits longest for a slot gets it first ("oldest
// first").
func TestGateIsFairToTheOldest(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		for n, d := range map[string]time.Duration{"a": 2 * time.Second, "b": 4 * time.Second, "c": time.Second, "z": time.Second} {
			f := critest.Fault{Method: "RunPodSandbox", Pod: pod.Key{Namespace: "default", Name: n}, Delay: d}
			if n == "a" { // a failed start returns one slot, a successful one three
				f.Err = status.Error(codes.Unknown, "no room")
			}
			m.rt.Fault(f)
		}
		a, b, c, z := mkpod("a"), mkpod("b"), mkpod("c"), mkpod("z")
		m.src.set(a, b)
		m.arrive()
		m.src.set(a, b, z)
		m.pass(time.Second)
		m.src.set(a, b, c, z)
		m.pass(time.Minute)
		lines := m.rt.Transcript()
		if zi, ci := indexOf(lines, "RunPodSandbox default/z"), indexOf(lines, "RunPodSandbox default/c"); ci < zi {
			t.Errorf("c came later and started first: %q", lines)
		}
	})
}

// A failure before the sandbox was made is over once it is made.
func TestTroubleOfTheSandboxEndsWithIt(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		web := pod.Key{Namespace: "default", Name: "web"}
		m.rt.Fault(critest.Fault{Method: "RunPodSandbox", Pod: web, Times: 6, Err: status.Error(codes.Unknown, "cni is not there")})
		m.src.set(mkpod("web"))
		m.arrive()
		m.pass(time.Minute)
		if got := m.phase("web"); got != "Running" {
			t.Fatalf("web = %s", got)
		}
		m.rt.Reset()
		m.rt.Fault(critest.Fault{Method: "RunPodSandbox", Pod: web, Times: 1, Err: status.Error(codes.Unknown, "cni is not there")})
		m.rt.Reboot()
		m.pass(2 * time.Minute)
		lines := m.rt.Transcript()
		i := indexOf(lines, "RunPodSandbox default/web")
		if i < 0 {
			t.Fatalf("no sandbox: %q", lines)
		}
		first, _, _ := strings.Cut(lines[i], " ")
		again := indexOf(lines[i+1:], "RunPodSandbox default/web")
		second, _, _ := strings.Cut(lines[i+1+again], " ")
		d1, _ := time.ParseDuration(first)
		d2, _ := time.ParseDuration(second)
		if d2-d1 > time.Second {
			t.Errorf("the second try came %s after the first failure in a row: %q", d2-d1, lines)
		}
	})
}

// The agent ends within two seconds, also while a start hangs (F4, F32).
//
// Shows: F4
func TestF4_LeavingDoesNotWaitForAHungStart(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.rt.Fault(critest.Fault{Method: "RunPodSandbox", Hang: true})
		m.src.set(mkpod("web"))
		m.arrive()
		began := time.Now()
		m.leave()
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("leaving took %s", took)
		}
	})
}

// A repeated error is reported at once: the third failure in a row is reported when it
// happens, not after a pause.
func TestFailuresAreReportedWhenTheyHappen(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		web := pod.Key{Namespace: "default", Name: "web"}
		m.rt.Fault(critest.Fault{Method: "CreateContainer", Pod: web, Times: 8, Err: status.Error(codes.Unknown, "one")})
		m.rt.Fault(critest.Fault{Method: "CreateContainer", Pod: web, Err: status.Error(codes.Unknown, "two")})
		m.src.set(mkpod("web"))
		m.arrive()
		for range 600 {
			m.pass(100 * time.Millisecond)
			if strings.HasSuffix(lastOf(m, "CreateContainer"), "Unknown") && strings.Count(strings.Join(m.rt.Transcript(), "\n"), "CreateContainer") == 9 {
				break
			}
		}
		w := m.disk.last(web).pod.Status.ContainerStatuses[0].State.Waiting
		if w == nil || !strings.Contains(w.Message, "two") {
			t.Errorf("after the ninth failure: waiting %+v\n%q", w, m.rt.Transcript())
		}
	})
}

func lastOf(m *machine, method string) string {
	for _, line := range slices.Backward(m.rt.Transcript()) {
		if strings.Contains(line, method) {
			return line
		}
	}
	return ""
}

// A pod's volumes are on a network file system that does not answer. The pod takes no start
// slot from others.
//
// Shows: F22
func TestF22_HungVolumes_HoldNoStartSlot(t *testing.T) {
	for _, call := range []string{"Mounts", "Ready"} {
		t.Run(call, func(t *testing.T) {
			bubble(t, func(t *testing.T, m *machine) {
				put := map[string]int{} // calls of a pod: before SetUp, Ready does not read the volumes
				var mu sync.Mutex
				answers := make(chan struct{})
				m.disk.hung = func(c string, want *pod.Spec) <-chan struct{} {
					mu.Lock()
					defer mu.Unlock()
					if put[want.Name]++; c == call && want.Name != "c" && put[want.Name] > 1 {
						return answers
					}
					return nil
				}
				m.src.set(mkpod("a"), mkpod("b"))
				m.arrive()
				m.src.set(mkpod("a"), mkpod("b"), mkpod("c"))
				m.pass(30 * time.Second)
				if got := m.phase("c"); got != "Running" {
					t.Errorf("c = %s after 30 s", got)
				}
				close(answers)
				m.pass(time.Minute)
				for _, name := range []string{"a", "b"} {
					if got := m.phase(name); got != "Running" {
						t.Errorf("%s = %s once its volumes answer", name, got)
					}
				}
				m.leave()
			})
		})
	}
}
