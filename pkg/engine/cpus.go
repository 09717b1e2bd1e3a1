package engine

import (
	"bytes"
	"log/slog"
	"maps"
	"slices"

	"github.com/nodectl/nodectl/pkg/cpuset"
	"github.com/nodectl/nodectl/pkg/pod"
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

// cpuView is what the sync loop keeps of the node's CPUs.
type cpuView struct {
	shared string            // the CPUs of containers that have none for themselves; "" for all
	files  map[string][]byte // the newest state files
	writer *stateWriter      // nil: no policy allocates anything
	logged bool              // pods that keep what they have under another policy were logged
}

// withPlaced is the spec with what its containers have for themselves.
func (e *entry) withPlaced(spec *pod.Spec) *pod.Spec {
	if e.placed == nil || spec == nil || spec.UID() != e.placed.uid {
		return spec
	}
	if e.shown.from != spec || e.shown.placed != e.placed {
		e.shown = placedSpec{spec, e.placed, spec.WithPlaced(e.placed.of)}
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
// them anything. A container that runs with CPUs that its pod has no more keeps them from others.
func (l *loop) cpuState() *cpuset.State {
	if l.cfg.CPUs == nil {
		return nil
	}
	s := l.cfg.CPUs.State()
	for _, e := range l.sorted() {
		if e.ended {
			e.placed = nil // another pod may have it
		}
		putPlaced(s, e.placed)
		blockOthers(s, e.placed, e.runsOn)
	}
	for _, key := range sortedKeys(l.orphans) {
		o := l.orphans[key]
		if o.Terminated() {
			o.placed = nil
			l.orphans[key] = o
		}
		putPlaced(s, o.placed)
		blockOthers(s, o.placed, o.runsOn)
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

func blockOthers(s *cpuset.State, p *placed, runsOn map[string]string) {
	for name, cpus := range runsOn {
		if p == nil || p.of[name].CPUs != cpus {
			s.Block(pod.Placement{CPUs: cpus})
		}
	}
}

// place notes what admission gave to the containers of a pod.
func (e *entry) place(s *cpuset.State, uid string) {
	e.placed = nil
	if s != nil {
		e.placed = &placed{uid, s.Of(uid)}
	}
}

// noteCPUs has the workers move containers when the shared CPUs changed, and the state files
// written when anything did.
func (l *loop) noteCPUs(s *cpuset.State) {
	if s == nil {
		return
	}
	if !l.view.cpus.logged {
		l.view.cpus.logged = true
		for _, e := range l.sorted() {
			if spec := e.counted(); e.admitted && !e.ended && spec != nil && (e.placed == nil || len(e.placed.of) == 0) && l.cfg.CPUs.Wants(spec.Pod) {
				l.log.Warn("Running pod keeps the shared CPUs and memory; it gets its own when it is created again", "pod", e.key.String())
			}
		}
	}
	if shared := s.Shared(); shared != l.view.cpus.shared {
		l.view.cpus.shared = shared
		for _, e := range l.pods {
			if e.updates != nil {
				l.queueUpdate(e, false)
			}
		}
	}
	if files := s.Files(); l.view.cpus.writer != nil && !maps.EqualFunc(files, l.view.cpus.files, bytes.Equal) {
		l.view.cpus.files = files
		l.view.cpus.writer.write(files)
	}
}

// placementsOf returns what the runtime shows of a pod's containers: what they have for themselves, and
// on which CPUs of their own they run now.
func placementsOf(have pod.Actual) (of map[string]pod.Placement, runsOn map[string]string) {
	for name, c := range have.Containers {
		p := pod.ParsePlacement(c.Placement)
		p.Shared = ""
		if p.String() == "" {
			continue
		}
		if of == nil {
			of, runsOn = make(map[string]pod.Placement), make(map[string]string)
		}
		of[name] = p
		if c.MayRun() && p.CPUs != "" {
			runsOn[name] = p.CPUs
		}
	}
	return of, runsOn
}

// notePlaced notes what the runtime shows of an orphaned pod. It comes before what the record
// says, which has the containers that were not created.
func (s *orphan) notePlaced(have pod.Actual) {
	of, runsOn := placementsOf(have)
	s.runsOn = runsOn
	if of == nil {
		return
	}
	all := maps.Clone(of)
	if s.placed != nil && s.placed.uid == have.UID {
		for name, p := range s.placed.of {
			if _, shown := all[name]; !shown {
				all[name] = p
			}
		}
	}
	s.placed = &placed{have.UID, all}
}

// recordedPlaced is what a record says of a pod's containers, nil for nothing.
func recordedPlaced(want *pod.Spec) *placed {
	if want == nil || len(want.Placed) == 0 {
		return nil
	}
	return &placed{want.UID(), want.Placed}
}

// logUnplaced logs which pods keep CPUs and memory of their own although no policy gives them any
// more.
func (l *loop) logUnplaced(pods []pod.Actual) {
	if l.cfg.CPUs != nil {
		return
	}
	for _, a := range pods {
		if _, runsOn := placementsOf(a); len(runsOn) > 0 {
			l.log.Warn("Running pod keeps CPUs that the CPU manager policy does not reserve for it any more", "pod", a.Key.String())
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
