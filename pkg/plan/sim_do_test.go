package plan_test

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
)

// do does a step, and reports whether it succeeded.
func (m *sim) do(s plan.Step) bool {
	switch s.Action {
	case plan.SetUpVolumes, plan.RunSandbox:
		m.startInstance(s.Instance)
		if s.Action == plan.SetUpVolumes {
			m.volumes[s.Instance] = true
			return true
		}
		if !m.network {
			m.breaks("sandbox of instance %d while the network is down", s.Instance)
		}
		if !m.volumes[s.Instance] {
			m.breaks("sandbox of instance %d before its volumes", s.Instance)
		}
		for _, b := range m.sandboxes {
			if b.uid == m.want.UID() && b.Attempt >= s.Attempt {
				m.breaks("sandbox attempt %d after %d", s.Attempt, b.Attempt)
			}
		}
		m.ids++
		m.sandboxes = append(m.sandboxes, &simSandbox{uid: m.want.UID(), Sandbox: pod.Sandbox{
			ID: fmt.Sprintf("s%d", m.ids), Attempt: s.Attempt, Ready: true, Instance: s.Instance,
			SandboxHash: m.want.SandboxHash, Grace: 30, IPs: []string{"10.88.0.2"}, CreatedAt: m.now,
		}})
	case plan.PullImage:
	case plan.CreateContainer:
		m.create(s)
	case plan.StartContainer:
		m.start(s)
	case plan.RunHook:
		return m.runHook(s)
	case plan.UpdateContainer:
		c := m.container(s.ID)
		if c == nil || c.State != pod.StateRunning {
			return false
		}
		m.setNotes(c.ID, func(l *pod.ContainerNotes) { l.Resources = m.want.Resources(c.Name) })
	case plan.StopContainer:
		m.stop(s)
	case plan.RemoveContainer:
		if s.Streak > 0 {
			if m.rec.Streaks == nil {
				m.rec.Streaks = map[string]int{}
			}
			m.rec.Streaks[s.Container] = s.Streak
		}
		m.containers = slices.DeleteFunc(m.containers, func(c *simContainer) bool {
			if c.ID == s.ID && (c.State == pod.StateRunning || c.State == pod.StateUnknown) {
				m.breaks("%s removed while it may run", c.ID)
			}
			return c.ID == s.ID
		})
	case plan.StopSandbox:
		for _, b := range m.sandboxes {
			if b.ID == s.ID {
				m.killSandbox(b)
			}
		}
	case plan.RemoveSandbox:
		m.sandboxes = slices.DeleteFunc(m.sandboxes, func(b *simSandbox) bool { return b.ID == s.ID })
		m.containers = slices.DeleteFunc(m.containers, func(c *simContainer) bool { return c.SandboxID == s.ID })
	case plan.TearDownVolumes:
		delete(m.volumes, s.Instance)
	case plan.Forget:
		if !m.have().Empty() || len(m.volumes) > 0 {
			m.breaks("forgotten while something is left: %v %v", m.have(), m.volumes)
		}
		m.rec, m.started, m.ended = pod.Record{}, map[string]int{}, map[int]string{}
		m.lastEnded, m.notes = "", map[string]*notes{}
	}
	return true
}

// setNotes changes the recorded notes of a container.
func (m *sim) setNotes(id string, change func(*pod.ContainerNotes)) {
	if m.rec.ContainerNotes == nil {
		m.rec.ContainerNotes = map[string]pod.ContainerNotes{}
	}
	l := m.rec.ContainerNotes[id]
	change(&l)
	m.rec.ContainerNotes[id] = l
}

func (m *sim) runHook(s plan.Step) bool {
	var c *simContainer
	for _, x := range m.containers {
		if x.ID == s.ID || s.ID == "" && x.Name == s.Container && (c == nil || x.Attempt >= c.Attempt) {
			c = x
		}
	}
	if c == nil {
		m.breaks("hook of %s, which was not created", s.Container)
		return false
	}
	ok := c.State == pod.StateRunning && !m.hookFails()
	m.setNotes(c.ID, func(l *pod.ContainerNotes) {
		if l.PostStart = ""; !ok {
			l.PostStart = pod.HookFailed
		}
	})
	return ok
}

func (m *sim) stop(s plan.Step) {
	c := m.container(s.ID)
	if c == nil || c.State == pod.StateCreated {
		return
	}
	if s.Hook != nil {
		if m.rec.ContainerNotes[c.ID].PreStop || c.State != pod.StateRunning {
			m.breaks("preStop hook of %s again, or of what does not run", c.ID)
		}
		m.setNotes(c.ID, func(l *pod.ContainerNotes) { l.PreStop = true })
	}
	if s.Killed != "" {
		m.setNotes(c.ID, func(l *pod.ContainerNotes) { l.Killed = s.Killed })
	}
	m.now = m.now.Add(m.stopTakes)
	code := int32(137)
	if m.stopsWell {
		code = 0
	}
	m.exit(c, code)
	if l := m.notes[m.notesKey(c.Name)]; l != nil && l.id == c.ID {
		l.killed = byProbe(s.Killed)
	}
}

func (m *sim) startInstance(instance int) {
	uid := m.rec.UID
	if !m.rec.Begin(m.want, instance, m.now) {
		return
	}
	if uid != m.want.UID() {
		m.started = map[string]int{} // another pod: its numbers start at 0
	}
	if m.lastEnded == content(m.want) {
		m.breaks("an instance starts although the pod had ended with this content")
	}
	m.lastEnded = ""
}

func (m *sim) container(id string) *simContainer {
	for _, c := range m.containers {
		if c.ID == id {
			return c
		}
	}
	return nil
}

func (m *sim) create(s plan.Step) {
	box := m.have().Sandbox
	if box == nil || !box.Ready {
		m.breaks("%s created without a ready sandbox", s.Container)
		return
	}
	for _, c := range m.containers {
		if c.Name == s.Container && c.Attempt == s.Attempt {
			m.breaks("name of %s attempt %d is taken", c.Name, c.Attempt)
		}
	}
	m.checkHooks(s.Container)
	m.checkTurn(s.Container, box.ID)
	m.ids++
	id := fmt.Sprintf("c%d", m.ids)
	c, _ := m.want.Container(s.Container)
	var preStop *v1.LifecycleHandler
	if h := c.Lifecycle; h != nil {
		preStop = h.PreStop
		if h.PostStart != nil {
			m.setNotes(id, func(l *pod.ContainerNotes) { l.PostStart = pod.HookDue })
		}
	}
	delete(m.rec.Streaks, s.Container)
	m.containers = append(m.containers, &simContainer{pod.Container{
		ID: id, Name: s.Container, SandboxID: box.ID, State: pod.StateCreated,
		Attempt: s.Attempt, Restarts: int(s.Attempt), CrashStreak: s.Streak,
		Hash: m.want.ContainerHash(s.Container), CreatedAt: m.now,
		Resources: m.want.Resources(s.Container), PreStop: preStop,
	}})
}

// start checks the laws: one running container at a time (I1), numbers rise, no terminated
// pod runs again (I4).
func (m *sim) start(s plan.Step) {
	var c *simContainer
	for _, x := range m.containers {
		if s.ID == x.ID || s.ID == "" && x.Name == s.Container && x.State == pod.StateCreated {
			c = x
		}
		if x.Name == s.Container && (x.State == pod.StateRunning || x.State == pod.StateUnknown) {
			m.breaks("second container of %s", x.Name)
		}
	}
	if c == nil || c.State != pod.StateCreated {
		m.breaks("start of %s %s, which was not created", s.Container, s.ID)
		return
	}
	key := m.want.UID() + "/" + c.Name
	if last, ok := m.started[key]; ok && c.Restarts <= last {
		m.breaks("restart count of %s fell from %d to %d", c.Name, last, c.Restarts)
	}
	m.started[key] = c.Restarts
	if m.ended[m.have().Sandbox.Instance] == content(m.want) {
		m.breaks("%s started in an instance that had ended", c.Name)
	}
	m.checkPolicy(c)
	c.State, c.StartedAt = pod.StateRunning, m.now
	if code := m.ends(c.Name); code != nil {
		m.exit(c, *code)
	}
}

func (m *sim) exit(c *simContainer, code int32) {
	if c.State != pod.StateRunning && c.State != pod.StateUnknown {
		return
	}
	c.State, c.ExitCode, c.FinishedAt = pod.StateExited, code, m.now
	for _, l := range m.notes {
		if l.id == c.ID {
			l.exit = code
		}
	}
	made := m.want
	if made == nil {
		made = m.rec.Want
	}
	if made == nil {
		return
	}
	if spec, init := made.Container(c.Name); init && !pod.Restartable(spec) && code == 0 {
		if m.turned[c.SandboxID] == nil {
			m.turned[c.SandboxID] = map[string]bool{}
		}
		m.turned[c.SandboxID][c.Name] = true
	}
}

func (m *sim) killSandbox(b *simSandbox) {
	b.Ready = false
	for _, c := range m.containers {
		if c.SandboxID == b.ID {
			m.exit(c, 137)
		}
	}
}
