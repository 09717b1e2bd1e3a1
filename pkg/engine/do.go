package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
)

// pullPatience is how long a pull may hold a start slot: an image that is
// present answers within it, a real pull gives its slot to another pod.
const pullPatience = 50 * time.Millisecond

// do runs the steps of a plan in order and stops at the first failure or when a
// newer spec arrives. again asks for another look at once; retry, when not
// zero, is when to look again after a failure that no back-off of the plan
// covers.
func (w *worker) do(ctx context.Context, v plan.View, p plan.Plan) (again bool, retry time.Duration) {
	for i := 0; i < len(p.Steps); {
		if w.takeMail() {
			return true, 0 // the plan was made for another spec
		}
		n := 1
		if p.Steps[i].Together {
			for i+n < len(p.Steps) && p.Steps[i+n].Together {
				n++
			}
		}
		failedStep, err := w.doTogether(ctx, v, p.Steps[i:i+n])
		if ctx.Err() != nil {
			return false, 0
		}
		if err != nil {
			return w.stepFailed(failedStep, err)
		}
		i += n
	}
	w.failures = 0
	return len(p.Steps) > 0, 0
}

// doTogether runs one step, or several that may run at once.
func (w *worker) doTogether(ctx context.Context, v plan.View, steps []plan.Step) (plan.Step, error) {
	if len(steps) == 1 {
		return steps[0], w.step(ctx, v, steps[0])
	}
	w.save()
	errs := make([]error, len(steps))
	var wg sync.WaitGroup
	for i, s := range steps {
		wg.Go(func() { errs[i] = w.cfg.Runtime.StopContainer(ctx, s.ID, seconds(s.Grace)) })
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			return steps[i], err
		}
	}
	return plan.Step{}, nil
}

func seconds(n int64) time.Duration { return time.Duration(n) * time.Second }

// step does one step. Whatever takes something away first saves the record, so
// that numbers that only rise outlive their carrier.
func (w *worker) step(ctx context.Context, v plan.View, s plan.Step) error {
	w.log.Debug("Step", "step", s.String())
	rt := w.cfg.Runtime
	switch s.Action {
	case plan.PutVolumes:
		if err := w.takeSlot(ctx); err != nil {
			return err
		}
		w.startInstance(v.Want, s.Instance)
		return w.cfg.Volumes.Put(v.Want, s.Instance)
	case plan.RunSandbox:
		if err := w.takeSlot(ctx); err != nil {
			return err
		}
		w.startInstance(v.Want, s.Instance)
		_, err := rt.RunSandbox(ctx, v.Want, s.Instance, s.Attempt)
		return err
	case plan.PullImage:
		return w.pull(ctx, v.Want, s.Container)
	case plan.CreateContainer:
		return w.create(ctx, v, s)
	case plan.StartContainer:
		id := s.ID
		if id == "" {
			id = w.created[s.Container]
		}
		if id == "" {
			return fmt.Errorf("start container %s: it was not created", s.Container)
		}
		if err := w.takeSlot(ctx); err != nil {
			return err
		}
		err := rt.StartContainer(ctx, id)
		if err == nil {
			delete(w.trouble, s.Container)
		}
		return err
	}
	w.save()
	switch s.Action {
	case plan.StopContainer:
		return rt.StopContainer(ctx, s.ID, seconds(s.Grace))
	case plan.RemoveContainer:
		return rt.RemoveContainer(ctx, s.ID)
	case plan.StopSandbox:
		return rt.StopSandbox(ctx, s.ID)
	case plan.RemoveSandbox:
		return rt.RemoveSandbox(ctx, s.ID)
	case plan.TakeVolumes:
		return w.cfg.Volumes.Take(s.UID, s.Instance)
	case plan.Forget:
		return w.forget(s.UID)
	}
	return fmt.Errorf("unknown step %q", s.Action)
}

// startInstance writes down the instance that is about to start, before
// anything of it exists.
func (w *worker) startInstance(want *pod.Spec, instance int) {
	if old := w.rec.UID; old != "" && old != want.UID() {
		if err := w.cfg.Volumes.Forget(w.key, old); err != nil {
			w.log.Warn("Directory of an older pod of this name not removed", "error", err)
		}
		w.rec.Attempts = make(map[string]uint32)
	}
	if w.rec.Instance != instance || w.rec.Want == nil || w.rec.UID != want.UID() {
		w.rec.Want = want
		w.rec.UID = want.UID()
		w.rec.Instance = instance
		w.rec.StartTime = time.Now()
		w.rec.StopSince = time.Time{}
		w.rec.Terminal = ""
		w.before = v1.PodStatus{}
		w.recDirty = true
	}
	w.save()
}

func (w *worker) create(ctx context.Context, v plan.View, s plan.Step) error {
	if err := w.takeSlot(ctx); err != nil {
		return err
	}
	mounts, err := w.cfg.Volumes.Mounts(v.Want, v.Have.Sandbox.Instance, s.Container)
	if err != nil {
		return &pod.StartError{Reason: "CreateContainerConfigError", Err: err}
	}
	id, err := w.cfg.Runtime.CreateContainer(ctx, pod.CreateRequest{
		Want:      v.Want,
		Container: s.Container,
		Sandbox:   v.Have.Sandbox,
		Attempt:   s.Attempt,
		Streak:    s.Streak,
		Mounts:    mounts,
	})
	if err != nil {
		return err
	}
	w.created[s.Container] = id
	return nil
}

// pull makes an image present. A newer spec cancels it, and only it: every
// other call runs to its end.
func (w *worker) pull(ctx context.Context, want *pod.Spec, container string) error {
	pullCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	var err error
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { defer close(done); err = w.cfg.Runtime.PullImage(pullCtx, want, container) })
	defer wg.Wait()
	patience := time.NewTimer(pullPatience)
	defer patience.Stop()
	for {
		select {
		case <-done:
			if errors.Is(err, context.Canceled) && w.letter.want != want {
				return errSuperseded
			}
			return err
		case <-patience.C:
			w.freeSlot(ctx)
		case l, ok := <-w.mail:
			if ok && w.read(l) {
				cancel()
			}
		}
	}
}

// errSuperseded ends a pull whose spec is no longer wanted; it is no failure.
var errSuperseded = errors.New("a newer spec arrived")

// forget removes what is left of the pod; its record is then empty, and nothing
// writes it again.
func (w *worker) forget(uid string) error {
	if uid != "" {
		if err := w.cfg.Volumes.Forget(w.key, uid); err != nil {
			return err
		}
	}
	w.rec = pod.Record{Key: w.key, Attempts: make(map[string]uint32)}
	w.recDirty = false
	w.before = v1.PodStatus{}
	return nil
}

// stepFailed turns a failure into what the next plan, and a person, will see.
func (w *worker) stepFailed(s plan.Step, err error) (again bool, retry time.Duration) {
	if errors.Is(err, errSuperseded) {
		return true, 0
	}
	if errors.Is(err, pod.ErrUnavailable) {
		w.log.Debug("Runtime does not answer", "step", s.String())
		return false, w.failed()
	}
	var start *pod.StartError
	covered := s.Action == plan.PullImage || s.Action == plan.CreateContainer || s.Action == plan.StartContainer ||
		s.Action == plan.RunSandbox || s.Action == plan.PutVolumes
	t := w.trouble[s.Container]
	t.Count++
	t.Reason, t.Message = "FailedStep", err.Error()
	if errors.As(err, &start) {
		t.Reason, t.Message = start.Reason, start.Err.Error()
	} else if s.Action == plan.PutVolumes {
		t.Reason = "FailedMount"
	}
	delay := retryDelay(t.Count)
	if s.Action == plan.PullImage {
		delay = min(10*time.Second<<min(t.Count-1, 10), 5*time.Minute) // C-1.39
	}
	t.Until = time.Now().Add(delay)
	w.log.Warn("Step failed", "step", string(s.Action), "container", s.Container, "reason", t.Reason, "error", t.Message, "retry", delay.String())
	if !covered {
		return false, w.failed()
	}
	w.trouble[s.Container] = t
	return true, 0
}

func (w *worker) takeSlot(ctx context.Context) error {
	if w.slot || w.letter.want == nil {
		return nil
	}
	if err := w.gate.acquire(ctx, w.letter.want, w.seq); err != nil {
		return err
	}
	w.slot = true
	return nil
}

func (w *worker) freeSlot(ctx context.Context) {
	if w.slot {
		w.slot = false
		w.gate.release(ctx)
	}
}
