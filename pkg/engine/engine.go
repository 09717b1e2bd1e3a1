// Package engine runs pods. A sync loop dispatches the reports of podconfig, the runtime and the
// probes. One worker per pod reads the pod, calls plan.Next and does the steps.
//
// It has two entry points: Run (serve) and Once (runonce). Both run the same loop; runMode
// lists how they differ. Commands that change nothing use other packages: merge --dry-run uses
// forecast, watch uses feed.
//
// Numbers such as F26, I6 and C-1.31.5 are explained in docs/contract.md; the words of the
// engine, such as layer and ready, in docs/architecture.md.
//
// The goroutines, and the data that each owns:
//
//	sync loop         the pods' table, the merged state, health and admission
//	worker            its pod's record, failed steps and status
//	prober            the probes' heap and counters
//	start limiter     the start slots
//	reporter          the statuses that a sink has not taken yet
//	last good writer  the sets that are not on the disk yet
//	state writer      the newest state files of CPUs and memory; only with a policy for them
//	mover             the CPUs that containers have to move to; only with a policy for CPUs
//	runtime check     the last answer of the runtime
//	jobs of the loop  one round each: a listing, the rotation of logs, the measurement of
//	                  volumes, the sweep
//	stops, calls      one stop of a container, or one call that may hang, for a worker
//
// Two goroutines pass the batches of podconfig and the hints of pleg to the sync loop. The feed
// has no goroutine: it shows statuses to readers, behind a lock that is never held while
// waiting.
//
// The channels, with their capacity, from the sender to the receiver. A send on a channel of
// capacity 1 never waits.
//
//	batches   0  podconfig's goroutine → sync loop; blocks: a slow loop slows sources
//	hints     0  pleg's goroutine → sync loop; pleg coalesces while it waits
//	ready     0  runtime check → sync loop; blocks
//	reports   0  workers → sync loop; the loop never waits for a worker
//	updates   1  sync loop → one worker; full: the older update is replaced
//	probe statuses
//	          0  prober → sync loop, in a select that also receives targets
//	targets   0  sync loop → prober; the prober always receives
//	files     1  sync loop → state writer; full: the older files are replaced
//	moves     1  sync loop → mover; full: the older CPUs are replaced
//	missed    1  workers → mover; full: a round is due already
//	queue     1  podconfig's goroutine → last good writer; full: the sender takes the older
//	             sets back and merges them
//	reporter's statuses
//	          1  sync loop → reporter; full: the sender takes the older batch back and merges it
//	requests, withdrawals, releases
//	          0  workers → start limiter, which always receives
//	granted   1  start limiter → the worker that asked; one send for each request
//	healthChecks
//	          0  Healthy → sync loop, which answers on a channel of capacity 1
//	halts     0  Halt, Resume → sync loop, which closes the request's channel at the end
//	operations
//	          0  Restart, Delete, Evict → sync loop; it, or the worker, answers on a channel of
//	             capacity 1
//	pressures 0  SetPressure → sync loop
//	devices, claims
//	          1  Devices.Changed, Claims.Changed → sync loop; full: already signalled
//	lister.done, rotation.done, measurement.done
//	          0, 1, 1
//	             a round of a periodic job → sync loop; there is one round of each at a time
//	measurement.found
//	          0  a measurement of volumes → sync loop
//	results   0  stops → their worker, which receives until all have ended
//	done      1  a call that may hang → its worker, which waits for it
//
// A hint is not state: after a hint the loop and the workers read the state.
package engine

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/activity"
	"github.com/nodectl/nodectl/pkg/backoff"
	"github.com/nodectl/nodectl/pkg/cpuset"
	"github.com/nodectl/nodectl/pkg/feed"
	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
)

// Sink receives statuses. One goroutine calls it.
type Sink interface {
	// Report takes a pod with its newest status. After an error the reporter keeps the status
	// and sends it again, or a newer one of that pod. It logs the first error. It logs another
	// one only after the sink has taken everything.
	Report(r pod.StatusReport) error
}

// Config is the configuration of an Engine. Every field without a default or a meaning of nil is
// required.
type Config struct {
	PodConfig *podconfig.PodConfig
	Runtime   Runtime
	Hints     Hints
	Volumes   Volumes
	Cgroups   Cgroups // nil: pods have no cgroups of their own
	Users     Users   // nil: no pod has users of its own
	Devices   Devices // nil: no plugin serves devices
	Claims    Claims  // nil: no driver prepares claims
	Records   Records
	Sets      Sets // nil: no last good set is written
	Prober    Prober
	Sinks     []Sink // may wait, such as for a disk: the reporter calls them
	Listeners []Sink // must neither wait nor fail: the sync loop calls them
	Events    Events // nil: events are dropped
	// Activity is the board on which the engine notes its current work for each pod; nil: it notes
	// nothing.
	Activity *activity.Board
	// NoClusterDNS gives the node's name servers to pods that ask for the cluster's; an event
	// of the pod says so.
	NoClusterDNS bool
	Log          *slog.Logger

	// Before holds the last reported status of each pod, from the journal, so that transition
	// times and readiness survive a restart of the agent.
	Before map[pod.Key]v1.PodStatus

	Node plan.Node
	// CPUs allocates exclusive CPUs and NUMA memory to containers, and aligns their devices with these; nil:
	// no policy does.
	CPUs *cpuset.Allocator
	// SaveCPUs writes the state files (cpuset.State.Files); nil: they are not written.
	SaveCPUs func(files map[string][]byte) error
	// NodeSeen returns the labels and taints of this node's object at an API server; ok is
	// false until the agent has read that object. nil: there is no API server.
	NodeSeen func() (labels map[string]string, taints []v1.Taint, ok bool)
	// Worked is a metrics callback: workers call it with the duration of a plan's steps.
	// operation is kill if the plan stops the pod. It is create if the runtime showed nothing of
	// the pod, else sync. Many goroutines call Worked; it must not wait. nil: not measured.
	PodWorkerDuration func(operation string, took time.Duration)

	// WorkerStarted is a metrics callback: the sync loop calls it when it starts a pod's worker.
	// took is the time since the loop first knew the pod. nil: not measured.
	WorkerStarted func(took time.Duration)

	// Synced is called once by the sync loop, when every source has answered and every pod
	// that the loop knows has a status. It must not block; may be nil.
	Synced func()

	HostIPs     []string // of this node; the first one is the pod IP of host-network pods
	RuntimeName string   // prefix of container IDs in status: "containerd"

	// RequireSourceReady names the kinds of source whose pods start only after their source
	// has answered this agent. An earlier agent's record does not suffice: a pod of an API
	// server may run on another node by now. Running containers of such a pod continue.
	RequireSourceReady map[string]bool

	// Forbids returns the reason why no container of a pod may start or restart; "" if they
	// may. The spec comes from a source or a record. Running containers continue. Many
	// goroutines call it; nil: everything may start.
	Forbids func(want *pod.Spec) string

	// Workloads are those of the set that Once runs; nil: there are none.
	Workloads Workloads

	// Visible reports whether pods of one kind of source may name the objects of another;
	// nil: only those of their own kind. A pod waits with its stop for a dependent pod only
	// if the dependent may name the objects of its source.
	Visible podconfig.Visible

	// Services returns the services whose addresses go into the environments of a namespace's
	// pods. They are those of the namespace, and those that the pods of every namespace get. An
	// error says that they are not known yet (C-1.38.1). nil: there are none.
	Services func(namespace string) ([]*v1.Service, error)
	// ServicesForAll says that all pods get Services; else only the pods of an API server do.
	ServicesForAll bool
	// Desired is called with each new desired set, before a pod changes for it. It must not
	// wait. nil: not called.
	Desired func(*podconfig.Merged)

	// Layers returns the bytes in the writable layers of running containers, by the pod's UID
	// and the container's name. nil: limits.ephemeral-storage is not enforced.
	Layers func(ctx context.Context) (map[string]map[string]int64, error)
	// NoStorageLimits says that no limit of a pod's disk is enforced.
	NoStorageLimits bool

	Logs       Logs          // nil: logs are not rotated
	LogCheck   time.Duration // how often the sizes of logs are checked (C-1.43.1); default 10 s
	LogWorkers int           // logs that are rotated at the same time; default 1

	// Halted is the halt of the node that an earlier agent began; nil: there is none. Call Halt
	// with it to get the channel that is closed at its end.
	Halted *Halt

	MaxBackoff    time.Duration // cap of the crash back-off; default 5 min
	SyncFrequency time.Duration // how often workers read pods that are not settled without a hint; default 1 min
	ReadyCheck    time.Duration // how often the agent checks a runtime that is ready; default 15 s
	Starts        int           // the first limit of pods that start at once, see startlimit; default GOMAXPROCS plus one

	next func(plan.View) plan.Plan // plan.Next; a test can block it
}

// Engine keeps pods as their sources define them. Make one with New; call one of its entry
// points, once.
type Engine struct {
	cfg  Config
	log  *slog.Logger
	feed *feed.Publisher

	healthChecks chan chan error             // capacity 0: Healthy → sync loop
	operations   chan *operation             // capacity 0: Restart, Delete, Evict → sync loop
	pressures    chan []v1.NodeConditionType // capacity 0: SetPressure → sync loop
	halts        chan haltRequest
}

// New returns an Engine; nothing starts before Run or Once.
func New(cfg Config) *Engine {
	if cfg.SyncFrequency <= 0 {
		cfg.SyncFrequency = time.Minute
	}
	if cfg.LogCheck <= 0 {
		cfg.LogCheck = defaultLogCheck
	}
	cfg.LogWorkers = max(cfg.LogWorkers, 1)
	if cfg.ReadyCheck <= 0 {
		cfg.ReadyCheck = 15 * time.Second
	}
	if cfg.Starts <= 0 {
		cfg.Starts = runtime.GOMAXPROCS(0) + 1
	}
	if cfg.RuntimeName == "" {
		cfg.RuntimeName = "containerd"
	}
	if cfg.next == nil {
		cfg.next = plan.Next
	}
	publisher := feed.NewPublisher(nil)
	if cfg.PodConfig != nil { // Once has none
		publisher = feed.NewPublisher(cfg.PodConfig.Layers())
	}
	return &Engine{cfg: cfg, log: cfg.Log, feed: publisher, healthChecks: make(chan chan error), operations: make(chan *operation), pressures: make(chan []v1.NodeConditionType), halts: make(chan haltRequest)}
}

// Live returns the feed of this engine for readers. The feed exists before, during and after Run,
// and changes during Run.
func (e *Engine) Live() *feed.Live { return e.feed.Live() }

// Run keeps pods as their sources define them until ctx is done. It adopts running pods, and
// stops orphaned pods (see judgeOrphans). When ctx is done, it returns nil, and running
// containers continue.
func (e *Engine) Run(ctx context.Context) error {
	l := e.newLoop(true)
	e.feed.Begin(time.Now())
	defer e.feed.End()
	return e.run(ctx, l, func(ctx context.Context, out chan<- podconfig.Batch) {
		var written sync.WaitGroup
		defer written.Wait()
		keep := func(podconfig.Batch) {}
		if e.cfg.Sets != nil {
			w := newLastGoodWriter(e.cfg.Sets, e.log)
			keep = w.keep
			defer w.close()
			written.Go(w.run)
		}
		for b := range e.cfg.PodConfig.Batches(ctx) {
			keep(b)
			e.feed.PublishBatch(b)
			if e.cfg.Desired != nil {
				e.cfg.Desired(b.State)
			}
			select {
			case out <- b:
			case <-ctx.Done():
				return
			}
		}
	})
}

// run starts all goroutines around a loop and returns when all of them have ended.
func (e *Engine) run(ctx context.Context, l *loop, batches func(context.Context, chan<- podconfig.Batch)) error {
	ctx, cancel := context.WithCancel(e.cfg.Activity.Context(ctx))
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()

	wg.Go(func() { batches(ctx, l.in.batches) })
	wg.Go(func() {
		for key := range e.cfg.Hints.Hints(ctx) {
			select {
			case l.in.hints <- key:
			case <-ctx.Done():
				return
			}
		}
	})
	wg.Go(func() { e.checkReady(ctx, l.in.ready) })
	wg.Go(func() { l.prober.Run(ctx) })
	wg.Go(func() { l.env.starts.Run(ctx) })
	if w := l.nodeState.cpus.writer; w != nil {
		wg.Go(w.run)
		defer w.close()
	}
	if m := l.env.mover; m != nil {
		wg.Go(func() { m.run(ctx) })
	}
	// The reporter outlives the loop, so that the loop's last reports still reach the sinks.
	reported := make(chan struct{})
	wg.Go(func() { defer close(reported); l.out.reporter.run() })
	err := l.run(ctx, &wg)
	l.out.reporter.close()
	<-reported
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// checkReady checks whether the runtime and its network are ready, more often while one of them is
// not. It sends the first answer, and each answer in which one of the two has changed. A change of a
// message alone is not sent.
func (e *Engine) checkReady(ctx context.Context, out chan<- pod.RuntimeReady) {
	var last pod.RuntimeReady
	first, down := true, 0
	for {
		r, err := e.cfg.Runtime.Ready(ctx)
		if err != nil {
			r = pod.RuntimeReady{RuntimeMessage: err.Error()}
		}
		if ctx.Err() != nil {
			return
		}
		if first || r.Runtime != last.Runtime || r.Network != last.Network {
			select {
			case out <- r:
			case <-ctx.Done():
				return
			}
			first, last = false, r
		}
		wait := e.cfg.ReadyCheck
		if !r.Runtime || !r.Network {
			down++
			wait = min(backoff.After(down, 100*time.Millisecond, time.Second), wait)
		} else {
			down = 0
		}
		if !backoff.Sleep(ctx, wait) {
			return
		}
	}
}
