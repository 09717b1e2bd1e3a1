package engine

import (
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/pod"
)

// own gives a container its own restart policy, and rules.
func own(name string, policy v1.ContainerRestartPolicy, rules ...v1.ContainerRestartRule) func(*v1.Pod) {
	return func(p *v1.Pod) {
		for i := range p.Spec.Containers {
			if c := &p.Spec.Containers[i]; c.Name == name {
				c.RestartPolicy, c.RestartPolicyRules = &policy, rules
			}
		}
	}
}

// onExit is a rule about one exit code.
func onExit(code int32, action v1.ContainerRestartRuleAction) v1.ContainerRestartRule {
	return v1.ContainerRestartRule{Action: action, ExitCodes: &v1.ContainerRestartRuleOnExitCodes{
		Operator: v1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{code}}}
}

// beside adds a regular container.
func beside(name, image string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: name, Image: image, ImagePullPolicy: v1.PullIfNotPresent})
	}
}

// exits makes the containers of app exit some time after their start, with these codes in
// turn; later ones keep running.
func (m *machine) exits(after time.Duration, codes ...int32) {
	m.rt.Behave(func(c *runtimeapi.ContainerConfig) (critest.Behaviour, bool) {
		n := int(c.GetMetadata().GetAttempt())
		if c.GetMetadata().GetName() != "app" || n >= len(codes) {
			return critest.Behaviour{}, false
		}
		return critest.Behaviour{Ends: true, After: after, Code: codes[n], TermCode: 143}, true
	})
}

// startsOf returns when the containers of a name were started: "0s", "3s".
func startsOf(m *machine, container string) (at []string) {
	for _, line := range m.rt.Transcript() {
		if f := strings.Fields(line); f[1] == "StartContainer" && f[2] == "default/"+container {
			at = append(at, f[0])
		}
	}
	return at
}

func (m *machine) started(container string, want ...string) {
	m.t.Helper()
	if got := startsOf(m, container); !slices.Equal(got, want) {
		m.t.Errorf("%s started at %v, want %v", container, got, want)
	}
}

// A container's own policy takes precedence over the pod's, for that container alone.
//
// Shows: C-1.21.2
func TestC_1_21_2_OwnPolicyRestartsThatContainer(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		pod       v1.RestartPolicy
		own       v1.ContainerRestartPolicy
		app, side []string
	}{
		"Always in a Never pod":    {v1.RestartPolicyNever, v1.ContainerRestartPolicyAlways, []string{"0s", "3s", "16s"}, []string{"0s"}},
		"OnFailure in a Never pod": {v1.RestartPolicyNever, v1.ContainerRestartPolicyOnFailure, []string{"0s", "3s", "16s"}, []string{"0s"}},
		"Never in an Always pod":   {v1.RestartPolicyAlways, v1.ContainerRestartPolicyNever, []string{"0s"}, []string{"0s", "3s", "16s"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, m *machine) {
				m.src.set(mkpod("web", policy(c.pod), image("exit-1-after-3s"), beside("side", "exit-1-after-3s"), own("app", c.own)))
				m.arrive()
				m.pass(18 * time.Second)
				m.started("web/app", c.app...)
				m.started("web/side", c.side...)
				if got := m.phase("web"); got != "Running" {
					t.Errorf("phase %s", got)
				}
			})
		})
	}
}

// A rule takes precedence over the container's own policy: the exit code it names restarts
// the container, the first other one does not.
//
// Shows: C-1.21.1
func TestC_1_21_1_RuleRestartsWhatItNames(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *machine) {
		m.exits(time.Second, 42, 42, 1)
		m.src.set(mkpod("web", own("app", v1.ContainerRestartPolicyNever, onExit(42, v1.ContainerRestartRuleActionRestart)), beside("side", "exit-0-after-30s"), policy(v1.RestartPolicyNever)))
		m.arrive()
		m.pass(20 * time.Second)
		m.started("web/app", "0s", "1s", "12s")
		if got := m.phase("web"); got != "Running" {
			t.Errorf("phase %s while the other container runs", got)
		}
		m.pass(time.Hour)
		m.started("web/app", "0s", "1s", "12s")
		if got := m.phase("web"); got != "Failed" {
			t.Errorf("phase %s", got)
		}
	})
}

// TestC_1_21_3_RestartAllContainers: all of them are killed without grace or hook and
// removed, and the pod begins at its first init container, in its sandbox. The second restart
// in a row is in back-off, also after the agent ended.
//
// Shows: C-1.21.3
func TestC_1_21_3_RestartAllContainers(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *machine) {
		m.exits(5*time.Second, 88, 88)
		m.src.set(mkpod("web", initContainer("exit-0"), sidecar, beside("side", "ignore-term"),
			own("app", v1.ContainerRestartPolicyNever, onExit(88, v1.ContainerRestartRuleActionRestartAllContainers)),
			func(p *v1.Pod) {
				p.Spec.Containers[1].Lifecycle = &v1.Lifecycle{PreStop: &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"hook"}}}}
			}))
		m.arrive()
		m.pass(4 * time.Second)
		ip := m.disk.last(webKey).pod.Status.PodIP
		m.pass(5 * time.Second) // two of them until side is killed
		m.want("default/web sandbox attempt=0 ready", "default/web/init attempt=1 exited(0)", "default/web/proxy attempt=1 running",
			"default/web/app attempt=1 running", "default/web/side attempt=1 running")
		for _, line := range stopsOf(m) {
			if !strings.HasSuffix(line, "grace=2") {
				t.Errorf("%s: it was given time", line)
			}
		}
		m.pass(4 * time.Second)
		m.die()
		m.pass(time.Second)
		m.arrive()
		m.pass(20 * time.Second)
		// It exited again at 7 s + 5 s; the delay is 10 s.
		for _, c := range []string{"init", "proxy", "app", "side"} {
			m.started("web/"+c, "0s", "7s", "22s")
		}
		m.want("default/web sandbox attempt=0 ready", "default/web/init attempt=2 exited(0)", "default/web/proxy attempt=2 running",
			"default/web/app attempt=2 running", "default/web/side attempt=2 running")
		st := m.disk.last(webKey).pod.Status
		if st.Phase != v1.PodRunning || st.PodIP != ip || ip == "" || st.ContainerStatuses[1].RestartCount != 2 {
			t.Errorf("status %+v, the IP was %s", st, ip)
		}
		if got := m.disk.ran(); len(got) != 0 {
			t.Errorf("%d hooks ran", len(got))
		}
	})
}

// An ephemeral container that an API server adds to a running pod is started once. Nothing
// else changes, and its exit does not affect the pod's phase.
//
// Shows: C-1.19.4
func TestC_1_19_4_EphemeralContainerStartsOnce(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *machine) {
		web := of("api", "/k", mkpod("web"))
		m.src.name = "api:/k"
		m.src.set(web)
		m.arrive()
		m.pass(10 * time.Second)
		m.src.set(resized(web, func(p *v1.Pod) {
			p.Spec.EphemeralContainers = []v1.EphemeralContainer{{TargetContainerName: "app",
				EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "debug", Image: "exit-1-after-3s", ImagePullPolicy: v1.PullIfNotPresent}}}
		}))
		m.pass(time.Second)
		shown := func() v1.ContainerState {
			if list := m.disk.last(webKey).pod.Status.EphemeralContainerStatuses; len(list) == 1 {
				return list[0].State
			}
			return v1.ContainerState{}
		}
		if shown().Running == nil {
			t.Errorf("state %+v while it runs", shown())
		}
		m.pass(10 * time.Minute)
		m.leave()
		m.arrive()
		m.pass(10 * time.Minute)
		transcript(t, m, `
0s RunPodSandbox default/web attempt=0
0s CreateContainer default/web/app attempt=0
0s StartContainer default/web/app attempt=0
10s CreateContainer default/web/debug attempt=0
10s StartContainer default/web/debug attempt=0`)
		if end := shown().Terminated; end == nil || end.ExitCode != 1 || m.phase("web") != "Running" {
			t.Errorf("phase %s, state %+v", m.phase("web"), shown())
		}
	})
}

// TestRestartAllContainers_TriggeredBySidecar_AllHaveALastTermination: every container that
// the restart removed shows its exit in every status that counts the restart, also the init
// containers, which are removed by then. The restart ended the regular containers, and the
// pod has not failed although its policy is Never. An API server's update makes the worker
// read the pod in between.
//
// Shows: C-1.21.3
func TestRestartAllContainers_TriggeredBySidecar_AllHaveALastTermination(t *testing.T) {
	t.Parallel()
	for name, after := range map[string]time.Duration{"at once": 0, "while it runs": 30 * time.Second} {
		for _, image := range []string{"app:1", "ignore-term"} {
			t.Run(strings.ReplaceAll(name+" "+image, " ", "-"), func(t *testing.T) {
				t.Parallel()
				bubble(t, func(t *testing.T, m *machine) {
					m.rt.Behave(func(c *runtimeapi.ContainerConfig) (critest.Behaviour, bool) {
						if c.GetMetadata().GetName() != "source" || c.GetMetadata().GetAttempt() > 0 {
							return critest.Behaviour{}, false
						}
						return critest.Behaviour{Ends: true, After: after, Code: 42}, true
					})
					m.src.name = "api:/k"
					m.src.set(ofAPI("web", initContainer("exit-0"), sidecarNamed("side"), sidecarNamed("source"), policy(v1.RestartPolicyNever), func(p *v1.Pod) {
						p.Spec.InitContainers[1].Image, p.Spec.Containers[0].Image = image, image
						p.Spec.InitContainers[2].RestartPolicyRules = []v1.ContainerRestartRule{onExit(42, v1.ContainerRestartRuleActionRestartAllContainers)}
						p.Annotations = map[string]string{pod.AnnotationConfigSource: "api"}
					}))
					m.arrive()
					m.pass(after + time.Second) // an update of the pod comes while containers stop
					changed := *m.src.pods[0]
					changed.Pod = changed.Pod.DeepCopy()
					changed.Pod.Labels = map[string]string{"a": "b"}
					changed.Hash = sum(changed.Pod)
					m.src.set(&changed)
					m.pass(2 * time.Minute)
					seen := map[string]string{}
					for _, l := range m.disk.lines {
						for _, s := range slices.Concat(l.pod.Status.InitContainerStatuses, l.pod.Status.ContainerStatuses) {
							if s.RestartCount > 0 && s.LastTerminationState.Terminated == nil && seen[s.Name] == "" {
								seen[s.Name] = "bad"
								t.Errorf("%s %s: restarts %d and no last termination, state %+v", l.at, s.Name, s.RestartCount, s.State)
							}
						}
					}
					st := m.disk.last(webKey).pod.Status
					for _, s := range slices.Concat(st.InitContainerStatuses, st.ContainerStatuses) {
						if begun := s.Name != "app" || after > 0; begun && s.RestartCount != 1 {
							t.Errorf("%s: restarts %d", s.Name, s.RestartCount)
						}
					}
					if st.Phase != v1.PodRunning {
						t.Errorf("phase %s", st.Phase)
					}
				})
			})
		}
	}
}
