package engine

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/feed"
	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/prober"
)

// housekeepingPeriod is the interval of housekeep. A tick reads the runtime only after a hint
// about an unknown pod, or after a failed listing (C-1.30).
const housekeepingPeriod = 2 * time.Second

// loop is the sync loop: the one goroutine that dispatches. Only that goroutine uses its fields,
// except the channels. Workers get a workerEnv, through which they cannot reach these fields.
type loop struct {
	cfg     Config
	log     *slog.Logger
	mode    runMode
	in      inputs
	prober  *prober.Prober
	out     statusOutput
	workers *sync.WaitGroup
	env     *workerEnv // of the workers

	start startup
	// state is the desired state; runtime is the last known readiness of the runtime.
	state     *podconfig.Merged
	runtime   pod.RuntimeReady
	nodeState nodeState

	pods    map[pod.Key]*entry
	order   podOrder
	orphans map[pod.Key]orphan
	waiting map[pod.Key]bool // desired pods that plan.Delayed delays until a layer has answered
	ids     ids

	// pending holds the entries whose workers get an update at the end of this iteration of run.
	// So each update shows all changes of the iteration, also those of pods that the pod waits for.
	pending     []*entry
	diskFailing bool // the last write of a record failed, and the loop has logged that
	jobs        jobs
}

// runMode is how Run and Once differ.
type runMode struct {
	// serves is true for serve. Only then the loop stops orphaned pods, sweeps directories of
	// unknown pods, and reports pods that were removed while no agent ran. runonce also stops
	// pods, but only those for which isTakenDown is true.
	serves bool
	// down holds the pods that runonce stops and removes (UntilGone), with their UIDs; nil for
	// none.
	down map[pod.Key]string
	// leaves reports whether a workload of runonce's set no longer has a pod that it had; nil: there
	// are no workloads.
	leaves func(pod.Key) bool
	// finished ends the loop when it returns true; nil never ends it.
	finished func() bool
}

// inputs are the channels from which the loop receives, beside those of its jobs and its
// prober.
type inputs struct {
	batches      chan podconfig.Batch
	hints        chan pod.Key
	ready        chan pod.RuntimeReady
	reports      chan report
	healthChecks chan chan error
	operations   chan *operation
	halts        chan haltRequest
	pressures    chan []v1.NodeConditionType
	devices      <-chan struct{} // Devices.Changed; nil: there are none
	claims       <-chan struct{} // Claims.Changed; nil: there are none
	health       <-chan struct{} // Claims.HealthChanged; nil: there are none
}

// ids are the last numbers assigned; they only rise.
type ids struct {
	entry     uint64
	update    uint64
	operation uint64
	devices   uint64 // changes of devices, and of drivers of claims
}

// jobs are the periodic jobs, each in a goroutine of its own.
type jobs struct {
	lister      lister
	rotation    rotation
	measurement measurement
}

// entry is one pod the loop knows.
type entry struct {
	key   pod.Key
	seq   uint64
	since time.Time // when the loop first knew it
	uid   string    // if it was made to stop an orphaned pod: the UID of that pod; else ""
	want  *pod.Spec // the desired spec; nil: stop and remove the pod
	next  *pod.Spec // the spec to start once the pod is gone; nil: none
	// lastWant is the newest spec of the pod in a source or a record, also while the pod is
	// refused or being removed. nil: none is known, or the pod had terminated before it ran
	// here.
	lastWant *pod.Spec
	health   pod.Health

	admission
	link
	dependencyState dependencyState // by the last report
	// removalSince is when the loop first saw isBeingRemoved; zero: it is not being removed.
	removalSince time.Time
	stops        stopOrder // valid while it is being removed and loop.order.current is true
	targets      []prober.Target
	last         *report
	haltBegun    time.Time // when the halt of the node began to stop it; zero: it has not
	haltLimit    int64     // see podHalt.limit
}

// admission is the decision of admission about a pod.
type admission struct {
	admitted   bool       // by this agent, or it ran when this agent started
	ended      bool       // terminated, or finally refused: it holds no room and no port
	refused    refusal    // of the pod, or of the newest edit of an admitted pod
	allocated  *pod.Spec  // the spec whose resources are allocated to it; nil: none yet
	holds      []string   // UIDs under which instances of it may exist, beside that of allocated
	resize     refusal    // why the resources that entry.want requests are not allocated
	allocation allocation // the cache of withAllocated
	podCPUs
	// placedBefore has the CPUs and memory that its containers had before an edit. It is nil without
	// an edit, and after a report about that edit: runsOn then has the CPUs of running containers.
	placedBefore *placements
	// unplaced is why the pod got no other exclusive CPUs or NUMA memory after the machine had lost
	// those of the pod. While it is set, no container of the pod starts.
	unplaced refusal
	shown    placedSpec // the cache of withPlaced
}

// link connects an entry to its worker.
type link struct {
	updates    chan podUpdate // nil: no worker
	gen        uint64         // of the newest update with a change
	queued     bool           // the entry is in loop.pending
	operations []*operation   // the newest requested ones; the worker knows which it has acknowledged
	// planningSince is when the worker called plan.Next; see worker. nil: no worker.
	planningSince *atomic.Int64
}

// orphan is a pod that runs, or has a record, and has no entry.
type orphan struct {
	plan.FoundPod
	uid string // of its record, else as the runtime shows it
	// foundAtStart says that a listing found it before the first dispatch.
	foundAtStart bool
	logged       bool // the loop has logged why it does not stop the pod yet
	// revived says that it was evicted, and that its next instance may start: admission judges it.
	revived  bool
	instance int // of its record; 0: it has none
	podCPUs
}

// uids returns the UIDs of the pod's instances: of the recorded one, and of the one that the
// runtime shows.
func (o *orphan) uids() []string { return []string{o.uid, o.ShownUID} }

func (e *Engine) newLoop(serves bool) *loop {
	l := &loop{
		cfg:  e.cfg,
		log:  e.log,
		mode: runMode{serves: serves},
		in: inputs{
			batches:      make(chan podconfig.Batch),
			hints:        make(chan pod.Key),
			ready:        make(chan pod.RuntimeReady),
			reports:      make(chan report),
			healthChecks: e.healthChecks,
			operations:   e.operations,
			halts:        e.halts,
			pressures:    e.pressures,
		},
		out:     statusOutput{feed: e.feed, listeners: e.cfg.Listeners, reporter: newReporter(e.cfg.Sinks, e.log)},
		pods:    make(map[pod.Key]*entry),
		orphans: make(map[pod.Key]orphan),
		waiting: make(map[pod.Key]bool),
		jobs:    jobs{newLister(), newRotation(), newMeasurement()},

		order:     podOrder{dependents: make(map[pod.Key][]*entry)},
		nodeState: nodeState{halting: halting{halt: e.cfg.Halted}, pressure: pressures{evicted: make(map[pod.Key]bool)}},
	}
	l.nodeState.cpus.writer = newStateWriter(e.cfg)
	if e.cfg.Devices != nil {
		l.in.devices = e.cfg.Devices.Changed()
	}
	if e.cfg.Claims != nil {
		l.in.claims, l.in.health = e.cfg.Claims.Changed(), e.cfg.Claims.HealthChanged()
	}
	l.env = newWorkerEnv(e.cfg, l.in.reports)
	recorder := l.env.recorder
	l.prober = prober.New(notedProbes{e.cfg.Prober}, e.log, func(t prober.Target, reason, message string) {
		message = strings.ReplaceAll(message, t.ContainerID, t.Container.Name) // one event for all that fail alike
		recorder.event(t.Key, t.UID, t.Path, pod.EventWarning, reason, message)
	})
	return l
}

func (l *loop) run(ctx context.Context, wg *sync.WaitGroup) error {
	l.workers = wg
	resync := time.NewTicker(l.cfg.SyncFrequency)
	defer resync.Stop()
	housekeeping := time.NewTicker(housekeepingPeriod)
	defer housekeeping.Stop()
	rotations := time.NewTicker(l.cfg.LogCheck)
	defer rotations.Stop()
	measurements := time.NewTicker(measurementPeriod)
	defer measurements.Stop()
	layersLate := time.NewTimer(layerTimeout)
	defer layersLate.Stop()
	unanswered := time.NewTimer(feed.AnswerTimeout)
	defer unanswered.Stop()
	for {
		select {
		case b := <-l.in.batches:
			l.handleBatch(ctx, b)
		case key := <-l.in.hints:
			l.handleHint(ctx, key)
		case s := <-l.prober.Statuses():
			l.handleProbeStatus(ctx, s)
		case <-resync.C:
			l.resync(ctx)
		case <-housekeeping.C:
			l.housekeep(ctx)
		case <-rotations.C:
			l.rotate(ctx)
		case <-measurements.C:
			l.measure(ctx)
		case found := <-l.jobs.measurement.found:
			l.handleMeasured(ctx, found)
		case <-l.jobs.measurement.done:
			l.jobs.measurement.running = false
		case answer := <-l.in.healthChecks:
			answer <- l.hungWorker(time.Now())
		case o := <-l.in.operations:
			l.handleOperation(ctx, o)
		case r := <-l.in.halts:
			l.handleHalt(ctx, r)
		case <-l.nodeState.halting.again:
		case <-l.in.devices:
			l.handleDevices(ctx)
		case <-l.in.claims:
			l.handleDevices(ctx)
		case <-l.in.health:
			l.handleHealth()
		case now := <-l.in.pressures:
			l.handlePressure(ctx, now)
		case <-layersLate.C:
			l.start.late = true
			l.begin(ctx)
		case <-unanswered.C:
			l.noteUnanswered()
		case r := <-l.in.ready:
			l.handleReady(ctx, r)
		case r := <-l.in.reports:
			l.handleReport(ctx, r)
		case found := <-l.jobs.lister.done:
			l.handleListing(ctx, found)
		case <-ctx.Done():
			return ctx.Err()
		}
		if l.nodeState.freed {
			l.nodeState.freed = false
			l.admit(ctx)
		}
		l.continueHalt()
		l.flush(ctx)
		l.noteAllReported(ctx)
		if l.mode.finished != nil && l.mode.finished() {
			return nil
		}
	}
}

// handleBatch sends each worker the newest spec of its pod, if an update of the batch names the pod.
// The op of an update does not matter (C-1.14.5).
func (l *loop) handleBatch(ctx context.Context, b podconfig.Batch) {
	l.logState(b.State)
	l.state = b.State
	if !l.start.dispatching() {
		l.begin(ctx)
		return
	}
	admit := false
	for _, u := range b.Updates {
		l.log.Debug("Pod update", "op", string(u.Op), "source", u.Source, "pods", len(u.Pods))
		for _, spec := range u.Pods {
			want := l.state.Pod(spec.Key)
			l.want(ctx, spec.Key, want)
			admit = true
		}
	}
	waited := len(l.waiting)
	// If a layer's answer equals its restored set, no update names the pods that wait for it.
	for _, key := range sortedKeys(l.waiting) {
		l.want(ctx, key, l.state.Pod(key))
	}
	if admit || len(l.waiting) < waited {
		l.admit(ctx)
	}
	l.judgeOrphans(ctx)
}

// want sets the desired spec of the pod, nil for none, and updates its worker.
func (l *loop) want(ctx context.Context, key pod.Key, want *pod.Spec) {
	e := l.pods[key]
	if want == nil {
		delete(l.waiting, key)
		if e == nil {
			return
		}
		e.next = nil
	} else if e == nil || l.waiting[key] {
		if want = l.specToRun(ctx, key, want); want == nil {
			return
		}
	}
	terminated := false
	if e == nil {
		o, onNode := l.orphans[key]
		e = l.addEntry(key)
		// A pod that was found on the node stays admitted (C-1.31.5). If its spec was not
		// recorded and the desired UID is another one, admission judges the pod.
		e.admitted, e.allocated = onNode && !o.revived && (o.Spec != nil || o.Is(want)), o.Spec
		e.podCPUs = o.podCPUs
		e.hold(o.uids()...)
		terminated = o.Terminated() && o.Is(want)
	}
	if e.want == want && e.updates != nil {
		return
	}
	if e.want == nil && want != nil && e.updates != nil { // added again while it is being removed: a new instance (F49)
		e.next = want
		return
	}
	if e.ended && want != nil && e.mayRunAgain(want) {
		if was := e.counted(); was != nil {
			e.hold(was.UID())
		}
		e.admitted, e.ended, e.placed = false, false, nil // admission decides
		e.refused.final = false
	}
	l.forgetOrder(e)
	e.want = want
	if want != nil {
		l.env.sweep.add(want.UID()) // before its worker starts, which makes the directory
		e.lastWant = want
		e.ended = e.ended || terminated
	} else {
		e.refused = refusal{}
		if e.updates == nil { // never admitted: there is nothing to stop
			l.drop(e, nil)
			return
		}
	}
	delete(l.orphans, key)
	l.noteOrder(e)
	l.queueUpdate(e, true)
}

// addEntry adds a pod to the loop's table.
func (l *loop) addEntry(key pod.Key) *entry {
	l.ids.entry++
	e := &entry{key: key, seq: l.ids.entry, since: time.Now()}
	l.pods[key] = e
	return e
}

func (l *loop) handleHint(ctx context.Context, key pod.Key) {
	if key == (pod.Key{}) {
		l.updateAll(ctx)
		l.jobs.lister.all = true
		return
	}
	if e := l.pods[key]; e != nil {
		if e.updates != nil {
			l.queueUpdate(e, false)
		}
		return
	}
	if o, known := l.orphans[key]; !known || l.isForeign(o) {
		l.jobs.lister.hinted[key] = true
	}
}

// updateAll queues an update for every worker.
func (l *loop) updateAll(ctx context.Context) {
	for _, e := range l.pods {
		if e.updates != nil {
			l.queueUpdate(e, false)
		}
	}
}

// resync has the worker of each pod that is not settled read the pod again. A settled pod needs no
// resync: pleg lists all sandboxes and containers, and sends a hint for each difference.
func (l *loop) resync(ctx context.Context) {
	for _, e := range l.pods {
		if e.updates != nil && (e.last == nil || !e.last.settled) {
			l.queueUpdate(e, false)
		}
	}
}

// handleProbeStatus stores a changed probe status, and has the pod's worker get it.
func (l *loop) handleProbeStatus(ctx context.Context, s prober.Status) {
	e := l.pods[s.Key]
	if e == nil {
		return
	}
	of := &e.health.Ready
	switch s.Kind {
	case pod.Liveness:
		of = &e.health.Live
	case pod.Startup:
		of = &e.health.Started
	}
	next := maps.Clone(*of) // the worker may read the old map now
	if next == nil {
		next = make(map[string]pod.ProbeStatus)
	}
	next[s.Container] = s.ProbeStatus
	*of = next
	if e.updates != nil {
		l.queueUpdate(e, false)
	}
}

// handleReady stores the readiness of the runtime. The first time that the runtime is ready, it
// makes the first listing. After a later change, all workers read their pods.
func (l *loop) handleReady(ctx context.Context, r pod.RuntimeReady) {
	was := l.runtime
	l.runtime = r
	l.noteReady(r)
	switch {
	case !r.Runtime:
		l.log.Warn("Container runtime is not ready", "reason", r.RuntimeMessage)
	case !r.Network:
		l.log.Warn("Pod network is not ready", "reason", r.NetworkMessage)
	default:
		l.log.Info("Container runtime is ready")
	}
	switch {
	case !l.start.adopted() && r.Runtime:
		l.listAll(ctx)
	case l.start.adopted() && (was.Runtime != r.Runtime || was.Network != r.Network):
		l.updateAll(ctx)
	}
}

// setTargets gives the prober the targets of a pod when they have changed.
func (l *loop) setTargets(ctx context.Context, e *entry, list []prober.Target) {
	if slices.EqualFunc(list, e.targets, prober.Target.Equal) {
		return
	}
	e.targets = list
	l.prober.SetTargets(ctx, e.key, list)
}

// sorted returns the entries in the order in which the loop first knew their pods.
func (l *loop) sorted() []*entry {
	return slices.SortedFunc(maps.Values(l.pods), func(a, b *entry) int { return cmp.Compare(a.seq, b.seq) })
}

func sortedKeys[V any](m map[pod.Key]V) []pod.Key {
	return slices.SortedFunc(maps.Keys(m), pod.Key.Compare)
}
