package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nodectl/nodectl/pkg/activity"
	"github.com/nodectl/nodectl/pkg/boundedcall"
	"github.com/nodectl/nodectl/pkg/panics"
	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podview"
)

// Waiting reasons of a pod whose volumes or configuration are missing.
const (
	reasonMount  = "FailedMount"                // volumes cannot be set up
	reasonConfig = "CreateContainerConfigError" // an environment or mounts cannot be prepared
)

// pullSlotTimeout is how long a pull may keep the start slot that the worker has from an earlier
// step. A pull never requests a slot. If the image is present, the step usually ends within this
// time. Otherwise another pod gets the slot during the pull.
const pullSlotTimeout = 50 * time.Millisecond

// exitPatience is how long a worker waits for a call after the agent began to exit. Package cri
// ends calls to the runtime before that (F4).
const exitPatience = 1700 * time.Millisecond

// result is the result of a plan's steps.
type result int

const (
	idle   result = iota // no step failed; the worker waits for an update, or the agent exits
	acted                // all steps were done
	stale                // the plan is out of date, see errStale
	failed               // a step failed
)

// do runs the steps of a plan in order. It stops at the first failure, or when a newer spec
// or an operation arrives. After a failure, retry is how long the worker waits before it
// reads and plans again. If it is 0, the next plan has the back-off of the failure
// (plan.View.Failures).
func (w *worker) do(ctx context.Context, v plan.View, p plan.Plan) (_ result, retry time.Duration) {
	acked, runtime := w.acked, w.update.runtime
	for i := 0; i < len(p.Steps); {
		w.applyPending()
		if w.acked != acked || !onlyOtherData(w.update.want, v.Want) || p.Steps[i].Action == plan.RunSandbox && w.blockedMeanwhile(v) || isStartStep(p.Steps[i]) && (w.haltedMeanwhile(v) || w.update.runtime != runtime) {
			return stale, 0 // a newer spec or an operation arrived, the pod may not start any more, or the readiness of the runtime changed
		}
		if isStartStep(p.Steps[i]) && !w.update.runtime {
			return idle, 0 // an update comes when the runtime is ready
		}
		if p.Stopping && p.Steps[i].Action != plan.PullImage { // the stop begins after the pull
			w.rec.noteStopping()
		}
		n := 1
		if p.Steps[i].Together {
			for i+n < len(p.Steps) && p.Steps[i+n].Together {
				n++
			}
		}
		step, err := w.doTogether(ctx, v, p.Steps[i:i+n])
		switch {
		case ctx.Err() != nil:
			return idle, 0
		case errors.Is(err, errStale):
			return stale, 0
		case err != nil:
			return failed, w.stepFailed(step, err, p.Stopping)
		}
		if i += n; i < len(p.Steps) && !p.Replacing(i) {
			w.reportReplaced(ctx, v.Want)
		}
	}
	w.failedSteps.failures = 0
	n := len(p.Steps)
	if n == 0 {
		return idle, 0
	}
	if last := p.Steps[n-1].Action; last == plan.StartContainer || last == plan.RunHook {
		w.releaseSlot(ctx, true) // reading the started containers needs no slot
	}
	return acted, 0
}

// reportReplaced reports a static pod as soon as the containers that the plan replaces have stopped.
// The mirror of the pod waits for that report, and the next step may be a long pull or postStart
// hook. It does nothing if a newer spec has arrived, because the next plan reports the pod.
func (w *worker) reportReplaced(ctx context.Context, want *pod.Spec) {
	if !w.reported.reportMetadata.replacing || want.Origin.FromAPI() || !onlyOtherData(w.update.want, want) {
		return
	}
	have, err := w.env.runtime.Pod(ctx, w.key)
	if err != nil || have.Empty() {
		return // the read after the plan shows its state
	}
	v := w.view(ctx, have)
	w.sendReport(ctx, v, plan.Next(v))
}

// onlyOtherData reports whether a and b are equal, or differ only in the data of the objects that
// they name, such as ConfigMaps. The worker then completes its plan, and the next plan handles the
// change. If new data ended a plan, data that changes fast would block all steps.
func onlyOtherData(a, b *pod.Spec) bool {
	return a == b || a != nil && b != nil && a.Pod == b.Pod && a.Hash == b.Hash
}

// blockedMeanwhile reports whether, since the plan was made, the pod has to wait for another one
// or is not admitted any more.
func (w *worker) blockedMeanwhile(v plan.View) bool {
	return w.update.waits != "" && v.Waits == "" || w.update.refused != (refusal{}) && v.Refused == ""
}

// haltedMeanwhile reports whether the node was halted since the plan was made.
func (w *worker) haltedMeanwhile(v plan.View) bool {
	return w.update.halt.Message != "" && v.Forbidden == ""
}

// isStartStep reports whether a step sets up, starts or changes something. All other steps stop,
// remove or tear down something.
func isStartStep(s plan.Step) bool {
	switch s.Action {
	case plan.SetUpVolumes, plan.RunSandbox, plan.PullImage, plan.CreateContainer, plan.StartContainer, plan.RunHook, plan.UpdateContainer:
		return true
	}
	return false
}

// waitsForRuntime reports whether the first step of a plan has to wait until the runtime is ready.
func (w *worker) waitsForRuntime(p plan.Plan) bool {
	return !w.update.runtime && len(p.Steps) > 0 && isStartStep(p.Steps[0])
}

// doTogether runs one step, or several stops in parallel. Before a stop or a removal it frees
// the start slot. It also writes the record, since after the removal of a container only the
// record has its attempt number.
func (w *worker) doTogether(ctx context.Context, v plan.View, steps []plan.Step) (plan.Step, error) {
	for _, s := range steps {
		w.log.Debug("Executing step", "step", s.String())
		switch {
		case s.Killed != "":
			w.log.Info("Stopping container", "container", s.Container, "reason", s.Why)
		case s.Action == plan.CreateContainer && s.Attempt == 0:
			w.log.Info("Starting container", "container", s.Container)
		case s.Action == plan.CreateContainer:
			w.log.Info("Restarting container", "container", s.Container, "restart_count", s.Attempt, "reason", s.Why)
		}
	}
	defer w.beginStep(ctx, steps)()
	if isStartStep(steps[0]) {
		return steps[0], w.start(ctx, v, steps[0])
	}
	w.freeSlot(ctx)
	w.save()
	if steps[0].Action == plan.StopContainer {
		return w.stopContainers(ctx, v, steps)
	}
	return steps[0], w.tearDown(ctx, v.Have, steps[0])
}

// start does a step for which isStartStep is true. It waits for a start slot first, except for a
// pull, see pullSlotTimeout.
func (w *worker) start(ctx context.Context, v plan.View, s plan.Step) error {
	if s.Action == plan.PullImage {
		return w.pull(ctx, v.Want, s.Container)
	}
	w.env.sweep.await(ctx, v.Want.UID())
	if err := w.takeSlot(ctx); err != nil {
		return err
	}
	if s.Action == plan.SetUpVolumes || s.Action == plan.RunSandbox { // a pod without volumes has only the second
		other, err := w.otherOwner(v.Want.UID())
		if err != nil {
			return fmt.Errorf("find the owner of UID %s: %w", v.Want.UID(), err)
		}
		if other != nil {
			return other
		}
	}
	switch s.Action {
	case plan.SetUpVolumes:
		return w.putVolumes(ctx, v, s.Instance)
	case plan.RunSandbox:
		return w.startSandbox(ctx, v, s)
	case plan.CreateContainer:
		return w.create(ctx, v, s)
	}
	id := s.ID
	if id == "" {
		id = w.created[s.Container]
	}
	if id == "" {
		return fmt.Errorf("%s %s: the container was not created", s.Action, s.Container)
	}
	switch s.Action {
	case plan.RunHook:
		return w.postStart(ctx, v, s, id)
	case plan.UpdateContainer:
		return w.resize(ctx, v.Want, s.Container, id)
	}
	if c, _ := v.Want.Container(s.Container); c != nil && c.Lifecycle != nil && c.Lifecycle.PostStart != nil {
		w.rec.setNotes(id, func(notes *pod.ContainerNotes) { notes.PostStart = pod.HookDue })
		w.save() // before the container starts: if this agent is killed, the next one knows that the hook is due
	}
	err := w.startCall(ctx, func() error { return w.env.runtime.StartContainer(ctx, id) })
	if err == nil {
		w.last.containers[s.Container] = containerRun{id, pod.StateRunning}
		delete(w.failedSteps.byContainer, s.Container)
		w.event(v.Want, s.Container, pod.EventNormal, eventStarted, "Container started")
	}
	return err
}

// putVolumes begins the instance of the desired pod, unless it has begun, and sets up its volumes.
func (w *worker) putVolumes(ctx context.Context, v plan.View, instance int) error {
	want := v.Want
	if err := w.beginInstance(ctx, want, instance); err != nil {
		return err
	}
	if err := w.saveOwn(); err != nil {
		return err
	}
	place, err := w.place(want)
	if err != nil {
		return err
	}
	err = w.call(ctx, w.env.starts.SlotTimeout(), nil, func() error { return w.env.volumes.SetUp(ctx, want, place, instance) })
	if err == nil && w.failedSteps.byContainer[""].Reason == reasonMount {
		delete(w.failedSteps.byContainer, "")
	}
	if e := (*pod.RejectError)(nil); errors.As(err, &e) && want.Origin.FromAPI() && !podview.MayRun(v.Have) {
		w.reject(want, e)
		return errStale
	}
	return err
}

// startSandbox begins the instance of the step, unless putVolumes has, and runs its sandbox.
func (w *worker) startSandbox(ctx context.Context, v plan.View, s plan.Step) error {
	w.reportSandbox(v, s)
	if err := w.beginInstance(ctx, v.Want, s.Instance); err != nil {
		return err
	}
	if err := w.prepareClaims(ctx, v.Want, ""); err != nil {
		return err
	}
	if err := w.takeSlot(ctx); err != nil { // the slot may have gone to another pod meanwhile
		return err
	}
	err := w.startCall(ctx, func() error {
		var saved sync.WaitGroup
		var panicked error
		saved.Go(func() { // in parallel with the call, since the sandbox has the instance's number as well
			panicked = panics.ToError(func() error { w.save(); return nil })
		})
		err := w.runSandbox(ctx, v.Want, s)
		saved.Wait()
		panics.Repanic(panicked)
		return err
	})
	if err == nil {
		delete(w.failedSteps.byContainer, "")
	}
	return err
}

// tearDown does a step that removes something, or stops the sandbox.
func (w *worker) tearDown(ctx context.Context, have pod.Actual, s plan.Step) error {
	rt := w.env.runtime
	switch s.Action {
	case plan.RemoveContainer:
		w.noteDevices(have, s)
		w.setStreak(s)
		return rt.RemoveContainer(ctx, s.ID, s.KeepLog)
	case plan.StopSandbox:
		return rt.StopSandbox(ctx, s.ID)
	case plan.RemoveSandbox:
		w.emptyCheck.expected = false
		return rt.RemoveSandbox(ctx, s.ID)
	case plan.TearDownVolumes:
		if own, err := w.isOwner(s.UID); !own {
			return err
		}
		if w.env.cgroups != nil {
			if err := w.env.cgroups.Destroy(s.UID); err != nil {
				return err
			}
		}
		return w.call(ctx, 0, nil, func() error { return w.env.volumes.TearDown(ctx, s.UID, s.Instance) })
	case plan.Forget:
		return w.forget(ctx, s.UID)
	}
	return fmt.Errorf("unknown step %q", s.Action)
}

// startCall calls f, which starts or changes something, and passes its duration to the start
// limiter. No update cancels it.
func (w *worker) startCall(ctx context.Context, f func() error) error {
	begun := time.Now()
	err := w.call(ctx, w.env.starts.SlotTimeout(), nil, f)
	if err == nil {
		w.env.starts.RecordCall(time.Since(begun))
	}
	return err
}

// call runs f, which may take long, in a goroutine of its own, and waits for it. If f takes
// longer than slotTimeout, call releases the worker's start slot and continues to wait. When a
// newer spec or an operation arrives meanwhile, it calls onNews. If onNews is nil, updates wait
// until f has ended. If f hangs when the agent exits, call returns before f has ended, and sets
// failedSteps.leftBehind. The worker must then return without using the variables that f writes.
func (w *worker) call(ctx context.Context, slotTimeout time.Duration, onNews func(), f func() error) error {
	done := boundedcall.Start(f)
	exiting, left := ctx.Done(), (<-chan time.Time)(nil)
	late := time.NewTimer(slotTimeout)
	defer late.Stop()
	updates := w.updates
	if onNews == nil {
		updates = nil
	}
	for {
		select {
		case err := <-done:
			panics.Repanic(err)
			return err
		case <-late.C:
			w.freeSlot(ctx)
		case <-exiting:
			exiting, left = nil, time.After(exitPatience)
		case <-left:
			w.failedSteps.leftBehind = true
			return ctx.Err()
		case u, ok := <-updates:
			switch {
			case !ok:
				updates = nil
			case w.apply(u):
				onNews()
			}
		}
	}
}

// pull makes an image present. The pod's stop, a halt of the node, and a newer spec that removes
// or changes the container cancel it.
func (w *worker) pull(ctx context.Context, want *pod.Spec, container string) error {
	pullCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	superseded := false
	news := func() {
		if w.mustEnd(want, container) || w.update.halt.Message != "" {
			superseded = true
			cancel()
		}
	}
	progress := pullEvents(w.env.recorder, want, container)
	err := w.call(ctx, pullSlotTimeout, news, func() error {
		return w.env.runtime.PullImage(pullCtx, want, container, progress)
	})
	if superseded {
		return errStale
	}
	return err
}

// errStale ends a plan that is out of date: a newer spec or an operation arrived, the node was
// halted, the node rejected the pod, or a postStart hook failed. The worker does not count that as
// a failed step: it reads the pod and plans again.
var errStale = errors.New("the plan is out of date")

// stepFailed notes a failure for the next plan and the status, and logs it. It returns how long
// to wait before the next plan. It returns 0 for a start step: the next plan applies the back-off
// in w.trouble.byContainer. stopping says that the pod is being stopped.
func (w *worker) stepFailed(s plan.Step, err error, stopping bool) time.Duration {
	if errors.Is(err, pod.ErrUnavailable) {
		w.log.Debug("Runtime does not answer", "step", s.String())
		return w.failed()
	}
	if !isStartStep(s) {
		delay := w.failed()
		w.failedSteps.stopFailure = pod.Failure{Reason: eventKillPod, Message: strings.TrimSpace(string(s.Action)+" "+s.Container) + ": " + err.Error()}
		if stopping || s.Action == plan.StopContainer || s.Action == plan.StopSandbox {
			w.event(w.instanceSpec(), "", pod.EventWarning, eventKillPod, "error killing pod: %s", w.failedSteps.stopFailure.Message)
		}
		w.log.Warn("Step failed", "step", string(s.Action), "container", s.Container, "error", err, "retry", delay.String())
		return delay
	}
	t := w.failedSteps.byContainer[s.Container]
	if w.failedSteps.step[s.Container] != s.Action {
		w.failedSteps.step[s.Container], t.Count = s.Action, 0
	}
	t.Count++
	t.Reason, t.Message, t.Final = "FailedStep", err.Error(), false
	var start *pod.StartError
	if errors.As(err, &start) {
		t.Reason, t.Message, t.Final = start.Reason, start.Err.Error(), start.Final
	} else if s.Action == plan.SetUpVolumes {
		t.Reason = reasonMount
	}
	delay := retryDelay(t.Count)
	if s.Action == plan.PullImage {
		delay = podview.PullDelay(t.Count)
	}
	t.Until = time.Now().Add(delay)
	w.log.Warn("Step failed", "step", string(s.Action), "container", s.Container, "reason", t.Reason, "error", t.Message, "retry", delay.String())
	w.failedSteps.byContainer[s.Container] = t
	w.reportFailed(s, t)
	return 0
}

// takeSlot waits for a start slot. A newer spec or an operation ends the wait.
func (w *worker) takeSlot(ctx context.Context) error {
	if w.slot || w.update.want == nil {
		return nil
	}
	defer activity.Begin(ctx, activity.Call{Kind: activity.Slot, Name: "wait for a start slot"})()
	waiter, err := w.env.starts.Request(ctx, plan.Priority(w.update.want), w.update.want.Pod.CreationTimestamp.Unix(), w.seq)
	if err != nil {
		return err
	}
	for {
		select {
		case <-waiter.Granted():
			w.slot = true
			return nil
		case u, ok := <-w.updates:
			if ok && w.apply(u) {
				w.env.starts.Withdraw(ctx, waiter)
				return errStale
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (w *worker) freeSlot(ctx context.Context) { w.releaseSlot(ctx, false) }

func (w *worker) releaseSlot(ctx context.Context, started bool) {
	if w.slot {
		w.slot = false
		w.env.starts.Release(ctx, started)
	}
}
