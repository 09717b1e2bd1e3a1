package engine

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/activity"
	"github.com/nodectl/nodectl/pkg/backoff"
	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podview"
)

// worker owns one pod: it reads the pod, calls plan.Next, does the steps, and reads the pod again.
type worker struct {
	env     *workerEnv
	key     pod.Key
	seq     uint64
	uid     string         // see entry.uid; "" after forgetOrphanDir
	updates chan podUpdate // closed by the loop when the pod is gone
	log     *slog.Logger
	update  podUpdate

	rec          instanceRecord
	failedSteps  failedSteps
	created      map[string]string // container name → ID of the newest container that this worker created
	reported     reported
	last         observation // of the pod
	acked        uint64      // the newest operation that it has acknowledged
	slot         bool        // it has a start slot
	lowered      lowered
	emptyCheck   emptyCheck
	progress     progress
	panics       []time.Time // of the last minute
	forbiddenFor forbiddenFor
	// planningSince is when plan.Next was called, in Unix nanoseconds; 0 while it does not
	// run. The sync loop reads it.
	planningSince *atomic.Int64
}

// troubles are the steps that failed.
type failedSteps struct {
	byContainer map[string]pod.Failure // the steps that set up, start or change something; "" is the pod
	step        map[string]plan.Action // the step that failed, by the same key
	failures    int                    // consecutive failures to read the pod, or to stop or remove something of it
	early       backoff.Pace           // limits how often a change of devices brings a try forward
	stopFailure pod.Failure            // the last failure to stop or remove something of the pod

	// leftBehind says that a call hangs while the agent exits: the worker must return, see call.
	leftBehind bool
}

func newFailedSteps() (t failedSteps) {
	t.early = backoff.Pace{First: 200 * time.Millisecond, Last: 10 * time.Second, Calm: time.Minute}
	t.reset()
	return t
}

// reset forgets the failed steps. failures and stopFailure stay.
func (t *failedSteps) reset() {
	t.byContainer, t.step = make(map[string]pod.Failure), make(map[string]plan.Action)
}

// reported is the last report of the worker.
type reported struct {
	pod            *v1.Pod
	status         v1.PodStatus // the input "before" of the next status; before the first report that of the journal
	reportMetadata reportMetadata
	events         sentEvents
}

// emptyCheck makes the worker read a pod again when the runtime shows nothing of it although it
// should (F26).
type emptyCheck struct {
	expected   bool      // the runtime or the record has shown the pod, and the worker has not removed its sandbox
	emptySince time.Time // when reads began to show nothing; zero: the last one showed something
}

// progress counts how often the worker has repeated the same steps.
type progress struct {
	steps   string // the steps that the worker did last
	repeats int    // how often it has repeated them
}

// observation is the result of the last read of the pod. Operations that arrive before the next read
// apply to it.
type observation struct {
	looked     bool // the worker has read the pod
	empty      bool // the runtime shows nothing of it
	uid        string
	runs       bool  // a container or the sandbox runs
	grace      int64 // of the pod, in seconds
	containers map[string]containerRun
}

// containerRun is the newest run of a container.
type containerRun struct {
	id    string
	state pod.ContainerState
}

// storeObservation stores the result of a read.
func (w *worker) storeObservation(have pod.Actual) {
	w.last = observation{looked: true, empty: have.Empty(), uid: have.UID, runs: podview.Running(have) || podview.MayRun(have), grace: podview.Grace(w.rec.Want, nil, have), containers: make(map[string]containerRun, len(have.Containers))}
	for name, c := range have.Containers {
		w.last.containers[name] = containerRun{c.ID, c.State}
	}
}

// observe reads the pod. If ok is false, the worker has to read again; if over is true, it has to
// return.
func (w *worker) observe(ctx context.Context) (have pod.Actual, ok, over bool) {
	have, err := w.env.runtime.Pod(ctx, w.key)
	if ctx.Err() == nil {
		w.reportUnread(err)
	}
	if err != nil {
		w.freeSlot(ctx)
		w.log.Debug("Failed to read pod from runtime", "error", err)
		delay := w.failed()
		w.noteState(plan.Plan{WaitFor: "the pod cannot be read: " + err.Error()}, delay)
		return have, false, !w.wait(ctx, delay)
	}
	if !w.rec.loaded {
		w.loadRecord(have.UID)
		w.rec.loaded = true
		w.emptyCheck.expected = w.rec.Instance > 0
	}
	if !w.emptyCheck.confirm(have, time.Now()) {
		w.log.Warn("Runtime no longer shows the pod; reading it again to confirm")
		w.freeSlot(ctx)
		return have, false, !w.pause(ctx, emptyPause)
	}
	w.rec.catchUp(have)
	w.storeObservation(have)
	w.acknowledge()
	w.noteHalt()
	return have, true, false
}

func (w *worker) run(ctx context.Context) {
	w.rec.loaded = false
	for ctx.Err() == nil {
		have, ok, over := w.observe(ctx)
		if over {
			return
		}
		if !ok {
			continue
		}
		view := w.view(ctx, have)
		if w.failedSteps.leftBehind {
			return
		}
		w.planningSince.Store(time.Now().UnixNano())
		p := w.env.next(view)
		w.planningSince.Store(0)
		if view.StopWaits != "" && p.Stopping && view.Record.StopSince.IsZero() && !view.StopUntil.After(view.Now) {
			w.log.Warn("Stopping pod although a pod that depends on it is not gone; the wait timed out", "wait", view.StopWaits)
		}
		if ok, over = w.beforeReport(ctx, view, p); over {
			return
		}
		if !ok {
			continue
		}
		if p.Gone {
			w.forgetOrphanDir(ctx)
		}
		if !slices.ContainsFunc(p.Steps, func(s plan.Step) bool { return !isStartStep(s) }) {
			w.failedSteps.stopFailure = pod.Failure{} // nothing is left to stop or remove
		}
		w.reportWaits(view, p)
		w.noteState(p, p.Wait)
		if !w.sendReport(ctx, view, p) {
			return
		}
		if p.Gone {
			if !w.waitForUpdate(ctx) {
				return
			}
			continue
		}
		if len(p.Steps) == 0 {
			w.progress = progress{}
			if w.lower(view, p) {
				continue
			}
		}
		did, retry := w.doTimed(ctx, view, p)
		if w.failedSteps.leftBehind {
			return
		}
		if did == acted && w.progress.loops(p.Steps) {
			w.freeSlot(ctx)
			if !w.pause(ctx, retryDelay(w.progress.repeats)) {
				return
			}
			continue
		}
		if did == acted || did == stale || did == failed && retry == 0 {
			w.applyPending()
			continue
		}
		w.freeSlot(ctx)
		w.save()
		next := w.nextLook(p.Wait, retry)
		if did == failed {
			w.noteState(p, next)
		}
		if !w.wait(ctx, next) {
			return
		}
	}
}

// nextLook returns how long the worker waits for an update before it reads the pod again; 0 is
// without limit. The result is the shortest of the plan's wait and the delays after a failed step, a
// failed lower and a failed save.
func (w *worker) nextLook(wait, retry time.Duration) time.Duration {
	if w.lowered.err != "" && retry == 0 {
		retry = lowerRetry
	}
	if retry > 0 && (wait == 0 || retry < wait) {
		wait = retry
	}
	if w.rec.dirty && w.rec.Instance > 0 && (wait == 0 || wait > saveRetry) { // a record without an instance is not written
		wait = saveRetry
	}
	return wait
}

// emptyPause is how long the runtime has to show nothing of an expected pod before the worker takes
// the pod as gone (F26).
const emptyPause = time.Second

// confirm reports whether the worker may act on its last reading. If the reading shows nothing of an
// expected pod, confirm returns false until readings have shown nothing for emptyPause.
func (p *emptyCheck) confirm(have pod.Actual, now time.Time) bool {
	switch {
	case !have.Empty():
		p.expected, p.emptySince = true, time.Time{}
	case p.expected && p.emptySince.IsZero():
		p.emptySince = now
		return false
	case p.expected && now.Sub(p.emptySince) < emptyPause:
		return false
	default:
		p.expected, p.emptySince = false, time.Time{}
	}
	return true
}

// loops reports whether the same steps have succeeded repeatedly without effect, so that the worker
// has to pause before it repeats them. For example, the runtime reports success but does nothing, or
// a sandbox exits as soon as it is made.
func (p *progress) loops(steps []plan.Step) bool {
	if len(steps) == 1 && steps[0].Action == plan.SetUpVolumes {
		return false // a source may change the content of volumes at any rate
	}
	var b strings.Builder
	for _, s := range steps {
		b.WriteString(string(s.Action) + " " + s.Container + "\n")
	}
	if text := b.String(); text != p.steps {
		p.steps, p.repeats = text, 0
		return false
	}
	p.repeats++
	return p.repeats > 1
}

// view collects the input of the planner.
func (w *worker) view(ctx context.Context, have pod.Actual) plan.View {
	want := w.update.want
	if want != nil && w.rec.UID != want.UID() && w.rec.Instance == 0 && have.Empty() {
		w.rec.clear(w.key) // the record is of another pod of this name, which never ran here
	}
	w.rec.raiseAttempts(have)
	w.rec.forgetNotes(have)
	w.rec.catchUp(have)
	if w.rec.UID == "" {
		if want != nil {
			w.rec.UID = want.UID()
		} else {
			w.rec.UID = have.UID
		}
	}
	volumes := func(want *pod.Spec, instance int) (put, current bool, until time.Time) {
		// A network file system can hang: the start slot must not wait for it.
		_ = w.call(ctx, w.env.starts.SlotTimeout(), nil, func() error {
			defer activity.Begin(ctx, activity.Call{Kind: activity.Volume, Name: "check volumes"})()
			put, current, until = w.env.volumes.Ready(want, instance)
			return nil
		})
		return put, current, until
	}
	forbidden := w.update.halt.Message
	if forbidden == "" || deleting(want) {
		forbidden = cmp.Or(w.forbidden(want), w.update.unplaced.message)
	}
	v := plan.NewView(want, have, w.rec.Record, forbidden, volumes, time.Now())
	v.VolumesLeft = want != nil && !v.VolumesReady && w.env.volumes.HasDriverVolumes(want.UID())
	v.Blockers = plan.Blockers{
		Failures:  w.failedSteps.byContainer,
		NoNetwork: !w.update.network,
		Refused:   w.update.refused.message,
		Waits:     w.update.waits,
		StopWaits: w.update.stopWaits,
		StopUntil: w.update.stopUntil,
	}
	v.Health, v.MaxBackoff, v.Disabled = w.update.health, w.env.maxBackoff, w.env.disabled
	return v
}

// endedAtServer reports whether a pod's API server shows it as terminated.
func endedAtServer(want *pod.Spec) bool { return want != nil && want.EndedAtServer() }

// deleting reports whether a pod's source shows it as being deleted.
func deleting(want *pod.Spec) bool { return want != nil && want.Pod.DeletionTimestamp != nil }
