package engine

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nodectl/nodectl/pkg/panics"
	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podview"
)

// minStop is the least time a container gets to exit, however long its hook took.
const minStop = podview.MinGrace * time.Second

// stopped is a message from the goroutine of a stop to the worker. The goroutine sends one when the
// preStop hook, if any, has ended, and one when the stop has ended.
type stopped struct {
	i    int  // the index of the stop
	hook bool // true: the hook has ended; false: the stop has ended
	err  error
}

// stopContainers stops containers in parallel. For each it runs the preStop hook, and waits until
// the containers that have to exit first have exited. Then it stops the container within the rest
// of its grace (C-1.23.3, C-1.23.4). An update with less grace shortens a stop in progress; nothing
// cancels it. It returns the first step that failed.
func (w *worker) stopContainers(ctx context.Context, v plan.View, steps []plan.Step) (plan.Step, error) {
	for _, s := range steps {
		if s.Killed != "" {
			w.rec.setNotes(s.ID, func(notes *pod.ContainerNotes) { notes.Killed = s.Killed })
		}
	}
	w.save()
	for _, s := range steps {
		w.reportKilling(s)
	}
	stops := make([]*stop, len(steps))
	ended := make(map[string]<-chan struct{}, len(steps))
	deadline := &stopDeadline{changed: make(chan struct{})}
	for i, s := range steps {
		done := make(chan struct{})
		ended[s.Container] = done
		stops[i] = &stop{Step: s, ended: done, deadline: deadline, request: hookRequest(v, s, s.ID, warning(w.env.recorder, w.instanceSpec())), hooked: w.rec.ContainerNotes[s.ID].PreStop}
	}
	for _, s := range stops {
		for _, name := range s.After {
			if other, ok := ended[name]; ok {
				s.before = append(s.before, other)
			}
		}
	}
	return w.runStops(ctx, stops, deadline, w.overdue(v))
}

// runStops runs stops in parallel and returns when all have ended. When overdue fires, it
// reports the pod again.
func (w *worker) runStops(ctx context.Context, stops []*stop, deadline *stopDeadline, overdue <-chan time.Time) (plan.Step, error) {
	results := make(chan stopped) // the loop below receives until all stops have ended
	closed := make(chan struct{}) // closed when the loop receives no more, also after a panic (F8)
	send := func(n stopped) {
		select {
		case results <- n:
		case <-closed:
		}
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(closed)
	for i, s := range stops {
		wg.Go(func() {
			err := panics.ToError(func() error {
				return s.run(ctx, w.env, func(err error) { send(stopped{i: i, hook: true, err: err}) })
			})
			close(s.ended)
			send(stopped{i: i, err: err})
		})
	}
	errs := make([]error, len(stops))
	updates := w.updates
	for left := len(stops); left > 0; {
		select {
		case n := <-results:
			id := stops[n.i].ID
			switch {
			case n.hook && n.err != nil && ctx.Err() != nil: // the agent exits: the next one runs the hook again
			case n.hook:
				if n.err != nil {
					w.event(w.instanceSpec(), stops[n.i].Container, pod.EventWarning, eventPreStop, "PreStopHook failed")
					w.log.Warn("Hook failed", "hook", "preStop", "container", stops[n.i].Container, "error", n.err)
				}
				w.rec.setNotes(id, func(notes *pod.ContainerNotes) { notes.PreStop = true })
				w.save()
			default:
				left--
				errs[n.i] = n.err
			}
		case <-overdue:
			w.reportOverdue(ctx)
		case u, ok := <-updates:
			if !ok {
				updates = nil
				continue
			}
			w.apply(u)
			if want := w.update.want; deleting(want) && want.Pod.DeletionGracePeriodSeconds != nil { // C-1.16.12
				deadline.shorten(time.Now().Add(podview.GraceDuration(*want.Pod.DeletionGracePeriodSeconds)))
			}
			if at, ok := w.update.halt.haltDeadline(time.Now()); ok {
				deadline.shorten(at)
			}
			if g := w.rec.StopGrace; g != nil && !w.rec.StopSince.IsZero() {
				deadline.shorten(w.rec.StopSince.Add(podview.GraceDuration(*g)))
			}
		}
	}
	for i, err := range errs {
		if err != nil {
			panics.Repanic(err)
			return stops[i].Step, err
		}
	}
	return stops[0].Step, nil
}

// stopDeadline is the common deadline of the stops in progress. It only becomes earlier.
type stopDeadline struct {
	mu      sync.Mutex
	until   time.Time     // zero: each stop has its own deadline only
	changed chan struct{} // closed when until becomes earlier
}

// shorten sets the deadline to until, if that is earlier.
func (d *stopDeadline) shorten(until time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.until.IsZero() || until.Before(d.until) {
		d.until = until
		close(d.changed)
		d.changed = make(chan struct{})
	}
}

// of returns the earlier of own, the deadline of one stop, and the common deadline. The channel
// is closed when that may have changed.
func (d *stopDeadline) of(own time.Time) (time.Time, <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.until.IsZero() && d.until.Before(own) {
		own = d.until
	}
	return own, d.changed
}

// stop is the stop of one container.
type stop struct {
	plan.Step
	request  pod.HookRequest
	hooked   bool              // its preStop hook has ended in an earlier stop
	before   []<-chan struct{} // one for each container that has to exit first; closed when its stop has ended
	ended    chan struct{}     // closed when this stop has ended
	deadline *stopDeadline
}

// run stops the container. It calls hooked when the preStop hook has ended.
func (s *stop) run(ctx context.Context, env *workerEnv, hooked func(error)) error {
	own := time.Now().Add(podview.GraceDuration(s.Grace))
	untilDeadline, cancel := context.WithCancel(ctx)
	var timer sync.WaitGroup
	timer.Go(func() {
		s.waitDeadline(untilDeadline, own)
		cancel()
	})
	defer timer.Wait()
	defer cancel()
	if s.Hook != nil && !s.hooked {
		traced, end := beginHook(untilDeadline, "preStop", s.Container, s.Hook)
		err := env.hooks.Hook(traced, s.request)
		end()
		if err != nil && untilDeadline.Err() != nil {
			err = errors.Join(err, context.DeadlineExceeded)
		}
		hooked(err)
	}
	for _, other := range s.before {
		select {
		case <-other:
		case <-untilDeadline.Done():
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return s.kill(ctx, env.runtime, own)
}

// waitDeadline returns at the deadline, or when ctx is done.
func (s *stop) waitDeadline(ctx context.Context, own time.Time) {
	for {
		at, changed := s.deadline.of(own)
		over := time.NewTimer(time.Until(at))
		select {
		case <-over.C:
			return
		case <-ctx.Done():
			over.Stop()
			return
		case <-changed:
			over.Stop()
		}
	}
}

// kill asks the runtime to stop the container by the deadline, with a timeout in whole seconds.
// When the deadline becomes earlier, it asks again with a shorter timeout.
func (s *stop) kill(ctx context.Context, rt Runtime, own time.Time) error {
	var calls sync.WaitGroup
	defer calls.Wait()
	done := make(chan error, 1) // the first result counts; after an error the worker tries again
	var due time.Time           // the deadline of the last call to the runtime
	for {
		at, changed := s.deadline.of(own)
		if due.IsZero() || at.Before(due) {
			due = at
			left := max((time.Until(at) + time.Second - 1).Truncate(time.Second), minStop)
			calls.Go(func() {
				err := panics.ToError(func() error { return rt.StopContainer(ctx, s.ID, left) })
				select {
				case done <- err:
				default:
				}
			})
		}
		select {
		case err := <-done:
			panics.Repanic(err)
			return err
		case <-changed:
		}
	}
}
