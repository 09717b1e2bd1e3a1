package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podview"
)

// Foresee returns the steps, in order, that the agent does for v.Want if nothing fails or delays
// them. It assumes that each step and hook succeeds, that init containers complete and the other
// containers continue, and that probes pass. It assumes that the spec does not change, that the
// network works, and that neither an earlier failure nor another pod delays a step. Foresee calls
// Next repeatedly on a simulated node, and does the steps there.
func Foresee(v View) []Step {
	sim := newSimulation(v)
	var all []Step
	for range maxRounds {
		p := Next(sim.v)
		sim.v.Record.RestartingAll = p.RestartingAll
		if len(p.Steps) == 0 {
			if !sim.completeInit() {
				break
			}
			continue
		}
		if p.Stopping && sim.v.Record.StopSince.IsZero() {
			sim.v.Record.StopSince = sim.v.Now
		}
		for _, s := range p.Steps {
			sim.do(s)
		}
		all = append(all, p.Steps...)
	}
	return all
}

// maxRounds ends a simulation that makes no progress. Any other simulation takes a few rounds, and
// one more for each init container.
const maxRounds = 200

// RestartedByEdit returns the parts that steps of Foresee restart because of an edit: the whole
// pod, or some containers, sorted. have is the pod before the steps, and instance the recorded
// instance, 0 for none. A restart after an exit does not count.
func RestartedByEdit(have pod.Actual, instance int, steps []Step) (whole bool, containers []string) {
	for _, s := range steps {
		switch {
		case s.Action == RunSandbox && instance > 0 && s.Instance > instance:
			return true, nil
		case s.Action == RunSandbox && !have.Empty() && have.UID != "" && instance == 0:
			return true, nil
		case s.Action == CreateContainer && s.Edited && !slices.Contains(containers, s.Container):
			containers = append(containers, s.Container)
		}
	}
	slices.Sort(containers)
	return false, containers
}

// Resized returns the containers, sorted, that steps resize while they run.
func Resized(steps []Step) (containers []string) {
	for _, s := range steps {
		if s.Action == UpdateContainer {
			containers = append(containers, s.Container)
		}
	}
	slices.Sort(containers)
	return slices.Compact(containers)
}

// simulation is a simulated node on which everything works, with the record of the pod.
type simulation struct {
	v   View
	ids int // how many IDs it has assigned
}

// newSimulation returns the node that v describes, without its blockers. It copies the parts that
// the simulation changes, so that the caller's View stays unchanged.
func newSimulation(v View) *simulation {
	v.Blockers = Blockers{}
	v.Health = pod.Health{Started: make(map[string]pod.ProbeStatus)}
	v.Have.Older = slices.Clone(v.Have.Older)
	v.Have.Dead = slices.Clone(v.Have.Dead)
	if v.Have.Sandbox != nil {
		b := *v.Have.Sandbox
		v.Have.Sandbox = &b
	}
	containers := make(map[string]pod.Container, len(v.Have.Containers))
	for name, c := range v.Have.Containers {
		c.CrashStreak = 0 // no back-off delays a step
		v.Health.Started[name] = pod.ProbeStatus{ContainerID: c.ID, OK: true}
		containers[name] = c
	}
	v.Have.Containers = containers
	attempts := make(map[string]uint32, len(v.Record.Attempts))
	maps.Copy(attempts, v.Record.Attempts)
	v.Record.Attempts = attempts
	v.Record.ContainerNotes = maps.Clone(v.Record.ContainerNotes)
	if v.Record.ContainerNotes == nil {
		v.Record.ContainerNotes = make(map[string]pod.ContainerNotes)
	}
	v.Record.Streaks = nil
	if e := v.Record.Evicted(); e != nil && e.Condition != "" && v.Want != nil && !v.Want.Origin.FromAPI() {
		over := *e // a forecast describes the node after the pressure has ended
		over.Over = true
		v.Record.Eviction = &over
	}
	return &simulation{v: v}
}

// do applies the effect of a step.
func (sim *simulation) do(s Step) {
	have := &sim.v.Have
	switch s.Action {
	case SetUpVolumes:
		sim.begin(s.Instance)
		sim.v.VolumesReady, sim.v.VolumesStale = true, false
	case RunSandbox:
		sim.begin(s.Instance)
		if have.Sandbox != nil {
			have.Older = slices.Insert(have.Older, 0, *have.Sandbox)
		}
		want := sim.v.Want
		have.UID = want.UID()
		have.Sandbox = &pod.Sandbox{ID: sim.id("sandbox"), Ready: true, Attempt: s.Attempt, Instance: s.Instance, SandboxHash: want.SandboxHash, SpecHash: want.Hash, Grace: -1}
	case CreateContainer:
		if old, ok := have.Containers[s.Container]; ok {
			sim.addOlder(old)
		}
		have.Containers[s.Container] = pod.Container{
			ID: sim.id(s.Container), Name: s.Container, SandboxID: have.Sandbox.ID, State: pod.StateCreated,
			Attempt: s.Attempt, Restarts: int(s.Attempt), Hash: sim.v.Want.ContainerHash(s.Container), CrashStreak: s.Streak, CreatedAt: sim.v.Now,
			Resources: sim.v.Want.Resources(s.Container),
		}
	case StartContainer:
		c := have.Containers[s.Container]
		c.State, c.StartedAt = pod.StateRunning, sim.v.Now
		have.Containers[s.Container] = c
		sim.v.Health.Started[s.Container] = pod.ProbeStatus{ContainerID: c.ID, OK: true}
	case RunHook, UpdateContainer:
		id := cmp.Or(s.ID, have.Containers[s.Container].ID)
		notes := sim.v.Record.ContainerNotes[id]
		if s.Action == RunHook {
			notes.PostStart = ""
		} else {
			notes.Resources = sim.v.Want.Resources(s.Container)
		}
		sim.v.Record.ContainerNotes[id] = notes
	case StopContainer:
		sim.end(func(c pod.Container) bool { return c.ID == s.ID })
	case RemoveContainer:
		sim.remove(func(c pod.Container) bool { return c.ID == s.ID })
	case StopSandbox:
		sim.eachSandbox(func(b *pod.Sandbox) { b.Ready = b.Ready && b.ID != s.ID })
		sim.end(func(c pod.Container) bool { return c.SandboxID == s.ID })
	case RemoveSandbox:
		sim.eachSandbox(func(b *pod.Sandbox) { sim.v.Record.Attempts[""] = max(sim.v.Record.Attempts[""], b.Attempt+1) })
		sim.remove(func(c pod.Container) bool { return c.SandboxID == s.ID })
		have.Older = slices.DeleteFunc(have.Older, func(b pod.Sandbox) bool { return b.ID == s.ID })
		if have.Sandbox != nil && have.Sandbox.ID == s.ID {
			have.Sandbox = nil
		}
		if have.Empty() {
			have.UID = ""
		}
	case TearDownVolumes:
		sim.v.VolumesReady = sim.v.VolumesReady && s.Instance != sim.v.Record.Instance
		sim.v.VolumesLeft = false
	case Forget:
		sim.v.Record = pod.Record{Key: sim.v.Record.Key, Attempts: make(map[string]uint32), ContainerNotes: make(map[string]pod.ContainerNotes)}
	}
}

// addOlder adds a container to the older ones, which are sorted by attempt, the newest first, as a
// runtime shows them.
func (sim *simulation) addOlder(c pod.Container) {
	dead := &sim.v.Have.Dead
	*dead = append(*dead, c)
	slices.SortStableFunc(*dead, func(a, b pod.Container) int {
		return cmp.Or(cmp.Compare(b.Attempt, a.Attempt), b.CreatedAt.Compare(a.CreatedAt), cmp.Compare(b.ID, a.ID))
	})
}

// begin records that an instance starts.
func (sim *simulation) begin(instance int) {
	if sim.v.Record.Begin(sim.v.Want, instance, sim.v.Now) {
		sim.v.VolumesReady = false
	}
}

func (sim *simulation) id(name string) string {
	sim.ids++
	return fmt.Sprintf("foreseen-%s-%d", name, sim.ids)
}

// end makes containers exit with 0: no decision depends on the exit code of a stopped container.
func (sim *simulation) end(which func(pod.Container) bool) {
	ended := func(c pod.Container) pod.Container {
		if which(c) && c.State != pod.StateExited {
			c.State, c.FinishedAt = pod.StateExited, sim.v.Now
		}
		return c
	}
	for name, c := range sim.v.Have.Containers {
		sim.v.Have.Containers[name] = ended(c)
	}
	for i, c := range sim.v.Have.Dead {
		sim.v.Have.Dead[i] = ended(c)
	}
}

// remove removes containers. If it removes the newest one of a name, the one before it becomes
// the newest.
func (sim *simulation) remove(which func(pod.Container) bool) {
	have := &sim.v.Have
	for _, c := range append(podview.NewestContainers(*have), have.Dead...) {
		if which(c) && c.State != pod.StateCreated {
			sim.v.Record.Attempts[c.Name] = max(sim.v.Record.Attempts[c.Name], c.Attempt+1)
		}
	}
	have.Dead = slices.DeleteFunc(have.Dead, which)
	for name, c := range have.Containers {
		if !which(c) {
			continue
		}
		delete(have.Containers, name)
		if i := slices.IndexFunc(have.Dead, func(d pod.Container) bool { return d.Name == name }); i >= 0 {
			have.Containers[name] = have.Dead[i]
			have.Dead = slices.Delete(have.Dead, i, i+1)
		}
	}
}

func (sim *simulation) eachSandbox(f func(*pod.Sandbox)) {
	if sim.v.Have.Sandbox != nil {
		f(sim.v.Have.Sandbox)
	}
	for i := range sim.v.Have.Older {
		f(&sim.v.Have.Older[i])
	}
}

// completeInit makes the running init container that is no sidecar exit with 0. It returns false
// if none runs.
func (sim *simulation) completeInit() bool {
	if sim.v.Want == nil {
		return false
	}
	for i := range sim.v.Want.Pod.Spec.InitContainers {
		init := &sim.v.Want.Pod.Spec.InitContainers[i]
		c, ok := sim.v.Have.Containers[init.Name]
		if ok && !pod.Restartable(init) && c.State == pod.StateRunning {
			sim.end(func(o pod.Container) bool { return o.ID == c.ID })
			return true
		}
	}
	return false
}
