package engine

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/status"
)

// letter is all that the sync loop has to tell a worker: always everything,
// always the newest, so that losing or repeating one is harmless.
type letter struct {
	gen     uint64
	want    *pod.Spec // nil: the pod has to go
	asked   *pod.Spec // want, but with the resources that it asks for and is not given
	refused refusal
	health  pod.Health
	network bool
	runtime bool // it is ready to make things
	// resize is why the pod does not get the resources it asks for now.
	resize refusal
	// waits and stopWaits name the pod that has to come, or go, before this one.
	waits, stopWaits string
}

// refusal is admission's word; the zero one lets the pod in.
type refusal struct {
	reason, message string
	final           bool // the pod has Failed: it is not judged again
}

// worker owns one pod: it looks, asks plan.Next, does the steps, and looks
// again when it has acted.
type worker struct {
	*loop
	key    pod.Key
	seq    uint64
	uid    string      // of a pod found on the node that nobody wants
	mail   chan letter // closed by the loop when the pod is gone
	log    *slog.Logger
	letter letter

	rec       pod.Record
	recDirty  bool
	saveErr   error
	saveTried bool // since the last report
	trouble   map[string]pod.Trouble
	created   map[string]string // container name → ID made and not yet seen
	before    v1.PodStatus
	lastPod   *v1.Pod
	slot      bool
	failures  int                    // of looking, stopping and removing, in a row
	failing   map[string]plan.Action // what the trouble of this name is about
	expect    bool                   // a look showed something, and it was not removed since
	doubt     time.Time              // since when looks show nothing of it all the same
	lastSteps string                 // done last
	repeats   int                    // of lastSteps, in a row
	panics    []time.Time            // of the last minute
	thinking  atomic.Int64           // since when it decides, Unix nanoseconds; 0: it does not
}

func (w *worker) run(ctx context.Context) {
	loaded := false
	for ctx.Err() == nil {
		have, err := w.cfg.Runtime.Pod(ctx, w.key)
		if err != nil {
			w.freeSlot(ctx)
			w.log.Debug("Pod not read", "error", err)
			if !w.wait(ctx, w.failed()) {
				return
			}
			continue
		}
		if !loaded {
			w.loadRecord(have.UID)
			loaded = true
			w.expect = w.rec.Instance > 0
		}
		if !w.believe(have) {
			w.log.Warn("Runtime shows nothing of a pod it showed before; it is asked again")
			w.freeSlot(ctx)
			if !w.pause(ctx, emptyPause) {
				return
			}
			continue
		}
		view := w.view(have)
		w.thinking.Store(time.Now().UnixNano())
		p := w.cfg.next(view)
		w.remember(view, p)
		w.thinking.Store(0)
		if p.Gone {
			w.forgetRest()
		}
		if !w.tell(ctx, view, p) {
			return
		}
		if p.Gone {
			if !w.waitForNews(ctx) {
				return
			}
			continue
		}
		if len(p.Steps) == 0 {
			w.lastSteps = ""
		}
		did, retry := w.do(ctx, view, p)
		if did == acted && w.circles(p) {
			w.freeSlot(ctx)
			if !w.pause(ctx, retryDelay(w.repeats)) {
				return
			}
			continue
		}
		if did == acted || did == stale || did == failed && retry == 0 {
			w.takeMail()
			continue
		}
		w.freeSlot(ctx)
		w.save()
		wait := p.Wait
		if retry > 0 && (wait == 0 || retry < wait) {
			wait = retry
		}
		if w.recDirty && (wait == 0 || wait > saveRetry) {
			wait = saveRetry
		}
		if !w.wait(ctx, wait) {
			return
		}
	}
}

// saveRetry is how long a record that could not be written is left alone.
const saveRetry = time.Minute

// emptyPause is how long an empty answer about a pod that was there a moment ago
// has to last to be believed (F26).
const emptyPause = time.Second

// believe reports whether a look may be acted on: a runtime that shows nothing of
// a pod it showed before, and that this worker has not removed, is asked twice.
func (w *worker) believe(have pod.Actual) bool {
	switch {
	case !have.Empty():
		w.expect, w.doubt = true, time.Time{}
	case w.expect && w.doubt.IsZero():
		w.doubt = time.Now()
		return false
	case w.expect && time.Since(w.doubt) < emptyPause:
		return false
	default:
		w.expect, w.doubt = false, time.Time{}
	}
	return true
}

// waitForNews blocks until a letter is newer than the one on which the pod was
// found gone; the loop may be about to forget this worker, and pokes for it may
// lie in the box.
func (w *worker) waitForNews(ctx context.Context) bool {
	w.freeSlot(ctx)
	for gen := w.letter.gen; w.letter.gen == gen; {
		if !w.wait(ctx, 0) {
			return false
		}
	}
	return true
}

// circles reports whether the same steps have been done over and over, each time
// with success and without effect: a runtime that does not do what it says, or a
// sandbox that ends as soon as it is made, must not go on without a pause.
func (w *worker) circles(p plan.Plan) bool {
	var b strings.Builder
	for _, s := range p.Steps {
		b.WriteString(string(s.Action) + " " + s.Container + "\n")
	}
	if text := b.String(); text != w.lastSteps {
		w.lastSteps, w.repeats = text, 0
		return false
	}
	w.repeats++
	return w.repeats > 1
}

// wait blocks until there is mail, d has passed (never, for d = 0), or the end;
// it returns false at the end.
func (w *worker) wait(ctx context.Context, d time.Duration) bool {
	var due <-chan time.Time
	if d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		due = t.C
	}
	select {
	case l, ok := <-w.mail:
		if ok {
			w.read(l)
		}
		return ok
	case <-due:
		return true
	case <-ctx.Done():
		return false
	}
}

// pause blocks until d has passed, whoever pokes; only another spec, or the end,
// cuts it short. It returns false at the end.
func (w *worker) pause(ctx context.Context, d time.Duration) bool {
	over := time.NewTimer(d)
	defer over.Stop()
	for {
		select {
		case l, ok := <-w.mail:
			if !ok {
				return false
			}
			if w.read(l) {
				return true
			}
		case <-over.C:
			return true
		case <-ctx.Done():
			return false
		}
	}
}

// takeMail reads what lies in the box without waiting, and reports whether it
// asks for another pod than the letter before.
func (w *worker) takeMail() (changed bool) {
	select {
	case l, ok := <-w.mail:
		return ok && w.read(l)
	default:
		return false
	}
}

func (w *worker) read(l letter) (changed bool) {
	changed = l.want != w.letter.want
	if changed && l.want != nil && (w.letter.want == nil || l.want.Hash != w.letter.want.Hash) {
		clear(w.trouble) // another text deserves another try
	}
	w.letter = l
	return changed
}

// failed counts a failure and returns how long to wait before the next try.
func (w *worker) failed() time.Duration {
	w.failures++
	return retryDelay(w.failures)
}

// retryDelay is 200 ms, doubling to 10 s.
func retryDelay(failures int) time.Duration {
	return min(200*time.Millisecond<<min(failures-1, 10), 10*time.Second)
}

// loadRecord reads the record of the instance the runtime shows, or else of the
// pod that is wanted, or else of the one that was found on disk.
func (w *worker) loadRecord(uid string) {
	if uid == "" && w.letter.want != nil {
		uid = w.letter.want.UID()
	}
	if uid == "" {
		uid = w.uid
	}
	rec, ok, err := w.cfg.Records.Load(w.key, uid)
	if err != nil {
		w.log.Warn("Record not read", "error", err)
	}
	if ok {
		w.rec = rec
	} else {
		w.rec = pod.Record{Key: w.key, UID: uid}
	}
	if w.rec.Attempts == nil {
		w.rec.Attempts = make(map[string]uint32)
	}
}

// forgetRest removes what an agent that died early may have left of a pod that
// nothing else shows.
func (w *worker) forgetRest() {
	if w.uid == "" {
		return
	}
	if err := w.cfg.Volumes.Forget(w.key, w.uid); err != nil {
		w.log.Warn("Directory of the pod not removed", "error", err)
	}
	w.uid = ""
}

// save writes the record when it changed. A record that cannot be written costs
// field differences, never a container: the worker goes on.
func (w *worker) save() {
	if !w.recDirty || w.rec.UID == "" || w.rec.Instance == 0 {
		return // nothing of it exists yet
	}
	w.saveTried = true
	if w.saveErr = w.cfg.Records.Save(w.rec); w.saveErr == nil {
		w.recDirty = false
	}
}

// view gathers all that is known of the pod now.
func (w *worker) view(have pod.Actual) plan.View {
	w.raiseAttempts(have)
	w.forgetLives(have)
	w.catchUp(have)
	want := w.letter.want
	if w.rec.UID == "" {
		if want != nil {
			w.rec.UID = want.UID()
		} else {
			w.rec.UID = have.UID
		}
	}
	v := plan.View{
		Want:         want,
		Kept:         w.rec.Want,
		Have:         have,
		Instance:     w.rec.Instance,
		Terminal:     string(w.rec.Terminal),
		Attempts:     w.rec.Attempts,
		Trouble:      w.trouble,
		StopSince:    w.rec.StopSince,
		NetworkReady: w.letter.network,
		Refused:      w.letter.refused.message,
		Waits:        w.letter.waits,
		StopWaits:    w.letter.stopWaits,
		Health:       w.letter.health,
		Lives:        w.rec.Lives,
		Streaks:      w.rec.Streaks,

		RestartingAll: w.rec.RestartingAll,
		StartTime:     w.rec.StartTime,
		MaxBackoff:    w.cfg.MaxBackoff,
		Now:           time.Now(),
	}
	if want != nil {
		v.VolumesReady = w.cfg.Volumes.Ready(want, plan.Instance(v))
	}
	return v
}

// catchUp takes the runtime's word for a newer instance than the record's, which
// could not be written then: what it says is of the one before.
func (w *worker) catchUp(have pod.Actual) {
	b := have.Sandbox
	if b == nil || b.Instance <= w.rec.Instance || w.rec.UID != "" && w.rec.UID != have.UID {
		return
	}
	if w.rec.Instance > 0 {
		w.rec.Want, w.rec.StartTime, w.rec.Streaks, w.rec.RestartingAll = nil, time.Time{}, nil, false
	}
	w.rec.Instance, w.rec.StopSince, w.recDirty = b.Instance, time.Time{}, true
	w.rec.Terminal, w.rec.TerminalReason, w.rec.TerminalMessage = "", "", ""
}

// raiseAttempts keeps the numbers that only rise ahead of what the runtime
// shows, so that they outlive the removal of what carried them.
func (w *worker) raiseAttempts(have pod.Actual) {
	raise := func(name string, next uint32) {
		if next > w.rec.Attempts[name] {
			w.rec.Attempts[name] = next
			w.recDirty = true
		}
	}
	if have.Sandbox != nil {
		raise("", have.Sandbox.Attempt+1)
	}
	for name, c := range have.Containers {
		if c.State == pod.StateCreated {
			raise(name, c.Attempt) // it has not lived
		} else {
			raise(name, c.Attempt+1)
		}
	}
}

// remember puts into the record what this look decided: the spec the instance
// stands for, its end, and since when it stops.
func (w *worker) remember(v plan.View, p plan.Plan) {
	if v.Want != nil && w.rec.Want != v.Want && plan.Instance(v) == v.Instance {
		w.rec.Want, w.recDirty = v.Want, true
	}
	if w.rec.StartTime.IsZero() && v.Want != nil && !deleting(v.Want) {
		w.rec.StartTime, w.recDirty = acknowledged(v.Want), true
	}
	switch {
	case w.rec.Terminal != "":
	case w.letter.refused.final && v.Have.Empty() && v.Want != nil:
		w.refuse(v.Want)
	case p.Ended.Phase != "":
		if w.rec.Instance == 0 { // its API server knows the end of what was never here
			w.beginInstance(v.Want, 1)
		}
		w.rec.Terminal, w.recDirty = v1.PodPhase(p.Ended.Phase), true
		w.rec.TerminalReason, w.rec.TerminalMessage = p.Ended.Reason, p.Ended.Message
	}
	if w.rec.RestartingAll != p.RestartingAll {
		w.rec.RestartingAll, w.recDirty = p.RestartingAll, true
	}
	if p.Stopping && w.rec.StopSince.IsZero() {
		w.rec.StopSince, w.recDirty = v.Now, true
	}
}

// acknowledged is since when an instance of want counts: what its API server has
// heard of it before (C-1.26.17), else now.
func acknowledged(want *pod.Spec) time.Time {
	if t := want.Pod.Status.StartTime; want.Origin.Source == "api" && t != nil {
		return t.Time
	}
	return time.Now()
}

// refuse records a refusal for good as the end of an instance that never was, so
// that no later agent judges the pod again.
func (w *worker) refuse(want *pod.Spec) {
	w.beginInstance(want, max(w.rec.Instance, 1))
	w.rec.Terminal, w.rec.TerminalReason = v1.PodFailed, w.letter.refused.reason
	w.rec.TerminalMessage = status.Rejected + w.letter.refused.message
}

// hasEnded reports whether a pod's API server knows that it has ended.
func hasEnded(want *pod.Spec) bool {
	if want == nil || want.Origin.Source != "api" {
		return false
	}
	phase := want.Pod.Status.Phase
	return phase == v1.PodSucceeded || phase == v1.PodFailed
}

// deleting reports whether a pod's source shows it as being deleted.
func deleting(want *pod.Spec) bool { return want != nil && want.Pod.DeletionTimestamp != nil }
