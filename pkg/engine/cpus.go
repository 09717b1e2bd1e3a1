package engine

import (
	"bytes"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/nodectl/nodectl/pkg/cpuset"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podview"
)

// This file has the engine's part in CPUs and memory that containers have for themselves. The
// sync loop keeps, for each pod, what admission gave to its containers, and computes from that
// what all pods of the node have. The runtime shows the same to the next agent, in an annotation
// of each container; records only add containers that were not created yet.

// placed is what the containers of one UID have for themselves. It does not change.
type placed struct {
	uid string
	of  map[string]pod.Placement
}

// equal reports whether p and o say the same.
func (p *placed) equal(o *placed) bool {
	if p == nil || o == nil {
		return p == o
	}
	return p.uid == o.uid && maps.EqualFunc(p.of, o.of, pod.Placement.Equal)
}

// taken has the CPUs and the memory of the node that a pod takes.
type taken struct {
	placed *placed  // CPUs and memory of its containers' own; nil: none
	runsOn []string // the sets of CPUs that running containers have for themselves, sorted
	// running says that a container of it may run: the runtime shows one, or could not be read.
	running bool
}

// cpuView has the sync loop's view of the node's CPUs.
type cpuView struct {
	files  map[string][]byte // the newest state files
	writer *stateWriter      // nil: no policy allocates anything
}

// withPlaced returns the spec with the CPUs and memory that its containers have for themselves now.
// The spec of a record may have older ones.
func (e *entry) withPlaced(spec *pod.Spec) *pod.Spec {
	if spec == nil {
		return nil
	}
	var of map[string]pod.Placement
	if e.placed != nil && e.placed.uid == spec.UID() {
		of = e.placed.of
	}
	if len(of) == 0 && len(spec.Placed) == 0 {
		return spec
	}
	if e.shown.from != spec || e.shown.placed != e.placed {
		e.shown = placedSpec{spec, e.placed, spec.WithPlaced(of)}
	}
	return e.shown.spec
}

// placedSpec caches the result of withPlaced (spec) with its two inputs.
type placedSpec struct {
	from   *pod.Spec
	placed *placed
	spec   *pod.Spec
}

// cpuState returns what the containers of all pods have for themselves, nil if no policy gives
// them anything. CPUs on which containers run are kept from other pods in any case.
func (l *loop) cpuState() *cpuset.State {
	if l.cfg.CPUs == nil {
		return nil
	}
	s := l.cfg.CPUs.State()
	for _, e := range l.sorted() {
		if e.ended || !e.admitted {
			e.placed, e.unplaced = nil, refusal{} // another pod may have it
		}
		if l.missing(e) == "" {
			putPlaced(s, e.placed)
		}
		uid := e.nextUID()
		if e.before != nil {
			for _, p := range e.before.of {
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

func putPlaced(s *cpuset.State, p *placed) {
	if p == nil {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(p.of)) {
		s.Put(p.uid, name, p.of[name])
	}
}

func blockRunning(s *cpuset.State, uid string, runsOn []string) {
	for _, cpus := range runsOn {
		s.Block(uid, cpus)
	}
}

// nextUID is the UID of the pod whose containers may have the CPUs on which older ones of it run.
func (e *entry) nextUID() string {
	switch {
	case e.want != nil:
		return e.want.UID()
	case e.counted() != nil:
		return e.counted().UID()
	}
	return e.uid
}

// missing returns which CPUs and NUMA nodes of a pod the machine does not have any more, if no
// container of the pod runs; "" for none.
func (l *loop) missing(e *entry) string {
	if e.placed == nil || e.running || e.before != nil {
		return ""
	}
	for _, name := range slices.Sorted(maps.Keys(e.placed.of)) {
		if missing := l.cfg.CPUs.Missing(e.placed.of[name]); missing != "" {
			return missing
		}
	}
	return ""
}

// placeAgain gives other CPUs and memory to pods that do not run and whose own ones the machine
// has lost. A pod that gets none does not start, and is tried again at each admission.
func (l *loop) placeAgain(s *cpuset.State) {
	for _, e := range l.sorted() {
		missing, spec := l.missing(e), e.counted()
		if missing == "" && e.unplaced == (refusal{}) || e.want == nil || deleting(e.want) || spec == nil {
			continue
		}
		log := l.log.With("pod", e.key.String())
		switch r := s.Admit(spec.Pod); {
		case r == nil:
			e.place(s, spec.UID())
			log.Warn("Pod gets other CPUs and memory for itself than before", "missing", missing)
		case missing != "":
			text := "the machine does not have " + missing + " any more, which the pod had for itself: " + r.Message
			e.placed, e.unplaced = nil, refusal{reason: r.Reason, message: text}
			l.env.recorder.event(e.key, spec.UID(), "", pod.EventWarning, r.Reason, text)
			log.Warn("Pod cannot start: it gets no CPUs or memory for itself", "reason", r.Reason, "message", text)
		default:
			continue // as before
		}
		l.queueUpdate(e, true)
	}
}

// place notes what admission gave to the containers of a pod.
func (e *entry) place(s *cpuset.State, uid string) {
	var now *placed
	if s != nil {
		now = &placed{uid, s.Of(uid)}
	}
	if !now.equal(e.placed) {
		e.placed = now
	}
	e.unplaced = refusal{}
}

// replace notes what admission gave to the containers of an edited pod, while the old ones may run.
func (e *entry) replace(s *cpuset.State, uid string) {
	was := e.placed
	e.place(s, uid)
	if s != nil && e.before == nil && e.placed != was {
		e.before = was
	}
}

// noteRuns notes which CPUs of their own the containers of a pod run on.
func (l *loop) noteRuns(e *entry, r *report) {
	if !r.looked() {
		return
	}
	changed := !slices.Equal(e.runsOn, r.runsOn) || e.running && !r.containersRun
	e.runsOn, e.running = r.runsOn, r.containersRun
	if e.before != nil && r.gen == e.gen { // no container of before the edit starts any more
		e.before, changed = nil, true
	}
	l.view.freed = l.view.freed || changed && l.cfg.CPUs != nil // other containers may use them
}

// noteCPUs has containers moved when the shared CPUs changed, and the state files written when
// anything did.
func (l *loop) noteCPUs(s *cpuset.State) {
	if s == nil {
		return
	}
	if shared := s.Shared(); shared != l.env.mover.current() {
		l.env.mover.move(shared, l.movable())
	}
	if files := s.Files(); l.view.cpus.writer != nil && !maps.EqualFunc(files, l.view.cpus.files, bytes.Equal) {
		l.view.cpus.files = files
		l.view.cpus.writer.write(files)
	}
}

// movable returns the pods whose containers this agent moves to other CPUs: those that it runs
// and, if it serves, the orphaned ones.
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

// ownCPUs returns the sets of CPUs that running containers of a pod have for themselves, sorted.
func ownCPUs(have pod.Actual) (sets []string) {
	for _, c := range podview.All(have) {
		if cpus := c.Placement.CPUs; cpus != "" && c.MayRun() {
			sets = append(sets, cpus)
		}
	}
	slices.Sort(sets)
	return slices.Compact(sets)
}

// notePlaced notes the CPUs and memory of an orphaned pod's containers. For a container of the
// newest sandbox that has not exited, its annotation counts. For others the record of the newest
// instance comes first: they may be of the instance before. For a container that the runtime does
// not show, the record counts.
func (s *orphan) notePlaced(have pod.Actual) {
	s.runsOn, s.running = ownCPUs(have), podview.MayRun(have)
	all := make(map[string]pod.Placement)
	if s.placed != nil && s.placed.uid == have.UID {
		maps.Copy(all, s.placed.of)
	}
	b := have.Sandbox
	for name, c := range have.Containers {
		p := c.Placement
		p.Shared = ""
		_, recorded := all[name]
		newer := b != nil && b.Instance > s.instance // than the record
		lives := b != nil && b.Instance == s.instance && c.SandboxID == b.ID && c.State != pod.StateExited
		if !p.IsZero() && (newer || lives || !recorded) {
			all[name] = p
		}
	}
	if len(all) > 0 {
		s.placed = &placed{have.UID, all}
	}
}

// recordedPlaced is what a record says of a pod's containers, nil for nothing.
func recordedPlaced(want *pod.Spec) *placed {
	if want == nil || len(want.Placed) == 0 {
		return nil
	}
	return &placed{want.UID(), want.Placed}
}

// reviewPlaced logs, for the pods that were found on the node, which CPUs and memory of theirs the
// policies do not reserve. Without a policy, a pod that does not run keeps none.
func (l *loop) reviewPlaced() {
	for _, key := range sortedKeys(l.orphans) {
		o := l.orphans[key]
		if l.cfg.CPUs == nil && !o.running {
			o.placed = nil
			l.orphans[key] = o
		}
		if o.Terminated() {
			continue
		}
		var has map[string]pod.Placement
		if o.placed != nil {
			has = o.placed.of
		}
		kept := make(map[string]bool)
		for _, p := range has {
			for _, kind := range l.cfg.CPUs.Unreserved(p) {
				kept[kind] = true
			}
		}
		log := l.log.With("pod", key.String())
		if len(kept) > 0 {
			log.Warn("Pod keeps CPUs or memory for itself that no policy reserves any more", "kept", strings.Join(slices.Sorted(maps.Keys(kept)), ", "))
		}
		if l.cfg.CPUs != nil && o.running && o.Spec != nil && l.cfg.CPUs.Lacks(o.Spec.Pod, has) {
			log.Warn("Running pod keeps the shared CPUs and memory; it gets its own when it is created again")
		}
	}
}

// stateWriter writes the state files. Its goroutine writes the newest ones.
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

// write never waits: it replaces files that are not written yet.
func (w *stateWriter) write(files map[string][]byte) {
	select {
	case <-w.files:
	default:
	}
	w.files <- files
}

// run writes files until close.
func (w *stateWriter) run() {
	for files := range w.files {
		if err := w.save(files); err != nil {
			w.log.Warn("Failed to write the state of CPUs and memory", "error", err)
		}
	}
}

func (w *stateWriter) close() { close(w.files) }
