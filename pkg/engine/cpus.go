package engine

import (
	"bytes"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/cpuset"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podview"
)

// This file has the engine's part in exclusive CPUs and NUMA memory: memory of certain NUMA nodes,
// which the memory policy Static allocates to containers. For each pod, the sync loop keeps the
// allocations of admission, and computes the state of the node from them. The next agent reads the
// allocations in an annotation of each container. Records have those of containers that were not
// created yet.

// placements has the exclusive CPUs and NUMA memory of the containers of one UID. It is immutable.
type placements struct {
	uid         string
	byContainer map[string]pod.Placement
}

// equal reports whether p and o have the same allocations.
func (p *placements) equal(o *placements) bool {
	if p == nil || o == nil {
		return p == o
	}
	return p.uid == o.uid && maps.EqualFunc(p.byContainer, o.byContainer, pod.Placement.Equal)
}

// withoutCPUs returns the allocations without exclusive CPUs and NUMA memory; nil if none is left.
func (p *placements) withoutCPUs() *placements {
	rest := make(map[string]pod.Placement)
	for name, has := range p.byContainer {
		has.CPUs, has.Memory = "", nil
		if !has.IsZero() {
			rest[name] = has
		}
	}
	if len(rest) == 0 {
		return nil
	}
	return &placements{p.uid, rest}
}

// podCPUs has the exclusive CPUs and NUMA memory of a pod.
type podCPUs struct {
	placed *placements // the allocations of its containers; nil: none
	runsOn []string    // the sets of exclusive CPUs of its running containers, sorted
	// running says that a container of the pod may run: the runtime shows one, or the agent could
	// not read the pod.
	running bool
}

// cpuView is the sync loop's view of the node's CPUs.
type cpuView struct {
	files  map[string][]byte // the newest state files
	writer *stateWriter      // nil: no policy allocates anything
}

// withPlaced returns the spec with the current allocations of its containers. The spec of a record
// may have older ones.
func (e *entry) withPlaced(spec *pod.Spec) *pod.Spec {
	if spec == nil {
		return nil
	}
	var byContainer map[string]pod.Placement
	if e.placed != nil && e.placed.uid == spec.UID() {
		byContainer = e.placed.byContainer
	}
	if len(byContainer) == 0 && len(spec.Placed) == 0 {
		return spec
	}
	if e.shown.from != spec || e.shown.placed != e.placed {
		e.shown = placedSpec{spec, e.placed, spec.WithPlacements(byContainer)}
	}
	return e.shown.spec
}

// placedSpec caches the result of withPlaced (spec) with its two inputs.
type placedSpec struct {
	from   *pod.Spec
	placed *placements
	spec   *pod.Spec
}

// cpuState returns the allocations of all pods; nil if no policy allocates anything. In the result,
// the exclusive CPUs of running containers are blocked for other pods, also without an allocation.
// supply has the devices of plugins.
func (l *loop) cpuState(supply map[v1.ResourceName]pod.DeviceSupply) *cpuset.State {
	if l.cfg.CPUs == nil {
		return nil
	}
	s := l.cfg.CPUs.State()
	s.SetDevices(supply)
	for _, e := range l.sorted() {
		if e.ended || !e.admitted {
			e.placed, e.unplaced = nil, refusal{} // another pod may get the CPUs
		}
		if l.missingCPUs(e) == "" {
			putPlaced(s, e.placed)
		}
		if spec := e.counted(); spec != nil && e.placed != nil {
			s.Settle(spec.Pod)
		}
		uid := e.nextUID()
		if e.placedBefore != nil {
			for _, p := range e.placedBefore.byContainer {
				s.Block(uid, p.CPUs)
			}
		}
		blockRunning(s, uid, e.runsOn)
	}
	for _, key := range sortedKeys(l.orphans) {
		o := l.orphans[key]
		if o.Terminated() {
			o.placed = nil
			l.orphans[key] = o
		}
		putPlaced(s, o.placed)
		blockRunning(s, o.uid, o.runsOn)
	}
	return s
}

func putPlaced(s *cpuset.State, p *placements) {
	if p == nil {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(p.byContainer)) {
		s.Put(p.uid, name, p.byContainer[name])
	}
}

func blockRunning(s *cpuset.State, uid string, runsOn []string) {
	for _, cpus := range runsOn {
		s.Block(uid, cpus)
	}
}

// nextUID returns the UID of the pod whose new containers may get the CPUs on which older
// containers of this entry run.
func (e *entry) nextUID() string {
	switch {
	case e.want != nil:
		return e.want.UID()
	case e.counted() != nil:
		return e.counted().UID()
	}
	return e.uid
}

// missingCPUs returns a text that names the allocated CPUs and NUMA nodes that the machine no longer
// has; "" for none. While a container of the pod runs, it returns "".
func (l *loop) missingCPUs(e *entry) string {
	if e.placed == nil || e.running || e.placedBefore != nil {
		return ""
	}
	for _, name := range slices.Sorted(maps.Keys(e.placed.byContainer)) {
		if missing := l.cfg.CPUs.Missing(e.placed.byContainer[name]); missing != "" {
			return missing
		}
	}
	return ""
}

// placeAgain allocates other CPUs and memory to pods that do not run and whose CPUs or NUMA nodes
// the machine has lost. If that fails, the pod does not start, and each later admission tries
// again. It also reserves other devices for pods that do not run and have lost reserved ones.
func (l *loop) placeAgain(s *cpuset.State) {
	for _, e := range l.sorted() {
		missing, spec, unplaced := l.missingCPUs(e), e.counted(), e.unplaced != (refusal{})
		if missing == "" && !unplaced && !e.lacksDevices(s) || e.want == nil || deleting(e.want) || spec == nil {
			continue
		}
		log := l.log.With("pod", e.key.String())
		switch r := s.Admit(spec.Pod); {
		case r == nil:
			e.setPlaced(s, spec.UID())
			if missing == "" && !unplaced {
				log.Info("Reserved other devices for pod")
			} else {
				log.Warn("Allocated other CPUs and memory to pod", "missing", missing)
			}
		case missing != "":
			text := "the machine no longer has " + missing + ", which the pod had exclusively: " + r.Message
			e.placed, e.unplaced = nil, refusal{reason: r.Reason, message: text}
			l.env.recorder.event(e.key, spec.UID(), "", pod.EventWarning, r.Reason, text)
			log.Warn("Pod cannot start: no exclusive CPUs or NUMA memory", "reason", r.Reason, "message", text)
		default:
			continue // the reason is already reported
		}
		l.queueUpdate(e, true)
	}
}

// lacksDevices reports whether an admitted pod that does not run has neither the devices that it requests nor
// reserved ones.
func (e *entry) lacksDevices(s *cpuset.State) bool {
	spec := e.counted()
	return e.admitted && !e.ended && !e.running && e.placedBefore == nil && spec != nil && s.LacksDevices(spec.Pod)
}

// setPlaced stores the allocations of admission for the containers of a pod.
func (e *entry) setPlaced(s *cpuset.State, uid string) {
	var now *placements
	if s != nil {
		now = &placements{uid, s.Of(uid)}
	}
	if !now.equal(e.placed) {
		e.placed = now
	}
	e.unplaced = refusal{}
}

// setPlacedByEdit stores the allocations of admission for an edited pod, whose old containers may
// still run.
func (e *entry) setPlacedByEdit(s *cpuset.State, uid string) {
	was := e.placed
	e.setPlaced(s, uid)
	if s != nil && e.placedBefore == nil && e.placed != was {
		e.placedBefore = was
	}
}

// noteRuns stores the exclusive CPUs of a pod's running containers.
func (l *loop) noteRuns(e *entry, r *report) {
	if !r.looked() {
		return
	}
	changed := !slices.Equal(e.runsOn, r.runsOn) || e.running && !r.containersRun
	e.runsOn, e.running = r.runsOn, r.containersRun
	if e.placedBefore != nil && r.gen == e.gen { // no container of the old definition can start any more
		e.placedBefore, changed = nil, true
	}
	l.nodeState.freed = l.nodeState.freed || changed && l.cfg.CPUs != nil // other containers may use them
}

// noteCPUs lets the mover move containers if the shared CPUs have changed, and writes the state
// files if an allocation has changed. It passes the reserved devices to the plugins.
func (l *loop) noteCPUs(s *cpuset.State) {
	if s == nil {
		return
	}
	if l.cfg.Devices != nil {
		l.cfg.Devices.Reserve(s.Reserved())
	}
	if shared := s.Shared(); shared != l.env.mover.current() {
		l.env.mover.move(shared, l.movable())
	}
	if files := s.Files(); l.nodeState.cpus.writer != nil && !maps.EqualFunc(files, l.nodeState.cpus.files, bytes.Equal) {
		l.nodeState.cpus.files = files
		l.nodeState.cpus.writer.write(files)
	}
}

// movable returns the pods whose containers this agent moves to other CPUs: the pods that it runs
// and, if it serves, orphaned pods.
func (l *loop) movable() map[pod.Key]bool {
	all := make(map[pod.Key]bool, len(l.pods)+len(l.orphans))
	for key := range l.pods {
		all[key] = true
	}
	for key, o := range l.orphans {
		if l.mode.serves && !l.isForeign(o) {
			all[key] = true
		}
	}
	return all
}

// exclusiveCPUs returns the sets of exclusive CPUs of a pod's running containers, sorted.
func exclusiveCPUs(have pod.Actual) (sets []string) {
	for _, c := range podview.AllContainers(have) {
		if cpus := c.Placement.CPUs; cpus != "" && c.MayRun() {
			sets = append(sets, cpus)
		}
	}
	slices.Sort(sets)
	return slices.Compact(sets)
}

// notePlaced stores the allocations of an orphaned pod's containers. For a container of the newest
// sandbox that has not exited, its annotation counts. For other containers, which may belong to an
// earlier instance, the record of the newest instance takes precedence. If the runtime does not
// show a container, the record counts.
func (o *orphan) notePlaced(have pod.Actual) {
	o.runsOn, o.running = exclusiveCPUs(have), podview.MayRun(have)
	all := make(map[string]pod.Placement)
	if o.placed != nil && o.placed.uid == have.UID {
		maps.Copy(all, o.placed.byContainer)
	}
	b := have.Sandbox
	for name, c := range have.Containers {
		p := c.Placement
		p.Shared = ""
		_, recorded := all[name]
		newer := b != nil && b.Instance > o.instance // the sandbox is newer than the record
		current := b != nil && b.Instance == o.instance && c.SandboxID == b.ID && c.State != pod.StateExited
		if !p.IsZero() && (newer || current || !recorded) {
			all[name] = p
		}
	}
	if len(all) > 0 {
		o.placed = &placements{have.UID, all}
	}
}

// recordedPlaced returns the allocations in a record of a pod; nil if there are none.
func recordedPlaced(want *pod.Spec) *placements {
	if want == nil || len(want.Placed) == 0 {
		return nil
	}
	return &placements{want.UID(), want.Placed}
}

// reviewPlaced logs allocations of pods found on the node that the current policies do not make.
// Without a policy, a pod that does not run loses its allocation.
func (l *loop) reviewPlaced() {
	for _, key := range sortedKeys(l.orphans) {
		o := l.orphans[key]
		if !l.cfg.CPUs.Reserves() && !o.running && o.placed != nil {
			if o.placed = o.placed.withoutCPUs(); l.cfg.CPUs == nil {
				o.placed = nil
			}
			l.orphans[key] = o
		}
		if o.Terminated() {
			continue
		}
		var has map[string]pod.Placement
		if o.placed != nil {
			has = o.placed.byContainer
		}
		kept := make(map[string]bool)
		for _, p := range has {
			for _, kind := range l.cfg.CPUs.Unreserved(p) {
				kept[kind] = true
			}
		}
		log := l.log.With("pod", key.String())
		if len(kept) > 0 {
			log.Warn("Pod keeps an allocation that no policy makes any more", "kept", strings.Join(slices.Sorted(maps.Keys(kept)), ", "))
		}
		if l.cfg.CPUs != nil && o.running && o.Spec != nil && l.cfg.CPUs.Lacks(o.Spec.Pod, has) {
			log.Warn("Running pod stays in the shared pool; its next instance gets exclusive CPUs or NUMA memory")
		}
	}
}

// stateWriter writes the state files in the kubelet's format, in a goroutine of its own. It skips
// files that newer ones have replaced, and tries a failed write again.
type stateWriter struct {
	save  func(files map[string][]byte) error
	log   *slog.Logger
	files chan map[string][]byte // capacity 1
}

func newStateWriter(cfg Config) *stateWriter {
	if cfg.CPUs == nil || cfg.SaveCPUs == nil {
		return nil
	}
	return &stateWriter{save: cfg.SaveCPUs, log: cfg.Log, files: make(chan map[string][]byte, 1)}
}

// write queues files, and never waits: they replace queued files.
func (w *stateWriter) write(files map[string][]byte) {
	select {
	case <-w.files:
	default:
	}
	w.files <- files
}

// run writes files until close. It tries a failed write again after saveRetry and at close, unless
// newer files replace it.
func (w *stateWriter) run() {
	var unsaved map[string][]byte
	failing := false
	for open := true; open; {
		var again <-chan time.Time
		if unsaved != nil {
			again = time.After(saveRetry)
		}
		select {
		case files, ok := <-w.files:
			if open = ok; ok {
				unsaved = files
			}
		case <-again:
		}
		if unsaved == nil {
			continue
		}
		err := w.save(unsaved)
		switch {
		case err != nil && !failing:
			w.log.Warn("Failed to write the state files of CPUs and memory; retrying", "error", err)
		case err == nil && failing:
			w.log.Info("Writing the state files of CPUs and memory succeeds again")
		}
		if failing = err != nil; !failing {
			unsaved = nil
		}
	}
}

func (w *stateWriter) close() { close(w.files) }
