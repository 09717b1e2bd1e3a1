package plan_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
)

// TestF1_KilledAfterEveryStep cuts every plan on the way from one state to the next after its
// first, second, … step, as kill -9 does. The end state is the same as without.
//
// Shows: F1
func TestF1_KilledAfterEveryStep(t *testing.T) {
	t.Parallel()
	base := podShape{policy: "Always", inits: 1, containers: 2}
	one := int32(1)
	stories := map[string]func(*sim, *podShape){
		"start":          func(m *sim, f *podShape) { m.want = f.spec() },
		"remove":         func(m *sim, f *podShape) { runUp(m, f); m.want = nil },
		"edit container": func(m *sim, f *podShape) { runUp(m, f); f.image++; m.want = f.spec() },
		"edit pod":       func(m *sim, f *podShape) { runUp(m, f); f.hostname++; m.want = f.spec() },
		"other uid":      func(m *sim, f *podShape) { runUp(m, f); f.uid++; m.want = f.spec() },
		"reboot":         func(m *sim, f *podShape) { runUp(m, f); m.killSandbox(m.sandboxes[0]) },
		"crash":          func(m *sim, f *podShape) { runUp(m, f); m.exit(m.containers[1], one) },
		"drop container": func(m *sim, f *podShape) { runUp(m, f); f.containers--; m.want = f.spec() },
		"remove and add": func(m *sim, f *podShape) { runUp(m, f); m.want = nil; m.round(1); m.want = f.spec() },
		"never reboot": func(m *sim, f *podShape) {
			f.policy = "Never"
			runUp(m, f)
			m.sandboxes[0].Ready = false
		},
		"sidecars start": func(m *sim, f *podShape) {
			f.sidecars, f.inits, f.hooks, f.probes = 2, 2, true, true
			m.want = f.spec()
		},
		"remove with sidecars": func(m *sim, f *podShape) { f.sidecars, f.hooks = 2, true; runUp(m, f); m.want = nil },
		"edit sidecars":        func(m *sim, f *podShape) { f.sidecars = 2; runUp(m, f); f.sideImage++; m.want = f.spec() },
		"job ends": func(m *sim, f *podShape) {
			f.policy, f.sidecars = "Never", 2
			runUp(m, f)
			m.exitAll("c", 0)
		},
		"liveness": func(m *sim, f *podShape) {
			f.probes, f.hooks = true, true
			runUp(m, f)
			m.health.Live["c0"] = pod.ProbeStatus{ContainerID: m.have().Containers["c0"].ID}
		},
		"hook fails once": func(m *sim, f *podShape) {
			f.hooks, f.sidecars = true, 1
			m.want = f.spec()
			n := 0
			m.hookFails = func() bool { n++; return n == 1 }
		},
		"restart all": func(m *sim, f *podShape) {
			f.own, f.rule, f.sidecars, f.ephemeral = "Never", "RestartAllContainers", 1, true
			runUp(m, f)
			m.exitAll("c0", 1)
		},
		"restart all edited in back-off":    func(m *sim, f *podShape) { inBackoff(m, f); f.image++; m.want = f.spec() },
		"restart all taken out in back-off": func(m *sim, f *podShape) { inBackoff(m, f); f.rule = ""; m.want = f.spec() },
		"restart all while a container is dropped": func(m *sim, f *podShape) {
			f.own, f.rule, f.sidecars = "Never", "RestartAllContainers", 1
			runUp(m, f)
			m.exitAll("c0", 1)
			f.containers--
			m.want = f.spec()
		},
		"reboot in init": func(m *sim, f *podShape) {
			f.policy, f.own = "Never", "Always"
			m.want = f.spec()
			m.round(-1)
			m.round(-1)
			m.killSandbox(m.sandboxes[0])
		},
		"deadline": func(m *sim, f *podShape) {
			f.sidecars, f.hooks = 1, true
			runUp(m, f)
			f.deadline = 1
			m.now = m.now.Add(time.Minute)
			m.want = f.spec()
		},
		"resize":          func(m *sim, f *podShape) { f.resize = true; runUp(m, f); f.memory++; m.want = f.spec() },
		"resize restarts": func(m *sim, f *podShape) { runUp(m, f); f.memory++; m.want = f.spec() },
		"resize restarts what ends well": func(m *sim, f *podShape) {
			f.policy, m.stopsWell = "OnFailure", true
			runUp(m, f)
			f.memory++
			m.want = f.spec()
		},
		"ended job edited": func(m *sim, f *podShape) {
			f.policy = "OnFailure"
			runUp(m, f)
			m.exitAll("c", 0)
			m.settle()
			f.image++
			m.want = f.spec()
		},
	}
	for name, story := range stories {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			play := func(cut int) (string, int) {
				m, f := newSim(), base
				m.want = f.spec()
				m.key = m.want.Key
				story(m, &f)
				most, done := 0, false
				for range 40 { // the agent is killed in every round, then never again
					p := m.round(cut)
					most = max(most, len(p.Steps))
					if cut < 0 || p.Gone || len(p.Steps) == 0 {
						break
					}
				}
				if _, done = m.settle(); !done || len(m.broken) > 0 {
					t.Fatalf("cut after %d: settled %t, broken %v\n%s", cut, done, m.broken, strings.Join(m.log, "\n"))
				}
				return m.shape(), most
			}
			whole, _ := play(-1)
			_, most := play(1)
			if most < 1 {
				t.Fatal("the story asks for no step")
			}
			for cut := 1; cut <= 12; cut++ {
				if got, _ := play(cut); got != whole {
					t.Errorf("cut after %d steps:\n%s\nwant:\n%s", cut, got, whole)
				}
			}
		})
	}
}

// inBackoff lets a container restart all twice, so that it is in back-off.
func inBackoff(m *sim, f *podShape) {
	f.own, f.rule, f.sidecars = "Never", "RestartAllContainers", 1
	runUp(m, f)
	m.exitAll("c0", 1)
	if _, ok := m.settle(); !ok {
		panic("not up again")
	}
	m.exitAll("c0", 1)
	if p := m.round(-1); !p.RestartingAll || p.Wait == 0 {
		panic("no back-off: " + p.String())
	}
}

func runUp(m *sim, f *podShape) {
	m.want = f.spec()
	if _, ok := m.settle(); !ok {
		panic("not up")
	}
}

// exitAll ends the containers whose names have the prefix.
func (m *sim) exitAll(prefix string, code int32) {
	for _, c := range m.containers {
		if strings.HasPrefix(c.Name, prefix) {
			m.exit(c, code)
		}
	}
}

// TestC_1_5_8_LeftoverHoldsNothingUp: a container that is not in the spec any more and cannot
// be removed prevents no other container from restarting.
//
// Shows: C-1.5.8
func TestC_1_5_8_LeftoverHoldsNothingUp(t *testing.T) {
	t.Parallel()
	m := newSim()
	f := podShape{policy: "Always", containers: 2}
	runUp(m, &f)
	f.containers--
	m.want = f.spec()
	m.exitAll("c0", 1)
	stuck := 0
	m.fail = func(s plan.Step) bool {
		stays := s.Action == plan.RemoveContainer && s.Container == "c1"
		if stays {
			stuck++
		}
		return stays
	}
	for range 4 {
		m.round(-1)
	}
	have := m.have()
	if c := have.Containers["c0"]; c.State != pod.StateRunning || c.Restarts != 1 {
		t.Errorf("c0 is %s, restarted %d times", c.State, c.Restarts)
	}
	if c := have.Containers["c1"]; c.State != pod.StateExited || stuck == 0 || len(m.broken) > 0 {
		t.Errorf("c1 is %s, %d removals failed, broken %v", c.State, stuck, m.broken)
	}
}
