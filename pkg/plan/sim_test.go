package plan_test

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/plan/plantest"
	"github.com/nodectl/nodectl/pkg/pod"
)

// sim is a node with one pod: a runtime, directories, a record and a worker
// that does what plans say. It breaks the test as soon as a law is broken, by
// way of broken.
type sim struct {
	now  time.Time
	want *pod.Spec
	key  pod.Key

	// The runtime.
	sandboxes  []*simSandbox
	containers []*simContainer
	ids        int

	// The directories: volumes by instance.
	volumes map[int]bool
	// The worker's record, and what it knows only while it lives.
	rec     pod.Record
	streaks map[string]int
	trouble map[string]pod.Trouble
	health  pod.Health
	// lastGrace is the most that a step of the stop that goes on was given.
	lastGrace int64

	network bool
	// ends says how the next started container goes: nil runs on.
	ends func(name string) *int32
	// fail makes a step fail, hookFails a postStart hook.
	fail      func(plan.Step) bool
	hookFails func() bool
	// stopTakes is how long what runs takes to stop.
	stopTakes time.Duration

	// What the laws need: the highest number that ever started, per name, since
	// the pod was last forgotten; the content of each instance that ended, and
	// of the newest instance if that has; the hash that each container of each
	// instance was last started with, and whether that life succeeded.
	started   map[string]int
	ended     map[int]string
	lastEnded string
	lives     map[string]*life
	// turned holds the init containers, by sandbox, that had their turn there, and
	// "" once a regular container was made.
	turned map[string]map[string]bool
	broken []string
	log    []string
}

type life struct {
	id, hash, resources, sandbox string
	exit                         int32
	killed                       bool // by a probe
}

type simSandbox struct {
	pod.Sandbox
	uid string
}

type simContainer struct {
	pod.Container
}

func newSim() *sim {
	return &sim{
		now: plantest.Now, volumes: map[int]bool{}, trouble: map[string]pod.Trouble{}, network: true,
		started: map[string]int{}, ended: map[int]string{}, lives: map[string]*life{},
		streaks: map[string]int{}, turned: map[string]map[string]bool{}, health: newHealth(),
		ends: func(string) *int32 { return nil }, fail: func(plan.Step) bool { return false }, hookFails: func() bool { return false },
	}
}

func newHealth() pod.Health {
	return pod.Health{Live: map[string]pod.Verdict{}, Started: map[string]pod.Verdict{}}
}

func (m *sim) breaks(format string, args ...any) {
	m.broken = append(m.broken, fmt.Sprintf(format, args...))
}

// have shows the runtime as the adapter does: newest first by attempt.
func (m *sim) have() pod.Actual {
	a := pod.Actual{Key: m.key}
	boxes := slices.Clone(m.sandboxes)
	slices.SortStableFunc(boxes, func(x, y *simSandbox) int { return int(y.Attempt) - int(x.Attempt) })
	for i, b := range boxes {
		if i == 0 {
			c := b.Sandbox
			a.Sandbox, a.UID = &c, b.uid
			continue
		}
		a.Older = append(a.Older, b.Sandbox)
	}
	list := slices.Clone(m.containers)
	slices.SortStableFunc(list, func(x, y *simContainer) int { return int(y.Attempt) - int(x.Attempt) })
	for _, c := range list {
		if _, seen := a.Containers[c.Name]; seen {
			a.Dead = append(a.Dead, c.Container)
			continue
		}
		if a.Containers == nil {
			a.Containers = map[string]pod.Container{}
		}
		a.Containers[c.Name] = c.Container
	}
	return a
}

func (m *sim) view() plan.View {
	have := m.have()
	if m.rec.UID == "" {
		m.rec.UID = have.UID
		if m.want != nil {
			m.rec.UID = m.want.UID()
		}
	}
	raise := func(name string, next uint32) {
		if m.rec.Attempts == nil {
			m.rec.Attempts = map[string]uint32{}
		}
		m.rec.Attempts[name] = max(m.rec.Attempts[name], next)
	}
	if have.Sandbox != nil {
		raise("", have.Sandbox.Attempt+1)
		if m.rec.Instance == 0 {
			m.rec.Instance = have.Sandbox.Instance
		}
	}
	for name, c := range have.Containers {
		if c.State == pod.StateCreated {
			raise(name, c.Attempt) // it has not lived: the number is free
		} else {
			raise(name, c.Attempt+1)
		}
	}
	maps.DeleteFunc(m.rec.Lives, func(id string, _ pod.Life) bool { return m.container(id) == nil })
	v := plan.View{
		Want: m.want, Kept: m.rec.Want, Have: have, Instance: m.rec.Instance, Attempts: maps.Clone(m.rec.Attempts),
		Terminal: string(m.rec.Terminal), Trouble: m.trouble, StopSince: m.rec.StopSince,
		Health: m.health, Lives: maps.Clone(m.rec.Lives), Streaks: maps.Clone(m.streaks), StartTime: m.rec.StartTime,
		NetworkReady: m.network, Now: m.now,
	}
	v.VolumesReady = m.volumes[plan.Instance(v)]
	return v
}

// round looks and does up to limit steps of the plan. It returns the plan.
func (m *sim) round(limit int) plan.Plan {
	v := m.view()
	p := plan.Next(v)
	m.checkStops(v, p)
	m.remember(v, p)
	if m.want == nil || v.Have.UID != "" && v.Have.UID != m.want.UID() {
		m.lastEnded = "" // the pod that ended is removed: added again, it runs
	}
	if m.want != nil { // what was dropped from the pod may come back
		maps.DeleteFunc(m.lives, func(key string, _ *life) bool {
			_, name, _ := strings.Cut(key, "/")
			return m.want.ContainerHash(name) == ""
		})
	}
	for i, s := range p.Steps {
		if i == limit {
			m.log = append(m.log, "  (killed)")
			break
		}
		m.log = append(m.log, "  "+s.String())
		if m.fail(s) {
			t := m.trouble[s.Container]
			t.Reason, t.Count, t.Until = "Failed", t.Count+1, m.now.Add(time.Second)
			m.trouble[s.Container] = t
			m.log = append(m.log, "  (failed)")
			break
		}
		if p.RestartingAll && s.Action == plan.RemoveContainer {
			delete(m.lives, m.lifeKey(s.Container)) // it may run again, whatever its policy
			delete(m.turned, m.have().Sandbox.ID)
		}
		if !m.do(s) {
			m.log = append(m.log, "  (failed)")
			break
		}
	}
	return p
}

func (m *sim) remember(v plan.View, p plan.Plan) {
	if v.Want != nil && plan.Instance(v) == v.Instance {
		m.rec.Want = v.Want
	}
	if phase := plan.Outcome(v); phase != "" {
		m.rec.Terminal = v1.PodPhase(phase)
		m.ended[plan.Instance(v)] = content(v.Want)
		m.lastEnded = content(v.Want)
	}
	if p.Ended.Phase != string(m.rec.Terminal) && p.Ended != (plan.Ended{}) {
		m.breaks("ended %v, recorded %s", p.Ended, m.rec.Terminal)
	}
	if p.Stopping && m.rec.StopSince.IsZero() {
		m.rec.StopSince, m.lastGrace = m.now, math.MaxInt64
	}
	if m.rec.StartTime.IsZero() {
		m.rec.StartTime = m.now
	}
}

// content is what brings a pod back that has ended.
func content(s *pod.Spec) string {
	text := s.UID() + s.SandboxHash
	for _, name := range slices.Sorted(maps.Keys(s.ContainerHashes)) {
		text += " " + name + "=" + s.ContainerHashes[name] + s.Resources(name)
	}
	return text
}

// do does a step, and reports whether what it asks for came about.
func (m *sim) do(s plan.Step) bool {
	switch s.Action {
	case plan.PutVolumes, plan.RunSandbox:
		m.startInstance(s.Instance)
		if s.Action == plan.PutVolumes {
			m.volumes[s.Instance] = true
			return true
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
		m.live(c.ID, func(l *pod.Life) { l.Resources = m.want.Resources(c.Name) })
	case plan.StopContainer:
		m.stop(s)
	case plan.RemoveContainer:
		if s.Streak > 0 {
			m.streaks[s.Container] = s.Streak
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
	case plan.TakeVolumes:
		delete(m.volumes, s.Instance)
	case plan.Forget:
		if !m.have().Empty() || len(m.volumes) > 0 {
			m.breaks("forgotten while something is left: %v %v", m.have(), m.volumes)
		}
		m.rec, m.started, m.ended = pod.Record{}, map[string]int{}, map[int]string{}
		m.lastEnded, m.lives, m.streaks = "", map[string]*life{}, map[string]int{}
	}
	return true
}

// live changes what the record says of a container's life.
func (m *sim) live(id string, change func(*pod.Life)) {
	if m.rec.Lives == nil {
		m.rec.Lives = map[string]pod.Life{}
	}
	l := m.rec.Lives[id]
	change(&l)
	m.rec.Lives[id] = l
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
	m.live(c.ID, func(l *pod.Life) {
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
		if m.rec.Lives[c.ID].PreStop || c.State != pod.StateRunning {
			m.breaks("preStop hook of %s again, or of what does not run", c.ID)
		}
		m.live(c.ID, func(l *pod.Life) { l.PreStop = true })
	}
	if s.Killed != "" {
		m.live(c.ID, func(l *pod.Life) { l.Killed = s.Killed })
	}
	m.now = m.now.Add(m.stopTakes)
	m.exit(c, 137)
	if l := m.lives[m.lifeKey(c.Name)]; l != nil && l.id == c.ID {
		l.killed = s.Killed != "" && s.Killed != pod.HookFailed
	}
}

func (m *sim) startInstance(instance int) {
	if m.rec.Instance == instance && m.rec.Want != nil && m.rec.UID == m.want.UID() {
		return
	}
	if m.rec.UID != m.want.UID() {
		m.rec.Attempts = nil
		m.started = map[string]int{} // another pod: its numbers begin anew
	}
	m.rec.Want, m.rec.UID, m.rec.Instance = m.want, m.want.UID(), instance
	m.rec.StopSince, m.rec.Terminal, m.rec.StartTime, m.streaks = time.Time{}, "", m.now, map[string]int{}
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
			m.live(id, func(l *pod.Life) { l.PostStart = pod.HookDue })
		}
	}
	delete(m.streaks, s.Container)
	m.containers = append(m.containers, &simContainer{pod.Container{
		ID: id, Name: s.Container, SandboxID: box.ID, State: pod.StateCreated,
		Attempt: s.Attempt, Restarts: int(s.Attempt), CrashStreak: s.Streak,
		Hash: m.want.ContainerHash(s.Container), CreatedAt: m.now,
		Resources: m.want.Resources(s.Container), PreStop: preStop,
	}})
}

// start checks the laws: one life at a time (I1), numbers rise, nothing that
// has ended runs again (I4).
func (m *sim) start(s plan.Step) {
	var c *simContainer
	for _, x := range m.containers {
		if s.ID == x.ID || s.ID == "" && x.Name == s.Container && x.State == pod.StateCreated {
			c = x
		}
		if x.Name == s.Container && (x.State == pod.StateRunning || x.State == pod.StateUnknown) {
			m.breaks("second life of %s", x.Name)
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
	for _, l := range m.lives {
		if l.id == c.ID {
			l.exit = code
		}
	}
	if m.want == nil {
		return
	}
	if spec, init := m.want.Container(c.Name); init && !pod.Restartable(spec) && code == 0 {
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

// settle goes on until nothing is left to do, moving the clock where the plan
// waits; it gives up after a number of rounds.
func (m *sim) settle() (plan.Plan, bool) {
	for range 80 {
		p := m.round(-1)
		switch {
		case p.Gone || p.Settled && p.WaitFor == "":
			return p, true
		case len(p.Steps) == 0 && p.Wait > 0:
			m.now = m.now.Add(p.Wait)
		case len(p.Steps) == 0: // init containers end well, probes pass
			m.health = newHealth()
			for _, c := range m.containers {
				if strings.HasPrefix(c.Name, "init") {
					m.exit(c, 0)
				}
				m.health.Started[c.Name] = pod.Verdict{ContainerID: c.ID, OK: c.State == pod.StateRunning}
			}
			m.now = m.now.Add(time.Second)
		}
	}
	return plan.Plan{}, false
}

// shape is the end state in words that do not depend on the way there.
func (m *sim) shape() string {
	var b strings.Builder
	for _, s := range m.sandboxes {
		if s.Ready {
			fmt.Fprintf(&b, "sandbox ready current=%t\n", m.want != nil && s.SandboxHash == m.want.SandboxHash)
		}
	}
	have := m.have()
	for _, name := range slices.Sorted(maps.Keys(have.Containers)) {
		c := have.Containers[name]
		if m.want != nil && strings.HasPrefix(name, "init") {
			continue // records of init containers come and go
		}
		fmt.Fprintf(&b, "%s %s exit=%d current=%t\n", name, c.State, c.ExitCode, m.want != nil && c.Hash == m.want.ContainerHash(name))
	}
	fmt.Fprintf(&b, "volumes=%d terminal=%s", len(m.volumes), m.rec.Terminal)
	return b.String()
}
