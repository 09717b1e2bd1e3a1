package plan_test

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
)

// checkStops checks that sidecars stop after the containers they serve, the last one first
// (C-1.23.4). It also checks that the grace of a stop of the whole pod never grows.
func (m *sim) checkStops(v plan.View, p plan.Plan) {
	made := v.Record.Want
	if made == nil || v.Have.UID != "" && made.UID() != v.Have.UID {
		made = v.Want
	}
	for i, s := range p.Steps {
		if s.Action != plan.StopContainer {
			continue
		}
		if s.Grace < 2 {
			m.breaks("grace %d", s.Grace)
		}
		if p.Stopping && !v.Record.StopSince.IsZero() {
			if s.Grace > m.lastGrace {
				m.breaks("grace grew from %d to %d", m.lastGrace, s.Grace)
			}
			m.lastGrace = s.Grace
		}
		if made == nil || made.UID() != v.Have.UID || !s.Together || s.Grace == 2 {
			continue
		}
		for j, o := range p.Steps {
			if j == i || o.Action != plan.StopContainer || !o.Together || o.Container == s.Container {
				continue
			}
			waits := slices.Contains(s.After, o.Container)
			if should := stopsAfter(made, s.Container, o.Container); waits != should {
				m.breaks("%s waits for %s: %t, want %t", s.Container, o.Container, waits, should)
			}
		}
	}
}

// stopsAfter reports whether a is a sidecar and b a regular container or a
// sidecar after it.
func stopsAfter(made *pod.Spec, a, b string) bool {
	sidecar := func(name string) int {
		return slices.IndexFunc(made.Pod.Spec.InitContainers, func(c v1.Container) bool { return c.Name == name && pod.Restartable(&c) })
	}
	regular := slices.ContainsFunc(made.Pod.Spec.Containers, func(c v1.Container) bool { return c.Name == b })
	return sidecar(a) >= 0 && (regular || sidecar(b) > sidecar(a))
}

// checkHooks checks that a container is created after the postStart hooks of the ones before
// it (C-1.22.1).
func (m *sim) checkHooks(name string) {
	if name == "debug" { // it follows no other container
		return
	}
	for _, before := range m.order() {
		if before == name {
			return
		}
		for _, c := range m.containers {
			if c.Name == before && c.State == pod.StateRunning && m.here(c) && m.rec.ContainerNotes[c.ID].PostStart == pod.HookDue && m.want.ContainerHash(c.Name) == c.Hash {
				m.breaks("%s is made before the hook of %s", name, before)
			}
		}
	}
}

// order is the names of the init and regular containers, in order.
func (m *sim) order() (names []string) {
	for _, list := range [][]v1.Container{m.want.Pod.Spec.InitContainers, m.want.Pod.Spec.Containers} {
		for i := range list {
			names = append(names, list[i].Name)
		}
	}
	return names
}

func (m *sim) here(c *simContainer) bool { return c.SandboxID == m.have().Sandbox.ID }

// checkTurn checks that a container is not created too early. In this sandbox, the init containers
// before it have completed, and the sidecars have started (C-1.20.4, C-1.20.5).
func (m *sim) checkTurn(name, sandbox string) {
	turned := m.turned[sandbox]
	if turned == nil {
		turned = map[string]bool{}
		m.turned[sandbox] = turned
	}
	_, init := m.want.Container(name)
	if name == "debug" || turned[""] || turned[name] {
		return
	}
	for _, o := range m.containers {
		spec, _ := m.want.Container(o.Name)
		if spec == nil || !pod.Restartable(spec) || o.State != pod.StateRunning || !m.here(o) || m.rec.ContainerNotes[o.ID].PostStart != "" {
			continue
		}
		v := m.health.Started[o.Name]
		if spec.StartupProbe == nil || v.ContainerID == o.ID && v.OK {
			turned[o.Name] = true
		}
	}
	for i := range m.want.Pod.Spec.InitContainers {
		before := m.want.Pod.Spec.InitContainers[i].Name
		if before == name {
			break
		}
		if !turned[before] {
			m.breaks("%s is made before %s had its turn", name, before)
		}
	}
	turned[""] = !init
}

// checkPolicy checks that a container restarts within an instance only by its policy, or if
// its definition or resources changed.
func (m *sim) checkPolicy(c *simContainer) {
	key := m.notesKey(c.Name)
	l := m.notes[key]
	m.notes[key] = &notes{id: c.ID, hash: c.Hash, resources: c.Resources, sandbox: c.SandboxID}
	spec, init := m.want.Container(c.Name)
	if l == nil || l.hash != c.Hash || l.resources != c.Resources || init && l.sandbox != c.SandboxID {
		return
	}
	if strings.HasPrefix(c.Name, "debug") || !mayRestart(m.want, spec, l) {
		m.breaks("%s restarted after %d, killed %t", c.Name, l.exit, l.killed)
	}
}

// mayRestart applies the API's definition of restart policies and rules.
func mayRestart(want *pod.Spec, c *v1.Container, l *notes) bool {
	if l.asked {
		return true
	}
	policy := string(want.Pod.Spec.RestartPolicy)
	if c.RestartPolicy != nil {
		policy = string(*c.RestartPolicy)
		for _, r := range c.RestartPolicyRules { // the generator's rules are about exit code 1
			if l.exit == 1 && r.Action != "" && !l.killed {
				return true
			}
		}
	}
	return policy == "Always" || policy == "OnFailure" && (l.exit != 0 || l.killed)
}

func (m *sim) notesKey(name string) string {
	return fmt.Sprintf("%d/%s", m.have().Sandbox.Instance, name)
}
