package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podview"
)

// Foresee returns every step that serving v.Want takes from v on, in order, when
// nothing gets in the way: each step succeeds, hooks too, init containers
// complete, the others run on, probes pass, nobody edits anything, the network
// works, and nothing is held back by an earlier failure or by another pod. It is Next, asked again and again about a world in
// which its steps were done; so what it says is what the agent would do.
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

// maxRounds ends a story that goes in circles; the longest one known takes a
// round per init container and a few more.
const maxRounds = 200

// Restarts says what of a pod that is on the node as have, and was recorded as
// instance (0 for never), steps start anew because of an edit: the whole pod, or
// containers, sorted. What starts again because it has ended is no restart.
func Restarts(have pod.Actual, instance int, steps []Step) (whole bool, containers []string) {
	for _, s := range steps {
		switch {
		case s.Action == RunSandbox && instance > 0 && s.Instance > instance:
			return true, nil
		case s.Action == RunSandbox && !have.Empty() && have.UID != "" && instance == 0:
			return true, nil
		case s.Action == CreateContainer && s.Anew && !slices.Contains(containers, s.Container):
			containers = append(containers, s.Container)
		}
	}
	slices.Sort(containers)
	return false, containers
}

// Resized returns the containers, sorted, that steps give other resources while
// they run.
func Resized(steps []Step) (containers []string) {
	for _, s := range steps {
		if s.Action == UpdateContainer {
			containers = append(containers, s.Container)
		}
	}
	slices.Sort(containers)
	return slices.Compact(containers)
}

// world is a node on which everything works, and a worker's memory of it.
type world struct {
	v    View
	made int // IDs given
}

// newWorld returns the world that v describes, without its troubles. What the
// caller's View holds is not written to.
func newWorld(v View) *world {
	v.Hindrances = Hindrances{}
	v.Health = pod.Health{Started: make(map[string]pod.Verdict)}
	v.Have.Older = slices.Clone(v.Have.Older)
	v.Have.Dead = slices.Clone(v.Have.Dead)
	if v.Have.Sandbox != nil {
		b := *v.Have.Sandbox
		v.Have.Sandbox = &b
	}
	containers := make(map[string]pod.Container, len(v.Have.Containers))
	for name, c := range v.Have.Containers {
		c.CrashStreak = 0 // its back-off is over some day
		v.Health.Started[name] = pod.Verdict{ContainerID: c.ID, OK: true}
		containers[name] = c
	}
	v.Have.Containers = containers
	attempts := make(map[string]uint32, len(v.Record.Attempts))
	maps.Copy(attempts, v.Record.Attempts)
	v.Record.Attempts = attempts
	v.Record.Lives = maps.Clone(v.Record.Lives)
	if v.Record.Lives == nil {
		v.Record.Lives = make(map[string]pod.Life)
	}
	v.Record.Streaks = nil
	return &world{v: v}
}

// do is what a step leaves behind.
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
			w.bury(old)
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
		w.v.Health.Started[s.Container] = pod.Verdict{ContainerID: c.ID, OK: true}
	case RunHook, UpdateContainer:
		id := cmp.Or(s.ID, have.Containers[s.Container].ID)
		life := w.v.Record.Lives[id]
		if s.Action == RunHook {
			life.PostStart = ""
		} else {
			life.Resources = w.v.Want.Resources(s.Container)
		}
		w.v.Record.Lives[id] = life
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
	case Forget:
		w.v.Record = pod.Record{Key: w.v.Record.Key, Attempts: make(map[string]uint32), Lives: make(map[string]pod.Life)}
	}
}

// bury puts a record among the dead, newest first by attempt, as a runtime
// shows them.
func (w *world) bury(c pod.Container) {
	dead := &w.v.Have.Dead
	*dead = append(*dead, c)
	slices.SortStableFunc(*dead, func(a, b pod.Container) int {
		return cmp.Or(cmp.Compare(b.Attempt, a.Attempt), b.CreatedAt.Compare(a.CreatedAt), cmp.Compare(b.ID, a.ID))
	})
}

// begin notes that an instance starts.
func (w *world) begin(instance int) {
	if w.v.Record.Begin(w.v.Want, instance, w.v.Now) {
		w.v.VolumesReady = false
	}
}

func (w *world) id(what string) string {
	w.made++
	return fmt.Sprintf("foreseen-%s-%d", what, w.made)
}

// end ends containers well: how they end when somebody stops them decides
// nothing.
func (w *world) end(which func(pod.Container) bool) {
	over := func(c pod.Container) pod.Container {
		if which(c) && c.State != pod.StateExited {
			c.State, c.FinishedAt = pod.StateExited, w.v.Now
		}
		return c
	}
	for name, c := range w.v.Have.Containers {
		w.v.Have.Containers[name] = over(c)
	}
	for i, c := range w.v.Have.Dead {
		w.v.Have.Dead[i] = over(c)
	}
}

// remove takes records away; the newest of the dead ones is then a container's.
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

// completeInit lets a running init container, which is no sidecar, complete, and
// reports whether one ran.
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
