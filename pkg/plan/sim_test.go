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

// sim is a node with one pod: a runtime, directories, a record and a worker that does the
// steps of plans. It notes each broken law in broken; the tests fail if that is not empty.
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
	// The worker's record, and its state in memory.
	rec      pod.Record
	failures map[string]pod.Failure
	health   pod.Health
	// lastGrace is the largest grace of a step of the current stop.
	lastGrace int64

	network bool
	// ends says how the next started container exits; nil: it continues to run.
	ends func(name string) *int32
	// fail makes a step fail, hookFails a postStart hook.
	fail      func(plan.Step) bool
	hookFails func() bool
	// stopTakes is how long a running container takes to stop.
	stopTakes time.Duration
	stopsWell bool // a stopped container exits with 0

	// The history that the laws need, since the pod was last forgotten.
	started   map[string]int    // the highest restart count that started, by UID and container name
	ended     map[int]string    // the content of each terminated instance
	lastEnded string            // the content of the newest instance, if it has terminated
	notes     map[string]*notes // the newest container, by instance and name
	// turned has, for each sandbox, the init containers that completed or started there; and ""
	// once a regular container was created.
	turned map[string]map[string]bool
	broken []string
	log    []string
}

type notes struct {
	id, hash, resources, sandbox string
	exit                         int32
	killed                       bool // by a probe
	asked                        bool // a restart of it was requested
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
		now: plantest.Now, volumes: map[int]bool{}, failures: map[string]pod.Failure{}, network: true,
		started: map[string]int{}, ended: map[int]string{}, notes: map[string]*notes{},
		turned: map[string]map[string]bool{}, health: newHealth(),
		ends: func(string) *int32 { return nil }, fail: func(plan.Step) bool { return false }, hookFails: func() bool { return false },
	}
}

func newHealth() pod.Health {
	return pod.Health{Live: map[string]pod.ProbeStatus{}, Started: map[string]pod.ProbeStatus{}}
}

func (m *sim) breaks(format string, args ...any) {
	m.broken = append(m.broken, fmt.Sprintf(format, args...))
}

// have shows the runtime as the CRI adapter does: newest first by attempt.
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
	m.rec.AdoptNewerInstance(have)
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
	}
	for name, c := range have.Containers {
		if c.State == pod.StateCreated {
			raise(name, c.Attempt) // it has not been started: the number is free
		} else {
			raise(name, c.Attempt+1)
		}
	}
	maps.DeleteFunc(m.rec.ContainerNotes, func(id string, _ pod.ContainerNotes) bool { return m.container(id) == nil })
	rec := m.rec
	rec.Attempts, rec.ContainerNotes, rec.Streaks = maps.Clone(rec.Attempts), maps.Clone(rec.ContainerNotes), maps.Clone(rec.Streaks)
	volumes := func(_ *pod.Spec, instance int) (put, current bool, until time.Time) {
		return m.volumes[instance], true, time.Time{}
	}
	v := plan.NewView(m.want, have, rec, "", volumes, m.now)
	v.Failures, v.NoNetwork, v.Health = m.failures, !m.network, m.health
	return v
}

// round reads and does up to limit steps of the plan. It returns the plan.
func (m *sim) round(limit int) plan.Plan {
	v := m.view()
	p := plan.Next(v)
	m.checkStops(v, p)
	m.remember(v, p)
	if m.want == nil || v.Have.UID != "" && v.Have.UID != m.want.UID() {
		m.lastEnded = "" // the terminated pod is removed: added again, it runs
	}
	if m.want != nil { // a container that was dropped from the pod may come back
		maps.DeleteFunc(m.notes, func(key string, _ *notes) bool {
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
			t := m.failures[s.Container]
			t.Reason, t.Count, t.Until = "Failed", t.Count+1, m.now.Add(time.Second)
			m.failures[s.Container] = t
			m.log = append(m.log, "  (failed)")
			break
		}
		if p.RestartingAll && s.Action == plan.RemoveContainer {
			delete(m.notes, m.notesKey(s.Container)) // it may run again, whatever its policy
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
	if v.Want != nil && plan.Instance(v) == v.Record.Instance {
		m.rec.Want = v.Want
	}
	if phase := p.End.Phase; phase != "" {
		if m.rec.Terminal != "" && phase != string(m.rec.Terminal) {
			m.breaks("ended %v, recorded %s", p.End, m.rec.Terminal)
		}
		m.rec.Terminal = v1.PodPhase(phase)
		m.ended[plan.Instance(v)] = content(v.Want)
		m.lastEnded = content(v.Want)
	}
	m.rec.RestartingAll = p.RestartingAll
	if p.Stopping && m.rec.StopSince.IsZero() {
		m.rec.StopSince, m.lastGrace = m.now, math.MaxInt64
	}
	if m.rec.StartTime.IsZero() {
		m.rec.StartTime = m.now
	}
}

// content has the fields whose edit starts a terminated pod again.
func content(s *pod.Spec) string {
	text := s.UID() + s.SandboxHash
	for _, name := range slices.Sorted(maps.Keys(s.ContainerHashes)) {
		text += " " + name + "=" + s.ContainerHashes[name] + s.Resources(name)
	}
	return text
}

// settle repeats rounds until nothing is left to do, and advances the clock where the plan
// waits; it gives up after a number of rounds.
func (m *sim) settle() (plan.Plan, bool) {
	for range 80 {
		p := m.round(-1)
		switch {
		case p.Gone || p.Settled && p.WaitFor == "":
			return p, true
		case len(p.Steps) == 0 && p.Wait > 0:
			m.now = m.now.Add(p.Wait)
		case len(p.Steps) == 0: // init containers exit with 0, probes pass
			m.health = newHealth()
			for _, c := range m.containers {
				if strings.HasPrefix(c.Name, "init") {
					m.exit(c, 0)
				}
				m.health.Started[c.Name] = pod.ProbeStatus{ContainerID: c.ID, OK: c.State == pod.StateRunning}
			}
			m.now = m.now.Add(time.Second)
		}
	}
	return plan.Plan{}, false
}

// shape is the end state in a form that does not depend on the way there.
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
			continue // init containers may exist or not
		}
		fmt.Fprintf(&b, "%s %s exit=%d current=%t\n", name, c.State, c.ExitCode, m.want != nil && c.Hash == m.want.ContainerHash(name))
	}
	fmt.Fprintf(&b, "volumes=%d terminal=%s", len(m.volumes), m.rec.Terminal)
	return b.String()
}
