package engine

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// stories are sequences of events for pods. Each runs once without a fault, and then once per
// call of its transcript with the agent killed right after that call.
var stories = map[string]func(m *machine, kills func()){
	"start with init": func(m *machine, live func()) {
		m.src.set(mkpod("web", initContainer("exit-0-after-2s")))
		live()
	},
	"crash loop": func(m *machine, live func()) {
		m.src.set(mkpod("web", image("exit-1-after-3s")))
		live()
	},
	"job": func(m *machine, live func()) {
		m.src.set(mkpod("web", image("exit-0-after-1s"), policy(v1.RestartPolicyOnFailure)))
		live()
	},
	"stop": func(m *machine, live func()) {
		m.src.set(mkpod("web", image("slow-term-2s")))
		live()
		m.src.set()
		live()
	},
	"replace the pod": func(m *machine, live func()) {
		m.src.set(mkpod("web", image("slow-term-2s")))
		live()
		m.src.set(mkpod("web", image("slow-term-2s"), func(p *v1.Pod) { p.Spec.HostNetwork = true }))
		live()
	},
	"replace one container": func(m *machine, live func()) {
		two := func(p *v1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: "side", Image: "side:1"})
		}
		m.src.set(mkpod("web", two))
		live()
		m.src.set(mkpod("web", two, image("app:2")))
		live()
	},
	"start and stop with hooks": func(m *machine, live func()) {
		m.disk.hookTakes = map[string]time.Duration{"app": time.Second}
		m.src.set(mkpod("web", hooked, image("slow-term-2s")))
		live()
		if life := m.notesOf("app"); !m.hookRan(life) {
			m.t.Errorf("the postStart hook of %s did not run", life)
		}
		begun := time.Now()
		m.src.set()
		live()
		if !slices.ContainsFunc(m.disk.ran(), func(h hookRun) bool { return !h.at.Before(begun) }) {
			m.t.Error("the preStop hook did not run")
		}
	},
	"sidecars": func(m *machine, live func()) {
		m.src.set(mkpod("web", initContainer("exit-0-after-1s"), sidecar, sidecarNamed("log"), image("slow-term-2s")))
		live()
		begun := len(m.rt.Transcript())
		m.src.set()
		live()
		m.inOrder(m.rt.Transcript()[:begun], "StartContainer", "init", "proxy", "log", "app")
		m.inOrder(m.rt.Transcript()[begun:], "StopContainer", "app", "log", "proxy")
	},
	"killed by a probe": func(m *machine, live func()) {
		m.disk.hookTakes = map[string]time.Duration{"app": time.Second}
		m.probesFail(firstLife)
		m.again()
		m.src.set(mkpod("web", preStopped, probed(pod.Liveness, 9), image("slow-term-2s"), policy(v1.RestartPolicyOnFailure))) // it exits with 0
		live()
	},
	"resize": func(m *machine, live func()) {
		m.on(cores("4"))
		m.again()
		web := mkpod("web", cpu("1"))
		m.src.set(web)
		live()
		m.src.set(resized(web, cpu("2")))
		live()
		if got := m.rt.Resources(webKey, "app").GetCpuShares(); got != 2048 {
			m.t.Errorf("%d cpu shares", got)
		}
	},
	"restart all": func(m *machine, live func()) {
		m.exits(5*time.Second, 88)
		m.src.set(mkpod("web", initContainer("exit-0"), beside("side", "side:1"),
			own("app", v1.ContainerRestartPolicyNever, onExit(88, v1.ContainerRestartRuleActionRestartAllContainers))))
		live()
		if strings.Contains(m.rt.State(), "attempt=0 running") || strings.Contains(m.rt.State(), "attempt=0 exited") {
			m.t.Errorf("runtime:\n%s", m.rt.State())
		}
	},
	"restart requested": func(m *machine, live func()) {
		m.disk.hookTakes = map[string]time.Duration{"app": time.Second}
		m.src.set(mkpod("web", preStopped, image("slow-term-2s"), beside("side", "side:1"), policy(v1.RestartPolicyNever)))
		live()
		m.restart("app")
		live()
		if c := m.disk.last(webKey).pod.Status.ContainerStatuses[0]; c.RestartCount == 0 {
			m.t.Errorf("%s was not restarted", c.Name)
		}
	},
	"delete requested": func(m *machine, live func()) {
		m.src.set(mkpod("web", image("slow-term-2s")))
		live()
		m.remove(nil)
		live()
		if n := m.instance(); n != 2 {
			m.t.Errorf("instance %d", n)
		}
	},
	"drained, and undone": func(m *machine, live func()) {
		m.src.set(mkpod("web", preStopped, image("slow-term-2s"), policy(v1.RestartPolicyNever)))
		live()
		m.halt(drained)
		live()
		if strings.Contains(m.rt.State(), "running") {
			m.t.Errorf("runtime:\n%s", m.rt.State())
		}
		m.resume()
		live()
		if n := m.instance(); n != 2 {
			m.t.Errorf("instance %d", n)
		}
	},
	"shut down with a pod of an API server": func(m *machine, live func()) {
		m.more = newWishes()
		m.more.name = "api:/k"
		m.again()
		m.more.set(atAPI(mkpod("web", preStopped, image("slow-term-2s"))))
		live()
		m.halt(off)
		live()
		if st := m.disk.last(webKey).pod.Status; st.Reason != "Terminated" || len(m.disk.ran()) == 0 {
			m.t.Errorf("%s, %d hooks", st.Reason, len(m.disk.ran()))
		}
	},
	"remove and add again": func(m *machine, live func()) {
		m.src.set(mkpod("web", image("slow-term-2s")))
		live()
		m.src.set()
		m.pass(time.Second)
		m.src.set(mkpod("web", image("slow-term-2s")))
		live()
	},
}

// sidecarNamed is sidecar by another name.
func sidecarNamed(name string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		sidecar(p)
		p.Spec.InitContainers[len(p.Spec.InitContainers)-1].Name = name
	}
}

// again replaces the agent by one that is made as alter says, before any pod is desired.
func (m *machine) again() {
	m.leave()
	m.arrive()
}

// notesOf returns the ID of a container of pod web, as reported.
func (m *machine) notesOf(container string) string {
	m.t.Helper()
	for _, c := range m.disk.last(webKey).pod.Status.ContainerStatuses {
		if _, id, ok := strings.Cut(c.ContainerID, "://"); ok && c.Name == container {
			return id
		}
	}
	m.t.Errorf("container %s is not reported", container)
	return ""
}

// hookRan reports whether a hook of this container was begun.
func (m *machine) hookRan(life string) bool {
	return slices.ContainsFunc(m.disk.ran(), func(h hookRun) bool { return h.id == life })
}

// inOrder checks that a verb was first used on the containers of web in the order of names.
func (m *machine) inOrder(transcript []string, verb string, names ...string) {
	m.t.Helper()
	var got []string
	for _, line := range transcript {
		f := strings.Fields(line)
		if name := strings.TrimPrefix(f[2], "default/web/"); f[1] == verb && !slices.Contains(got, name) {
			got = append(got, name)
		}
	}
	if !slices.Equal(got, names) {
		m.t.Errorf("%s met %v, want %v", verb, got, names)
	}
}

// stageTime is how long each stage of a scenario lasts.
const stageTime = 90 * time.Second

// TestF1_KillAfterEveryCall: kill -9 after any call, and another agent, lead to the same end,
// and no container ever runs twice (I1, I3, I4).
//
// Shows: F1, I1, I3
func TestF1_KillAfterEveryCall(t *testing.T) {
	killEverywhere(t, func(n int) map[int]bool { return map[int]bool{n: true} })
}

// killEverywhere plays every story once for each of its calls, and kills the agent after
// the calls that kills names.
func killEverywhere(t *testing.T, kills func(n int) map[int]bool) {
	for name, story := range stories {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want, calls := tell(t, story, nil)
			if calls < 4 {
				t.Fatalf("the story took %d calls: it was not played", calls)
			}
			for n := 1; n <= calls; n++ {
				if got, _ := tell(t, story, kills(n)); got != want {
					t.Errorf("killed after the calls %v, the end is\n%s\nwant\n%s", kills(n), got, want)
				}
			}
		})
	}
}

// tell runs a story, kills the agent after the given calls, and returns the end state
// (without attempts: they may differ) and the number of calls.
func tell(t *testing.T, story func(*machine, func()), kills map[int]bool) (end string, calls int) {
	kills = maps.Clone(kills)
	bubble(t, func(t *testing.T, m *machine) {
		killed := make(chan struct{}, 16)
		m.rt.AfterEach(func(n int, _ string) {
			if kills[n] {
				m.agent.conn.Cut()
				killed <- struct{}{}
			}
		})
		m.arrive()
		live := func() {
			over := time.After(stageTime)
			for {
				select {
				case <-killed:
					m.die()
					m.pass(time.Second)
					m.arrive()
				case <-over:
					m.settle()
					return
				}
			}
		}
		story(m, live)
		end = shape(m)
		calls = len(m.rt.Transcript())
		for i, line := range m.rt.Transcript() {
			cut := len(kills) > 0 && strings.HasSuffix(line, "Canceled") // in parallel with the call after which the agent was killed
			if strings.Contains(line, "->") && !strings.Contains(line, "Unavailable") && !cut {
				t.Errorf("call %d failed: %s", i+1, line)
			}
		}
	})
	return end, calls
}

// shape is the end state of a story without the numbers that a crash may raise.
func shape(m *machine) string {
	var b strings.Builder
	for line := range strings.Lines(m.rt.State()) {
		for f := range strings.FieldsSeq(line) {
			if !strings.HasPrefix(f, "attempt=") {
				b.WriteString(f + " ")
			}
		}
		b.WriteString("\n")
	}
	fmt.Fprintf(&b, "phase %s\nrecords %d volumes %d\n", m.phase("web"), len(m.disk.records), len(m.disk.volumes))
	return b.String()
}
