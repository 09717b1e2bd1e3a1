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
// them: each step and hook succeeds, init containers complete, the other containers run on,
// probes pass, the spec does not change, the network works, and neither an earlier failure nor
// another pod delays a step. It calls Next repeatedly on a simulated node, and does the steps
// there.
func Foresee(v View) []Step {
	w := newWorld(v)
	var all []Step
	for range maxRounds {
		p := Next(w.v)
		w.v.Record.RestartingAll = p.RestartingAll
		if len(p.Steps) == 0 {
			if !w.completeInit() {
				break
			}
			continue
		}
		if p.Stopping && w.v.Record.StopSince.IsZero() {
			w.v.Record.StopSince = w.v.Now
		}
		for _, s := range p.Steps {
			w.do(s)
		}
		all = append(all, p.Steps...)
	}
	return all
}

// maxRounds ends a simulation that makes no progress. Others take one round for each init
// container and a few more.
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

// world is a simulated node on which everything works, with the record of the pod.
type world struct {
	v    View
	made int // IDs assigned
}

// newWorld returns the world that v describes, without its hindrances. It copies the parts that the
// simulation changes, so that the caller's View stays unchanged.
func newWorld(v View) *world {
	v.Hindrances = Hindrances{}
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
		over := *e // the forecast is for the time after the pressure
		over.Over = true
		v.Record.Eviction = &over
	}
	return &world{v: v}
}

// do applies the effect of a step.
func (w *world) do(s Step) {
	have := &w.v.Have
	switch s.Action {
	case PutVolumes:
		w.begin(s.Instance)
		w.v.VolumesReady, w.v.VolumesStale = true, false
	case RunSandbox:
		w.begin(s.Instance)
		if have.Sandbox != nil {
			have.Older = slices.Insert(have.Older, 0, *have.Sandbox)
		}
		want := w.v.Want
		have.UID = want.UID()
		have.Sandbox = &pod.Sandbox{ID: w.id("sandbox"), Ready: true, Attempt: s.Attempt, Instance: s.Instance, SandboxHash: want.SandboxHash, SpecHash: want.Hash, Grace: -1}
	case CreateContainer:
		if old, ok := have.Containers[s.Container]; ok {
			w.addOlder(old)
		}
		have.Containers[s.Container] = pod.Container{
			ID: w.id(s.Container), Name: s.Container, SandboxID: have.Sandbox.ID, State: pod.StateCreated,
			Attempt: s.Attempt, Restarts: int(s.Attempt), Hash: w.v.Want.ContainerHash(s.Container), CrashStreak: s.Streak, CreatedAt: w.v.Now,
			Resources: w.v.Want.Resources(s.Container),
		}
	case StartContainer:
		c := have.Containers[s.Container]
		c.State, c.StartedAt = pod.StateRunning, w.v.Now
		have.Containers[s.Container] = c
		w.v.Health.Started[s.Container] = pod.ProbeStatus{ContainerID: c.ID, OK: true}
	case RunHook, UpdateContainer:
		id := cmp.Or(s.ID, have.Containers[s.Container].ID)
		notes := w.v.Record.ContainerNotes[id]
		if s.Action == RunHook {
			notes.PostStart = ""
		} else {
			notes.Resources = w.v.Want.Resources(s.Container)
		}
		w.v.Record.ContainerNotes[id] = notes
	case StopContainer:
		w.end(func(c pod.Container) bool { return c.ID == s.ID })
	case RemoveContainer:
		w.remove(func(c pod.Container) bool { return c.ID == s.ID })
	case StopSandbox:
		w.eachSandbox(func(b *pod.Sandbox) { b.Ready = b.Ready && b.ID != s.ID })
		w.end(func(c pod.Container) bool { return c.SandboxID == s.ID })
	case RemoveSandbox:
		w.eachSandbox(func(b *pod.Sandbox) { w.v.Record.Attempts[""] = max(w.v.Record.Attempts[""], b.Attempt+1) })
		w.remove(func(c pod.Container) bool { return c.SandboxID == s.ID })
		have.Older = slices.DeleteFunc(have.Older, func(b pod.Sandbox) bool { return b.ID == s.ID })
		if have.Sandbox != nil && have.Sandbox.ID == s.ID {
			have.Sandbox = nil
		}
		if have.Empty() {
			have.UID = ""
		}
	case TakeVolumes:
		w.v.VolumesReady = w.v.VolumesReady && s.Instance != w.v.Record.Instance
		w.v.VolumesLeft = false
	case Forget:
		w.v.Record = pod.Record{Key: w.v.Record.Key, Attempts: make(map[string]uint32), ContainerNotes: make(map[string]pod.ContainerNotes)}
	}
}

// addOlder puts a container among the older ones, newest first by attempt, as a runtime shows
// them.
func (w *world) addOlder(c pod.Container) {
	dead := &w.v.Have.Dead
	*dead = append(*dead, c)
	slices.SortStableFunc(*dead, func(a, b pod.Container) int {
		return cmp.Or(cmp.Compare(b.Attempt, a.Attempt), b.CreatedAt.Compare(a.CreatedAt), cmp.Compare(b.ID, a.ID))
	})
}

// begin records that an instance starts.
func (w *world) begin(instance int) {
	if w.v.Record.Begin(w.v.Want, instance, w.v.Now) {
		w.v.VolumesReady = false
	}
}

func (w *world) id(what string) string {
	w.made++
	return fmt.Sprintf("foreseen-%s-%d", what, w.made)
}

// end lets containers exit with 0: no decision depends on the exit code of a stopped container.
func (w *world) end(which func(pod.Container) bool) {
	ended := func(c pod.Container) pod.Container {
		if which(c) && c.State != pod.StateExited {
			c.State, c.FinishedAt = pod.StateExited, w.v.Now
		}
		return c
	}
	for name, c := range w.v.Have.Containers {
		w.v.Have.Containers[name] = ended(c)
	}
	for i, c := range w.v.Have.Dead {
		w.v.Have.Dead[i] = ended(c)
	}
}

// remove removes containers. If it removes the newest one of a name, the one before it becomes
// the newest.
func (w *world) remove(which func(pod.Container) bool) {
	have := &w.v.Have
	for _, c := range append(podview.Newest(*have), have.Dead...) {
		if which(c) && c.State != pod.StateCreated {
			w.v.Record.Attempts[c.Name] = max(w.v.Record.Attempts[c.Name], c.Attempt+1)
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

func (w *world) eachSandbox(f func(*pod.Sandbox)) {
	if w.v.Have.Sandbox != nil {
		f(w.v.Have.Sandbox)
	}
	for i := range w.v.Have.Older {
		f(&w.v.Have.Older[i])
	}
}

// completeInit completes the running init container that is no sidecar. It returns false if
// none runs.
func (w *world) completeInit() bool {
	if w.v.Want == nil {
		return false
	}
	for i := range w.v.Want.Pod.Spec.InitContainers {
		init := &w.v.Want.Pod.Spec.InitContainers[i]
		c, ok := w.v.Have.Containers[init.Name]
		if ok && !pod.Restartable(init) && c.State == pod.StateRunning {
			w.end(func(o pod.Container) bool { return o.ID == c.ID })
			return true
		}
	}
	return false
}
