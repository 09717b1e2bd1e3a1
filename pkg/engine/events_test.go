package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/pod"
)

// chronicle records events.
type chronicle struct {
	mu  sync.Mutex
	all []pod.Event
}

func (c *chronicle) Event(e pod.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, e)
}

// lines returns the recorded events, one line each, and clears them.
func (c *chronicle) lines() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for _, e := range c.all {
		out = append(out, strings.TrimSpace(fmt.Sprintf("%s %s %s %s", e.Type, e.Reason, e.Container, e.Message)))
	}
	c.all = nil
	return out
}

// withEvents is a bubble whose agents send events.
func withEvents(t *testing.T, f func(t *testing.T, m *machine, c *chronicle)) {
	bubble(t, func(t *testing.T, m *machine) {
		c := &chronicle{}
		m.alter = func(cfg *Config) { cfg.Events = c }
		f(t, m, c)
	})
}

func (c *chronicle) want(t *testing.T, want ...string) {
	t.Helper()
	got := c.lines()
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("events:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A pull that takes long has events of the kubelet's reason that say for how long.
func TestPullEvents_PendingPull_SayHowLong(t *testing.T) {
	t.Parallel()
	c := &chronicle{}
	report := pullEvents(recorder{c}, mkpod("web", image("remote:1")), "app")
	report(pod.PullProgress{Pending: true, Waited: 60400 * time.Millisecond})
	report(pod.PullProgress{Pending: true, Queued: true, Waited: 3 * time.Minute})
	c.want(t,
		`Normal Pulling spec.containers{app} Still pulling image "remote:1" after 1m0s`,
		`Normal Pulling spec.containers{app} Waiting for other images for 3m0s before pulling image "remote:1"`,
	)
}

// TestC_D_EventsOfALife: an image, a start, reads that find nothing new, a stop.
//
// Shows: Appendix D
func TestC_D_EventsOfALife(t *testing.T) {
	t.Parallel()
	withEvents(t, func(t *testing.T, m *machine, c *chronicle) {
		m.arrive()
		m.src.set(mkpod("web", image("remote:1"), beside("side", "side:1")))
		m.pass(10 * time.Second)
		c.want(t,
			`Normal Pulling spec.containers{app} Pulling image "remote:1"`,
			`Normal Pulled spec.containers{app} Successfully pulled image "remote:1" in 1s (1s including waiting).`,
			"Normal Created spec.containers{app} Container created",
			"Normal Started spec.containers{app} Container started",
			`Normal Pulled spec.containers{side} Container image "side:1" already present on machine and can be accessed by the pod`,
			"Normal Created spec.containers{side} Container created",
			"Normal Started spec.containers{side} Container started",
		)
		m.pass(10 * time.Minute)
		m.leave()
		m.arrive()
		m.pass(time.Minute)
		c.want(t)
		m.src.set()
		m.pass(time.Minute)
		c.want(t,
			"Normal Killing spec.containers{app} Stopping container app",
			"Normal Killing spec.containers{side} Stopping container side",
		)
	})
}

// TestC_1_18_1_FailedKillPod: any failure to stop or remove a pod has an event, at a limited
// rate.
//
// Shows: C-1.18.1
func TestC_1_18_1_FailedKillPod(t *testing.T) {
	t.Parallel()
	for method, step := range map[string]string{"StopContainer": "stop-container app", "RemoveContainer": "remove-container app", "RemovePodSandbox": "remove-sandbox"} {
		withEvents(t, func(t *testing.T, m *machine, c *chronicle) {
			m.arrive()
			m.src.set(mkpod("web"))
			m.pass(time.Second)
			lift := m.rt.Fault(critest.Fault{Method: method, Err: status.Error(codes.Unknown, "device or resource busy")})
			m.src.set()
			m.pass(10 * time.Minute)
			n := 0
			for _, line := range c.lines() {
				if strings.HasPrefix(line, "Warning FailedKillPod  error killing pod: "+step) && strings.HasSuffix(line, "busy") {
					n++
				}
			}
			if n < 2 || n > 70 { // every ten seconds at last
				t.Errorf("%s: sent %d times in ten minutes", method, n)
			}
			lift()
			m.pass(10 * time.Minute)
			if left := m.rt.State(); left != "" {
				t.Errorf("%s: left: %s", method, left)
			}
		})
	}
}

// TestC_1_23_2_KillingSaysWhy: the event says why a container is stopped.
//
// Shows: C-1.23.2, Appendix D
func TestC_1_23_2_KillingSaysWhy(t *testing.T) {
	t.Parallel()
	killing := func(c *chronicle) (out []string) {
		for _, line := range c.lines() {
			if text, ok := strings.CutPrefix(line, "Normal Killing spec.containers{app} "); ok {
				out = append(out, text)
			}
		}
		return out
	}
	withEvents(t, func(t *testing.T, m *machine, c *chronicle) {
		m.arrive()
		m.src.set(mkpod("web"))
		m.pass(time.Second)
		m.src.set(mkpod("web", image("app:2")))
		m.pass(time.Minute)
		if got := killing(c); !slices.Equal(got, []string{"Container app definition changed, will be restarted"}) {
			t.Errorf("after an edit: %q", got)
		}
	})
	withEvents(t, func(t *testing.T, m *machine, c *chronicle) {
		m.disk.sick["app"] = true
		m.arrive()
		m.src.set(mkpod("web", probed(pod.Liveness, 1), policy(v1.RestartPolicyNever)))
		m.pass(time.Minute)
		if got := killing(c); !slices.Equal(got, []string{"Container app failed liveness probe"}) {
			t.Errorf("by a probe: %q", got)
		}
	})
	withEvents(t, func(t *testing.T, m *machine, c *chronicle) {
		m.disk.hookFails = map[string]error{"app": errors.New("canary-secret")}
		m.arrive()
		m.src.set(mkpod("web", hooked, policy(v1.RestartPolicyNever)))
		m.pass(time.Minute)
		got := c.lines()
		for _, want := range []string{
			"Warning FailedPostStartHook spec.containers{app} PostStartHook failed",
			"Normal Killing spec.containers{app} FailedPostStartHook",
			"Warning FailedPreStopHook spec.containers{app} PreStopHook failed",
		} {
			if !slices.Contains(got, want) {
				t.Errorf("no %q in %q", want, got)
			}
		}
		if text := strings.Join(got, "\n"); strings.Contains(text, "canary") {
			t.Errorf("an event has the output of a hook (C-1.24.1): %s", text)
		}
	})
}

// TestC_1_29_17_EveryFailingProbeHasAnEvent: an event for each failure, also below the threshold.
//
// Shows: C-1.29.17
func TestC_1_29_17_EveryFailingProbeHasAnEvent(t *testing.T) {
	t.Parallel()
	withEvents(t, func(t *testing.T, m *machine, c *chronicle) {
		m.disk.sick["app"] = true
		m.arrive()
		m.src.set(mkpod("web", probed(pod.Readiness, 100)))
		m.pass(time.Second)
		c.lines()
		m.pass(30 * time.Second)
		got := c.lines()
		if len(got) < 3 {
			t.Errorf("%d events in half a minute: %q", len(got), got)
		}
		for _, line := range got {
			if line != "Warning Unhealthy spec.containers{app} Readiness probe failed: not well" {
				t.Errorf("events %q", line)
			}
		}
	})
}

// TestC_1_22_5_BackOffHasOneEventPerCrash: one event a crash, not one at every read.
//
// Shows: C-1.22.5
func TestC_1_22_5_BackOffHasOneEventPerCrash(t *testing.T) {
	t.Parallel()
	withEvents(t, func(t *testing.T, m *machine, c *chronicle) {
		m.arrive()
		m.src.set(mkpod("web", image("exit-1-after-1s")))
		m.pass(25 * time.Second) // crashes at 1, 2 (back-off 10 s), 13 (back-off 20 s)
		back := 0
		for _, line := range c.lines() {
			if line == "Warning BackOff spec.containers{app} Back-off restarting failed container app in pod web_default(uid-web)" {
				back++
			}
		}
		if back != 2 {
			t.Errorf("%d back-off events, want 2", back)
		}
	})
}

// TestC_1_39_EventsOfAnImageThatIsNotThere.
//
// Shows: C-1.39
func TestC_1_39_EventsOfAnImageThatIsNotThere(t *testing.T) {
	t.Parallel()
	withEvents(t, func(t *testing.T, m *machine, c *chronicle) {
		m.arrive()
		m.src.set(mkpod("web", image("missing:1")))
		m.pass(5 * time.Second)
		got := c.lines()
		if len(got) != 5 {
			t.Fatalf("events: %q", got)
		}
		for i, want := range []string{
			`Normal Pulling spec.containers{app} Pulling image "missing:1"`,
			`Warning Failed spec.containers{app} Failed to pull image "missing:1": `,
			`Warning Failed spec.containers{app} Error: ErrImagePull`,
			`Normal BackOff spec.containers{app} Back-off pulling image "missing:1"`,
			`Warning Failed spec.containers{app} Error: ImagePullBackOff`,
		} {
			if !strings.HasPrefix(got[i], want) {
				t.Errorf("event %d: %q, want %q", i, got[i], want)
			}
		}
		m.src.set(mkpod("web", image("missing:1"), func(p *v1.Pod) { p.Spec.Containers[0].ImagePullPolicy = v1.PullNever }))
		m.pass(time.Second)
		got = c.lines()
		if !slices.Contains(got, `Warning ErrImageNeverPull spec.containers{app} Container image "missing:1" is not present with pull policy of Never`) {
			t.Errorf("events: %q", got)
		}
	})
}

// TestC_1_31_EventsOfAdmission: with admission's reasons, when the decision changes.
//
// Shows: C-1.31, Appendix D
func TestC_1_31_EventsOfAdmission(t *testing.T) {
	t.Parallel()
	withEvents(t, func(t *testing.T, m *machine, c *chronicle) {
		alter := m.alter
		m.on(cores("1"))
		cores := m.alter
		m.alter = func(cfg *Config) { alter(cfg); cores(cfg) }
		m.arrive()
		m.src.set(mkpod("web", cpu("2")))
		m.pass(5 * time.Minute)
		got := c.lines()
		if len(got) != 1 || !strings.HasPrefix(got[0], "Warning OutOfcpu  Node didn't have enough resource: cpu, ") {
			t.Errorf("events: %q", got)
		}
	})
}

// TestC_1_17_EventsOfNoNetwork: one event until the network is ready.
//
// Shows: C-1.17
func TestC_1_17_EventsOfNoNetwork(t *testing.T) {
	t.Parallel()
	withEvents(t, func(t *testing.T, m *machine, c *chronicle) {
		m.rt.SetReady(true, false, "no CNI")
		m.arrive()
		m.src.set(mkpod("web"))
		m.pass(3 * time.Minute)
		got := c.lines()
		if len(got) != 1 || !strings.HasPrefix(got[0], "Warning NetworkNotReady  network is not ready: container runtime network not ready: ") {
			t.Errorf("events: %q", got)
		}
		m.rt.SetReady(true, true, "")
		m.pass(time.Minute)
		if got := c.lines(); len(got) != 3 {
			t.Errorf("events: %q", got)
		}
	})
}

// TestC_1_19_1_EventOfALostSandbox.
//
// Shows: C-1.19.1
func TestC_1_19_1_EventOfALostSandbox(t *testing.T) {
	t.Parallel()
	withEvents(t, func(t *testing.T, m *machine, c *chronicle) {
		m.arrive()
		m.src.set(mkpod("web"))
		m.pass(time.Second)
		c.lines()
		m.rt.Reboot()
		m.pass(time.Minute)
		if got := c.lines(); !slices.Contains(got, "Normal SandboxChanged  Pod sandbox changed, it will be killed and re-created.") {
			t.Errorf("events: %q", got)
		}
	})
}

// TestC_1_37_EventsOfAVolumeThatIsNotThere.
//
// Shows: C-1.37
func TestC_1_37_EventsOfAVolumeThatIsNotThere(t *testing.T) {
	t.Parallel()
	withEvents(t, func(t *testing.T, m *machine, c *chronicle) {
		m.arrive()
		m.disk.refuse(true)
		m.src.set(mkpod("web", func(p *v1.Pod) { p.Spec.Volumes = []v1.Volume{{Name: "v"}} }))
		m.pass(time.Second)
		got := c.lines()
		if len(got) == 0 || got[0] != "Warning FailedMount  Unable to attach or mount volumes: no space left on device" {
			t.Errorf("events: %q", got)
		}
		m.disk.refuse(false)
		m.pass(time.Minute)
	})
	for _, text := range []string{`MountVolume.MountDevice failed for volume "pv" : no disk`, "Unable to attach or mount volumes: unmounted volumes=[a], unattached volumes=[a]: not attached"} {
		if got := mountText("volume a: " + text); got != text {
			t.Errorf("%q, want %q", got, text)
		}
	}
	if got, want := mountText("volume a: configmap \"b\" not found\n"), "MountVolume.SetUp failed for volume \"a\" : configmap \"b\" not found"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestC_1_34_EventsOfResizes: pending, started, completed.
//
// Shows: C-1.34
func TestC_1_34_EventsOfResizes(t *testing.T) {
	t.Parallel()
	withEvents(t, func(t *testing.T, m *machine, c *chronicle) {
		alter := m.alter
		m.on(cores("2"))
		cores := m.alter
		m.alter = func(cfg *Config) { alter(cfg); cores(cfg) }
		m.arrive()
		web := mkpod("web", cpu("1"))
		m.src.set(web)
		m.pass(time.Second)
		c.lines()
		m.src.set(resized(web, cpu("4")))
		m.pass(time.Minute)
		m.src.set(resized(web, cpu("2")))
		m.pass(time.Minute)
		got := c.lines()
		for i, want := range []string{
			`Warning ResizeInfeasible  Pod resize Infeasible: {"containers":[{"name":"app","resources":{"requests":{"cpu":"4"}}}],"generation":0,"error":"`,
			`Normal ResizeStarted  Pod resize started: {"containers":[{"name":"app","resources":{"requests":{"cpu":"2"}}}],"generation":0}`,
			`Normal ResizeCompleted  Pod resize completed: {"containers":[{"name":"app","resources":{"requests":{"cpu":"2"}}}],"generation":0}`,
		} {
			if i >= len(got) || !strings.HasPrefix(got[i], want) {
				t.Fatalf("events: %q, want %q", got, want)
			}
		}
	})
}

// TestC_1_26_17_EventOfADeadline: one event when the pod has been active for too long.
//
// Shows: C-1.26.17
func TestC_1_26_17_EventOfADeadline(t *testing.T) {
	t.Parallel()
	withEvents(t, func(t *testing.T, m *machine, c *chronicle) {
		m.arrive()
		limit := int64(5)
		m.src.set(mkpod("web", image("slow-term-1s"), func(p *v1.Pod) { p.Spec.ActiveDeadlineSeconds = &limit }))
		m.pass(20 * time.Second)
		events := 0
		for _, line := range c.lines() {
			if line == "Normal DeadlineExceeded  Pod was active on the node longer than the specified deadline" {
				events++
			}
		}
		if events != 1 {
			t.Errorf("the deadline has %d events: %q", events, c.lines())
		}
	})
}

// troubled is a prober that cannot run probes.
type troubled struct{ *disk }

func (troubled) Probe(context.Context, pod.ProbeRequest) error {
	return errors.New("exec: no such thing")
}

// TestProbe_ProberHasTrouble_EventIsTheKubelets: the event reports an unknown state.
//
// Shows: C-1.29.7
func TestProbe_ProberHasTrouble_EventIsTheKubelets(t *testing.T) {
	t.Parallel()
	withEvents(t, func(t *testing.T, m *machine, c *chronicle) {
		alter := m.alter
		m.alter = func(cfg *Config) { alter(cfg); cfg.Prober = troubled{m.disk} }
		m.arrive()
		m.src.set(mkpod("web", probed(pod.Readiness, 100)))
		m.pass(time.Minute)
		const want = "Warning Unhealthy spec.containers{app} Readiness probe errored and resulted in unknown state: exec: no such thing"
		if got := c.lines(); !slices.Contains(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	})
}
