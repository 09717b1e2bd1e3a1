package podview

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podspec"
)

// State is a pod as one of its instances: it decides which of the sandboxes and containers
// that the runtime shows count.
type State struct {
	want   *pod.Spec
	have   pod.Actual
	made   *pod.Spec // the recorded spec
	notes  map[string]pod.ContainerNotes
	health pod.Health

	recorded int            // the recorded instance; 0: none
	instance int            // 0: all instances
	numbers  map[string]int // the instance of each sandbox, by sandbox ID; 0: not known
	sandbox  *pod.Sandbox   // the one that counts, see ToPlan and ToReport; nil: none
}

// ToPlan returns the state for planning steps: of the newest instance, at least the first
// one. If want is nil, it is the state of all instances, and no sandbox counts.
//
// It differs from ToReport in two ways. A sandbox without an instance number is of the
// recorded instance, since a step needs one number. And a sandbox counts only while it is
// ready and of this instance. In a new sandbox the init containers run again (C-1.20.9), and
// all others start again.
func ToPlan(want *pod.Spec, have pod.Actual, rec pod.Record, health pod.Health) *State {
	s := &State{want: want, have: have, made: rec.Want, notes: rec.ContainerNotes, health: health, recorded: rec.Instance}
	s.numberSandboxes(s.InstanceOf)
	if want != nil {
		s.setInstance(max(1, s.newest()))
	}
	return s
}

// Next returns the state of the same pod as its next instance, which has no containers yet.
func (s *State) Next() *State {
	next := *s
	next.setInstance(s.instance + 1)
	return &next
}

// setInstance makes s the state of an instance.
func (s *State) setInstance(instance int) {
	s.instance, s.sandbox = instance, nil
	if b := s.have.Sandbox; b != nil && b.Ready && s.InstanceOf(b) == instance {
		s.sandbox = b
	}
}

// ToReport returns the state for a status: of one instance, or of all of them if instance
// is 0. want is never nil.
//
// It differs from ToPlan in two ways. A sandbox without an instance number is of any
// instance: if its annotation is lost, no exit and no restart count is lost. And the newest
// sandbox counts, ready or not, since the status still has to report the exits of its
// containers.
func ToReport(want *pod.Spec, have pod.Actual, notes map[string]pod.ContainerNotes, health pod.Health, instance int) *State {
	s := &State{want: want, have: have, notes: notes, health: health, instance: instance, sandbox: have.Sandbox}
	s.numberSandboxes(func(b *pod.Sandbox) int { return b.Instance })
	return s
}

// numberSandboxes stores the instance of each sandbox, as of returns it.
func (s *State) numberSandboxes(of func(*pod.Sandbox) int) {
	s.numbers = make(map[string]int, 1+len(s.have.Older))
	if b := s.have.Sandbox; b != nil {
		s.numbers[b.ID] = of(b)
	}
	for i := range s.have.Older {
		s.numbers[s.have.Older[i].ID] = of(&s.have.Older[i])
	}
}

// Instance is the number of the instance that the state is of.
func (s *State) Instance() int { return s.instance }

// InstanceOf returns the instance of a sandbox for planning: the recorded one for a sandbox
// without a number.
func (s *State) InstanceOf(b *pod.Sandbox) int {
	if b.Instance > 0 {
		return b.Instance
	}
	return max(s.recorded, 1)
}

// Instances lists every instance that the record or the runtime knows, in rising order.
func (s *State) Instances() []int {
	set := map[int]bool{}
	if s.recorded > 0 {
		set[s.recorded] = true
	}
	for _, n := range s.numbers {
		set[n] = true
	}
	return slices.Sorted(maps.Keys(set))
}

// newest is the highest instance that the record or the runtime knows.
func (s *State) newest() int {
	n := s.recorded
	for _, i := range s.numbers {
		n = max(n, i)
	}
	return n
}

// counts reports whether instance n counts for this state. An unknown instance, 0, counts.
func (s *State) counts(n int) bool { return n == 0 || s.instance == 0 || n == s.instance }

// Owns reports whether a container belongs to the instance. A container whose sandbox is gone
// belongs to every instance, since its own is not known.
func (s *State) Owns(c pod.Container) bool { return s.counts(s.numbers[c.SandboxID]) }

// Container returns the newest container of a name; ok is false if it belongs to
// another instance, or if there is none.
func (s *State) Container(name string) (c pod.Container, ok bool) {
	c, ok = s.have.Containers[name]
	return c, ok && s.Owns(c)
}

// InSandbox reports whether a container is in the sandbox that counts.
func (s *State) InSandbox(c pod.Container) bool {
	return s.sandbox != nil && c.SandboxID == s.sandbox.ID
}

// SandboxReady reports whether the sandbox that counts is ready.
func (s *State) SandboxReady() bool { return s.sandbox != nil && s.sandbox.Ready }

// HadSandbox reports whether the instance has had a sandbox, as far as the runtime shows.
// Admission does not judge such an instance again (C-1.31.5).
func (s *State) HadSandbox() bool {
	for _, n := range s.numbers {
		if s.counts(n) {
			return true
		}
	}
	return false
}

// HasNewestSandbox reports whether the newest sandbox is of the instance. If it is not, the
// status may say that the instance is not admitted, or that it waits for another pod.
func (s *State) HasNewestSandbox() bool {
	b := s.have.Sandbox
	return b != nil && s.counts(s.numbers[b.ID])
}

// HasRun reports whether a container of the instance has been started; a created one does not
// count.
func (s *State) HasRun() bool {
	for name := range s.have.Containers {
		if c, ok := s.Container(name); ok && c.State != pod.StateCreated {
			return true
		}
	}
	return false
}

// RegularContainerCreated reports whether a regular container was created in the sandbox that
// counts: then all init containers are done (C-1.20.2).
func (s *State) RegularContainerCreated() bool {
	return slices.ContainsFunc(s.want.Pod.Spec.Containers, func(c v1.Container) bool {
		r, ok := s.Container(c.Name)
		return ok && s.InSandbox(r)
	})
}

// CurrentInit returns the index of the current init container. When a regular container was
// created, it returns the number of init containers. The last init container that has a CRI
// container in the sandbox is the current one, else the first one. So earlier ones whose CRI
// containers were removed do not run again (C-1.20.3). CRI containers in an older sandbox do not
// count (C-1.20.2, C-1.20.9).
func (s *State) CurrentInit() int {
	list := s.want.Pod.Spec.InitContainers
	if len(list) == 0 || s.RegularContainerCreated() {
		return len(list)
	}
	for i := len(list) - 1; i > 0; i-- {
		if r, ok := s.Container(list[i].Name); ok && s.InSandbox(r) {
			return i
		}
	}
	return 0
}

// Initialized reports whether the init containers are done (C-1.20.2): a regular container
// was created, or the last init container has completed. If the last one is a sidecar, it has
// to run instead, and hasStarted has to be true for it.
func (s *State) Initialized(hasStarted func(*v1.Container, pod.Container) bool) bool {
	list := s.want.Pod.Spec.InitContainers
	current := s.CurrentInit()
	if current >= len(list)-1 && current < len(list) {
		last := &list[current]
		r, ok := s.Container(last.Name)
		switch {
		case !ok || !s.InSandbox(r):
			return false
		case pod.Restartable(last):
			return r.State == pod.StateRunning && hasStarted(last, r)
		}
		return r.State == pod.StateExited && r.ExitCode == 0
	}
	return current == len(list)
}

// ProbeStatus returns the probe status of a running container; known is false before the first
// result. The status of another container of this name does not count.
func (s *State) ProbeStatus(kind pod.ProbeKind, r pod.Container) (ok, known bool) {
	results := map[pod.ProbeKind]map[string]pod.ProbeStatus{pod.Startup: s.health.Started, pod.Readiness: s.health.Ready, pod.Liveness: s.health.Live}
	v, known := results[kind][r.Name]
	known = known && v.ContainerID == r.ID
	return known && v.OK, known
}

// HasStarted reports whether a running container has passed its startup probe, or has none. Until
// the probe has a result, HasStarted returns before. For planning, before is false: the next
// container waits for a result. For a status, it is the last reported value of this container, so
// that a restart of the agent does not change the status.
func (s *State) HasStarted(c *v1.Container, r pod.Container, before bool) bool {
	if c.StartupProbe == nil {
		return true
	}
	if ok, known := s.ProbeStatus(pod.Startup, r); known {
		return ok
	}
	return before
}

// Restarts reports whether a container that has exited restarts (C-1.21). all says that its rule
// restarts all containers of the pod.
func (s *State) Restarts(c pod.Container) (restart, all bool) {
	spec, _ := s.want.Container(c.Name)
	return s.notes[c.ID].Restarts(s.want.Pod.Spec.RestartPolicy, spec, c.ExitCode)
}

// RestartsAll reports whether a container of the sandbox has exited by a rule that restarts
// all containers (C-1.21.3).
func (s *State) RestartsAll(c pod.Container) bool {
	_, all := s.Restarts(c)
	return all && c.State == pod.StateExited && s.InSandbox(c)
}

// Changed reports whether a container was made from another definition than the desired one.
// If the hashes have different versions, it compares the recorded spec with the desired one
// instead. Without a recorded spec it reports no change: an upgrade of nodectl, which may
// bring a new hash version, restarts no container.
func (s *State) Changed(c pod.Container) bool {
	switch want := s.want.ContainerHash(c.Name); {
	case !s.MayHaveChanged(c):
		return false
	case podspec.HashVersion(c.Hash) == podspec.HashVersion(want):
		return true
	}
	_, names, _ := podspec.Restart(s.made, s.want)
	return slices.Contains(names, c.Name)
}

// MayHaveChanged is Changed for a status, which has no recorded spec to compare with. A hash of
// another version may mean an edit: the status must not report a final phase if the pod may
// continue.
func (s *State) MayHaveChanged(c pod.Container) bool {
	want := s.want.ContainerHash(c.Name)
	return c.Hash != "" && want != "" && c.Hash != want
}

// MayRun reports whether any container of the pod may run, in any instance. A stop has to include
// all of them.
func MayRun(have pod.Actual) bool {
	return slices.ContainsFunc(AllContainers(have), pod.Container.MayRun)
}

// ContainersRunning is MayRun for the newest container of each name. The status shows those.
func ContainersRunning(have pod.Actual) bool {
	for _, c := range have.Containers {
		if c.MayRun() {
			return true
		}
	}
	return false
}

// Running reports whether anything of a pod runs, the newest sandbox included.
func Running(have pod.Actual) bool {
	return have.Sandbox != nil && have.Sandbox.Ready || ContainersRunning(have)
}

// AnyLeft reports whether something of the instance has not exited. A created container and a
// ready sandbox count, too: the status reports the end of the pod when nothing of it is left
// (C-1.27.10).
func (s *State) AnyLeft() bool {
	for _, c := range s.have.Containers {
		if s.Owns(c) && c.State != pod.StateExited {
			return true
		}
	}
	return s.SandboxReady() || slices.ContainsFunc(s.have.Dead, pod.Container.MayRun)
}

// NewestContainers returns the newest containers, by name.
func NewestContainers(have pod.Actual) []pod.Container {
	return slices.SortedFunc(maps.Values(have.Containers), func(a, b pod.Container) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.ID, b.ID))
	})
}

// AllContainers returns all containers, by name, older ones after newer ones.
func AllContainers(have pod.Actual) []pod.Container {
	all := append(NewestContainers(have), have.Dead...)
	slices.SortStableFunc(all, func(a, b pod.Container) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// Duplicates are the sandboxes and containers that run beside the newest sandbox and the newest
// container of each name. Steps end them before the pod continues or terminates (I1).
type Duplicates struct {
	Older     []pod.Container // older containers that have not exited
	Outside   []pod.Container // newest containers that have not exited, outside the newest sandbox; by name
	Sandboxes []pod.Sandbox   // older sandboxes that are ready
}

// DuplicatesOf returns the duplicates of a pod.
func DuplicatesOf(have pod.Actual) (d Duplicates) {
	for _, c := range have.Dead {
		if c.State != pod.StateExited {
			d.Older = append(d.Older, c)
		}
	}
	for _, c := range NewestContainers(have) {
		if have.Sandbox != nil && c.SandboxID != have.Sandbox.ID && c.State != pod.StateExited {
			d.Outside = append(d.Outside, c)
		}
	}
	for _, b := range have.Older {
		if b.Ready {
			d.Sandboxes = append(d.Sandboxes, b)
		}
	}
	return d
}

// Any reports whether there are any duplicates.
func (d Duplicates) Any() bool { return len(d.Older)+len(d.Outside)+len(d.Sandboxes) > 0 }
