package plan_test

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/plan/plantest"
	"github.com/nodectl/nodectl/pkg/pod"
)

// podShape is the pod on which the laws are tested.
type podShape struct {
	policy     string
	inits      int
	sidecars   int // between the init containers
	containers int
	own        string // restartPolicy of the first container, with rule
	rule       string // its action on exit code 1
	hooks      bool
	probes     bool
	resize     bool // in place
	ephemeral  bool
	deadline   int
	image      int // of the first container
	initImage  int
	sideImage  int
	memory     int // of the first container
	grace      int
	hostname   int // an edit of the whole pod
	label      int
	uid        int
}

func (f podShape) spec() *pod.Spec {
	var b strings.Builder
	fmt.Fprintf(&b, "metadata: {name: p, uid: uid-%d, labels: {l: l%d}}\nspec:\n  restartPolicy: %s\n  hostname: h%d\n", f.uid, f.label, f.policy, f.hostname)
	fmt.Fprintf(&b, "  terminationGracePeriodSeconds: %d\n", 10+f.grace)
	if f.deadline > 0 {
		fmt.Fprintf(&b, "  activeDeadlineSeconds: %d\n", f.deadline)
	}
	hooks, startup, live := "", "", ""
	if f.hooks {
		hooks = ", lifecycle: {postStart: {exec: {command: [up]}}, preStop: {exec: {command: [down]}}}"
	}
	if f.probes {
		startup, live = ", startupProbe: {exec: {command: [up]}}", ", livenessProbe: {exec: {command: [ok]}}"
	}
	if f.inits+f.sidecars > 0 {
		b.WriteString("  initContainers:\n")
	}
	for i := range max(f.inits, f.sidecars) {
		if i < f.sidecars {
			fmt.Fprintf(&b, "  - {name: side%d, image: 's:%d', restartPolicy: Always%s%s}\n", i, f.sideImage, hooks, startup)
		}
		if i < f.inits {
			fmt.Fprintf(&b, "  - {name: init%d, image: 'i:%d'}\n", i, f.initImage)
		}
	}
	b.WriteString("  containers:\n")
	for i := range f.containers {
		if i > 0 {
			fmt.Fprintf(&b, "  - {name: c%d, image: c%s}\n", i, hooks)
			continue
		}
		fmt.Fprintf(&b, "  - {name: c0, image: 'c:%d', resources: {limits: {memory: %dMi}}%s%s", f.image, 64+f.memory, hooks, live)
		if !f.resize {
			b.WriteString(", resizePolicy: [{resourceName: memory, restartPolicy: RestartContainer}]")
		}
		if f.own != "" {
			b.WriteString(", restartPolicy: " + f.own)
		}
		if f.rule != "" {
			b.WriteString(", restartPolicyRules: [{action: " + f.rule + ", exitCodes: {operator: In, values: [1]}}]")
		}
		b.WriteString("}\n")
	}
	if f.ephemeral {
		b.WriteString("  ephemeralContainers: [{name: debug, image: sh}]\n")
	}
	s, err := plantest.Spec([]byte(b.String()))
	if err != nil {
		panic(err)
	}
	return s
}

// act makes one random change to the simulated node.
func act(t *rapid.T, m *sim, f, before *podShape) {
	last := *f
	word := rapid.SampledFrom([]string{
		"round", "round", "round", "kill", "kill", "exit", "exit", "sandbox", "image", "initImage", "pod", "label",
		"containers", "remove", "want", "clock", "clockBack", "record", "fail", "network", "unknown", "uid",
		"revert", "revert", "ghost", "hook", "startup", "startup", "liveness", "sideImage", "memory", "grace", "rule",
		"restart", "delete",
	}).Draw(t, "event")
	m.log = append(m.log, word)
	defer func() {
		if *f != last {
			*before = last
		}
	}()
	switch word {
	case "round":
		m.round(-1)
	case "kill":
		m.round(rapid.IntRange(0, 8).Draw(t, "after"))
		m.failures = map[string]pod.Failure{}
	case "exit", "unknown":
		if n := len(m.containers); n > 0 {
			c := m.containers[rapid.IntRange(0, n-1).Draw(t, "which")]
			if word == "exit" {
				m.exit(c, int32(rapid.IntRange(0, 1).Draw(t, "code")))
			} else if c.State == pod.StateRunning {
				c.State = pod.StateUnknown
			}
		}
	case "sandbox":
		if n := len(m.sandboxes); n > 0 {
			b := m.sandboxes[rapid.IntRange(0, n-1).Draw(t, "which")]
			b.Ready = false
			if rapid.Bool().Draw(t, "containersDie") {
				m.killSandbox(b)
			}
		}
	case "hook":
		m.hookFails = func() bool { return true }
		m.round(-1)
		m.hookFails = func() bool { return false }
	case "startup", "liveness":
		if n := len(m.containers); n > 0 {
			c := m.containers[rapid.IntRange(0, n-1).Draw(t, "which")]
			status := pod.ProbeStatus{ContainerID: c.ID, OK: word == "startup" && rapid.IntRange(0, 3).Draw(t, "fails") > 0}
			health := pod.Health{Live: maps.Clone(m.health.Live), Started: maps.Clone(m.health.Started)}
			map[string]map[string]pod.ProbeStatus{"startup": health.Started, "liveness": health.Live}[word][c.Name] = status
			m.health = health
		}
	case "restart":
		if n := len(m.containers); n > 0 {
			m.askRestart(m.containers[rapid.IntRange(0, n-1).Draw(t, "which")], int64(rapid.IntRange(0, 90).Draw(t, "grace")))
		}
	case "delete":
		m.askDelete(int64(rapid.IntRange(0, 90).Draw(t, "grace")))
	case "rule":
		if f.own != "" {
			f.rule = map[string]string{"": "RestartAllContainers"}[f.rule]
		}
	case "sideImage":
		f.sideImage++
	case "memory":
		f.memory++
	case "grace":
		f.grace = rapid.IntRange(0, 60).Draw(t, "grace")
	case "image":
		f.image++
	case "initImage":
		f.initImage++
	case "pod":
		f.hostname++
	case "label":
		f.label++
	case "containers":
		f.containers = rapid.IntRange(1, 3).Draw(t, "containers")
	case "uid":
		f.uid++
	case "remove":
		m.want = nil
		return
	case "want":
		m.want = f.spec()
		return
	case "clock":
		m.now = m.now.Add(time.Duration(rapid.IntRange(0, 700).Draw(t, "seconds")) * time.Second)
	case "clockBack":
		m.lastGrace = math.MaxInt64
		m.now = m.now.Add(-time.Duration(rapid.IntRange(0, 7200).Draw(t, "seconds")) * time.Second)
	case "record":
		// The record is lost, but numbers and exits are known from the containers alone.
		if b := m.have().Sandbox; b != nil && b.Instance == m.rec.Instance && m.rec.Terminal == "" && m.rec.StopSince.IsZero() {
			m.rec = pod.Record{}
			m.forgetNumbers()
		}
	case "fail":
		n := rapid.IntRange(0, 8).Draw(t, "step")
		m.fail = func(plan.Step) bool { n--; return n == -1 }
		m.round(-1)
		m.fail = func(plan.Step) bool { return false }
	case "revert":
		*f = *before
	case "ghost":
		m.ghost()
	case "network":
		m.network = !m.network
	}
	if m.want != nil {
		m.want = f.spec()
	}
}

// TestI1_I3_I4_Laws makes random changes to a simulated node: edits, removals, crashes of
// containers, sandboxes, the agent and the clock, steps that fail. At every moment at most
// one container of each name runs (I1), restart counts rise, and a terminated pod does not
// run again (I4). When the changes stop, the pod reaches the desired state (I3).
//
// Shows: I1, I3, I4
func TestI1_I3_I4_Laws(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := newSim()
		f := podShape{
			policy:     rapid.SampledFrom([]string{"Always", "OnFailure", "Never"}).Draw(t, "policy"),
			inits:      rapid.IntRange(0, 2).Draw(t, "inits"),
			containers: rapid.IntRange(1, 2).Draw(t, "containers"),
			sidecars:   rapid.IntRange(0, 2).Draw(t, "sidecars"),
			own:        rapid.SampledFrom([]string{"", "", "Always", "OnFailure", "Never"}).Draw(t, "own"),
			hooks:      rapid.Bool().Draw(t, "hooks"),
			probes:     rapid.Bool().Draw(t, "probes"),
			resize:     rapid.Bool().Draw(t, "resize"),
			ephemeral:  rapid.Bool().Draw(t, "ephemeral"),
			deadline:   rapid.SampledFrom([]int{0, 0, 0, 900}).Draw(t, "deadline"),
		}
		if f.own != "" {
			f.rule = rapid.SampledFrom([]string{"", "Restart", "RestartAllContainers"}).Draw(t, "rule")
		}
		before := f
		m.want = f.spec()
		m.key = m.want.Key
		m.ends = func(string) *int32 {
			switch code := int32(rapid.IntRange(-3, 1).Draw(t, "ends")); {
			case code < 0:
				return nil
			default:
				return &code
			}
		}
		for range rapid.IntRange(0, 40).Draw(t, "events") {
			act(t, m, &f, &before)
			if len(m.broken) > 0 {
				t.Fatalf("%v\n%s", m.broken, strings.Join(m.log, "\n"))
			}
		}
		m.log = append(m.log, "rest")
		m.network, m.ends = true, func(string) *int32 { return nil }
		p, ok := m.settle()
		if !ok || len(m.broken) > 0 {
			t.Fatalf("settled %t, broken %v\n%s", ok, m.broken, strings.Join(m.log, "\n"))
		}
		if why := m.wrong(p, f); why != "" {
			t.Fatalf("at rest: %s\n%s\n%s", why, m.shape(), strings.Join(m.log, "\n"))
		}
	})
}

// askRestart requests a restart of a container.
func (m *sim) askRestart(c *simContainer, grace int64) {
	have := m.have()
	if m.want == nil || m.rec.Terminal != "" || have.Containers[c.Name].ID != c.ID || c.State == pod.StateCreated || have.Sandbox == nil {
		return
	}
	spec, init := m.want.Container(c.Name)
	if spec == nil || init && !pod.Restartable(spec) || c.Name == "debug" {
		return
	}
	notes := m.rec.ContainerNotes[c.ID]
	notes.Killed, notes.Grace = pod.OnRequest, &grace
	if m.rec.ContainerNotes == nil {
		m.rec.ContainerNotes = map[string]pod.ContainerNotes{}
	}
	m.rec.ContainerNotes[c.ID] = notes
	if l := m.notes[m.notesKey(c.Name)]; l != nil && l.id == c.ID {
		l.asked = true
	}
}

// askDelete requests the deletion of the instance.
func (m *sim) askDelete(grace int64) {
	if m.want == nil || m.rec.Instance == 0 || !m.rec.StopSince.IsZero() {
		return
	}
	m.rec.StopSince, m.rec.StopGrace, m.lastGrace, m.lastEnded = m.now, &grace, math.MaxInt64, ""
}

// byProbe reports whether a container was killed because of a probe.
func byProbe(killed string) bool { return (pod.ContainerNotes{Killed: killed}).ByProbe() }

// ghost makes an older container and an older sandbox run again. A runtime does so if it completes
// a start after the agent has given it up.
func (m *sim) ghost() {
	have := m.have()
	for _, c := range have.Dead {
		m.container(c.ID).State = pod.StateRunning
	}
	for _, b := range have.Older {
		for _, s := range m.sandboxes {
			s.Ready = s.Ready || s.ID == b.ID
		}
	}
}

// forgetNumbers drops the attempt numbers that only the record has: those of earlier containers
// that left nothing in the runtime.
func (m *sim) forgetNumbers() {
	have := m.have()
	for key := range m.started {
		uid, name, _ := strings.Cut(key, "/")
		if _, ok := have.Containers[name]; !ok || uid != have.UID {
			delete(m.started, key)
		}
	}
}

// wrong returns the difference from the desired state at rest, "" for none.
func (m *sim) wrong(p plan.Plan, f podShape) string {
	have := m.have()
	if m.want == nil {
		if !p.Gone || !have.Empty() || len(m.volumes) > 0 {
			return "something is left of a pod that is not desired"
		}
		return ""
	}
	if m.rec.Terminal != "" {
		for _, c := range m.containers {
			if c.State != pod.StateExited {
				return c.Name + " runs in a terminated pod"
			}
		}
		return m.untidy()
	}
	box := have.Sandbox
	switch {
	case box == nil || !box.Ready || box.SandboxHash != m.want.SandboxHash || have.UID != m.want.UID():
		return "no sandbox as desired"
	case !m.volumes[box.Instance] || len(m.volumes) != 1:
		return fmt.Sprintf("volumes %v of instance %d", m.volumes, box.Instance)
	}
	for _, name := range m.order() {
		spec, init := m.want.Container(name)
		if init && !pod.Restartable(spec) {
			continue
		}
		c, ok := have.Containers[name]
		killed := m.rec.ContainerNotes[c.ID].Killed
		done := ok && c.State == pod.StateExited && !mayRestart(m.want, spec, &notes{exit: c.ExitCode, asked: killed == pod.OnRequest, killed: byProbe(killed)})
		if !ok || c.State != pod.StateRunning && !done || c.Hash != m.want.ContainerHash(name) {
			return name + " is not as desired"
		}
		if done {
			continue
		}
		if has := cmp.Or(m.rec.ContainerNotes[c.ID].Resources, c.Resources); has != m.want.Resources(name) {
			return fmt.Sprintf("%s has %s", name, has)
		}
		if l := m.rec.ContainerNotes[c.ID]; l.Killed != "" || l.PostStart != "" {
			return fmt.Sprintf("%s runs as container %v", name, l)
		}
	}
	if _, ok := have.Containers["debug"]; f.ephemeral && !ok {
		return "no ephemeral container"
	}
	return m.untidy()
}

// untidy returns the objects that should have been removed.
func (m *sim) untidy() string {
	have := m.have()
	needed, dead := map[string]bool{}, map[string]bool{}
	for _, c := range have.Containers {
		needed[c.SandboxID] = true
		if c.State == pod.StateExited {
			dead[c.Name] = true
		}
	}
	for _, c := range have.Dead {
		if c.State != pod.StateExited || dead[c.Name] {
			return c.ID + " is not the newest exited container"
		}
		dead[c.Name] = true
	}
	for _, b := range have.Older {
		if b.Ready || !needed[b.ID] {
			return b.ID + " is an older sandbox that no container needs"
		}
	}
	return ""
}
