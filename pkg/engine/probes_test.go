package engine

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// ailing is a Prober whose probes fail where sick returns true.
type ailing struct {
	*disk
	sick func(pod.ProbeRequest) bool
}

func (a *ailing) Probe(_ context.Context, r pod.ProbeRequest) error {
	if a.sick(r) {
		return &pod.ProbeFailure{Message: "not well"}
	}
	return nil
}

// probesFail makes the probes fail where sick returns true.
func (m *machine) probesFail(sick func(pod.ProbeRequest) bool) {
	m.alter = func(c *Config) { c.Prober = &ailing{m.disk, sick} }
}

// firstLife reports whether a probe is for the first container of app.
func firstLife(r pod.ProbeRequest) bool { return strings.Contains(r.ContainerID, "-app-0-") }

// often is a probe that runs every two seconds, and fails at the third failure.
func often() *v1.Probe {
	return &v1.Probe{PeriodSeconds: 2, SuccessThreshold: 1, FailureThreshold: 3, TimeoutSeconds: 1,
		ProbeHandler: v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"true"}}}}
}

// probed gives container app a probe of one kind, with its own grace where own is not 0.
func probed(kind pod.ProbeKind, own int64) func(*v1.Pod) {
	return func(p *v1.Pod) {
		probe := often()
		if own != 0 {
			probe.TerminationGracePeriodSeconds = &own
		}
		c := &p.Spec.Containers[0]
		switch kind {
		case pod.Liveness:
			c.LivenessProbe = probe
		case pod.Startup:
			c.StartupProbe = probe
		case pod.Readiness:
			c.ReadinessProbe = probe
		}
	}
}

// TestC_1_23_1_FailedProbeEndsTheContainer: from the third failure to the calls. The preStop
// hook takes three seconds of the probe's own grace, or else of the pod's. The container
// restarts by its policy, whatever the exit code (C-1.19.6).
//
// Shows: C-1.23.1, C-1.29.18
func TestC_1_23_1_FailedProbeEndsTheContainer(t *testing.T) {
	t.Parallel()
	const begin = `
0s RunPodSandbox default/web attempt=0
0s CreateContainer default/web/app attempt=0
0s StartContainer default/web/app attempt=0`
	for name, c := range map[string]struct {
		edit  func(*v1.Pod)
		image string
		rule  v1.RestartPolicy
		want  string
	}{
		"liveness, its own grace": {probed(pod.Liveness, 9), "app:1", v1.RestartPolicyAlways, `
7s StopContainer default/web/app attempt=0 grace=6
7s CreateContainer default/web/app attempt=1
7s StartContainer default/web/app attempt=1`},
		"startup, its own grace": {probed(pod.Startup, 9), "app:1", v1.RestartPolicyAlways, `
7s StopContainer default/web/app attempt=0 grace=6
7s CreateContainer default/web/app attempt=1
7s StartContainer default/web/app attempt=1`},
		"liveness, the pod's grace": {probed(pod.Liveness, 0), "app:1", v1.RestartPolicyAlways, `
7s StopContainer default/web/app attempt=0 grace=57
7s CreateContainer default/web/app attempt=1
7s StartContainer default/web/app attempt=1`},
		"OnFailure, it ends with 0": {probed(pod.Liveness, 9), "slow-term-1s", v1.RestartPolicyOnFailure, `
7s StopContainer default/web/app attempt=0 grace=6
8s CreateContainer default/web/app attempt=1
8s StartContainer default/web/app attempt=1`},
		"it ignores the signal": {probed(pod.Liveness, 9), "ignore-term", v1.RestartPolicyAlways, `
7s StopContainer default/web/app attempt=0 grace=6
13s CreateContainer default/web/app attempt=1
13s StartContainer default/web/app attempt=1`},
		"Never": {probed(pod.Startup, 9), "app:1", v1.RestartPolicyNever, `
7s StopContainer default/web/app attempt=0 grace=6
7s StopPodSandbox default/web attempt=0`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, m *machine) {
				began := time.Now()
				m.disk.hookTakes = map[string]time.Duration{"app": 3 * time.Second}
				m.probesFail(firstLife)
				m.src.set(mkpod("web", image(c.image), graceSeconds(60), preStopped, c.edit, policy(c.rule)))
				m.arrive()
				m.pass(3 * time.Minute)
				transcript(t, m, begin+c.want)
				if got := m.disk.ran(); len(got) != 1 || got[0].at.Sub(began) != 4*time.Second {
					t.Errorf("hooks %+v, want one after 4 s", got)
				}
				st := m.disk.last(webKey).pod.Status
				if c.rule == v1.RestartPolicyNever {
					if st.Phase != v1.PodFailed || st.ContainerStatuses[0].RestartCount != 0 {
						t.Errorf("status %+v", st)
					}
					return
				}
				if got := st.ContainerStatuses[0]; !isReady(&st) || got.RestartCount != 1 || got.LastTerminationState.Terminated == nil {
					t.Errorf("status %+v", got)
				}
			})
		})
	}
}

// A third kill by a probe in a row is a crash like any other: the restart waits for its
// back-off, also after the agent ended (C-1.22.5).
//
// Shows: C-1.22.5
func TestC_1_22_5_KillsByProbesBackOff(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *machine) {
		m.probesFail(func(pod.ProbeRequest) bool { return true })
		m.src.set(mkpod("web", probed(pod.Liveness, 0)))
		m.arrive()
		m.pass(14 * time.Second)
		if w := m.disk.last(webKey).pod.Status.ContainerStatuses[0].State.Waiting; w == nil || w.Reason != "CrashLoopBackOff" {
			t.Errorf("waiting %+v", w)
		}
		m.die()
		m.pass(time.Second)
		m.arrive()
		m.pass(8 * time.Second)
		var starts []string
		for _, line := range m.rt.Transcript() {
			if at, what, _ := strings.Cut(line, " "); strings.HasPrefix(what, "StartContainer") {
				starts = append(starts, at)
			}
		}
		if want := []string{"0s", "4s", "8s", "22s"}; !slices.Equal(starts, want) {
			t.Errorf("starts at %v, want %v", starts, want)
		}
	})
}

// TestC_1_29_ReadinessOnlyFlipsReady: of all three probes only readiness fails. No call
// changes the runtime, and no hook runs.
//
// Shows: C-1.29
func TestC_1_29_ReadinessOnlyFlipsReady(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *machine) {
		var sick atomic.Bool
		m.probesFail(func(r pod.ProbeRequest) bool { return sick.Load() && r.Probe == r.Container.ReadinessProbe })
		m.src.set(mkpod("web", preStopped, probed(pod.Startup, 0), probed(pod.Liveness, 0), probed(pod.Readiness, 0)))
		m.arrive()
		m.pass(10 * time.Second)
		m.rt.Reset()
		for _, failing := range []bool{true, false, true} {
			sick.Store(failing)
			m.pass(10 * time.Minute)
			st := m.disk.last(webKey).pod.Status
			if c := st.ContainerStatuses[0]; isReady(&st) == failing || c.Ready == failing || st.Phase != v1.PodRunning || c.RestartCount != 0 {
				t.Errorf("its probe fails: %t, status %+v", failing, st)
			}
		}
		transcript(t, m, ``)
		if got := m.disk.ran(); len(got) != 0 {
			t.Errorf("%d hooks ran", len(got))
		}
	})
}
