package controller

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/panics"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/workload"
)

// ErrNoWorkload is the error of a command for a workload that no source has.
var ErrNoWorkload = errors.New("not found")

// RefusedError is why a command was not done: nothing has changed.
type RefusedError struct{ err error }

// Error implements error.
func (e *RefusedError) Error() string { return e.err.Error() }

// Unwrap returns the reason.
func (e *RefusedError) Unwrap() error { return e.err }

// maxRequests is how many commands wait at a time. Each is done in the next Expand.
const maxRequests = 64

// request is a command that waits for Expand.
type request struct {
	of      pod.ObjectKey
	command workload.Command
	left    func() error  // is not nil once the caller has left
	done    chan struct{} // closed once result and err are set
	result  string
	err     error
}

// Do does a command, and returns its result for a person. It returns once the state is stored and
// the next decision has taken effect. If ctx ends earlier, a command that Expand has not begun is
// not done; another one may still be done.
func (c *Controller) Do(ctx context.Context, of pod.ObjectKey, command workload.Command) (string, error) {
	r := &request{of: of, command: command, left: ctx.Err, done: make(chan struct{})}
	c.mu.Lock()
	c.requests = slices.DeleteFunc(c.requests, (*request).isLeft)
	full := len(c.requests) >= maxRequests
	if !full {
		c.requests = append(c.requests, r)
	}
	c.mu.Unlock()
	if full {
		return "", &RefusedError{errors.New("too many commands wait")}
	}
	c.wake()
	select {
	case <-r.done:
		return r.result, r.err
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// change is the commands for one workload of one Expand, while their state is being written.
type change struct {
	*write   // nil until all commands of the Expand are decided
	requests []*request
	object   *pod.Object    // that the commands were judged for; nil: the change does not take effect
	state    workload.State // after all of them
}

// isLeft reports whether the caller does not wait any more.
func (r *request) isLeft() bool { return r.left() != nil }

// end sets the result of Do.
func (r *request) end(result string, err error) *request {
	r.result, r.err = result, err
	return r
}

// obey does the commands that wait, and returns those that are done, or are refused. there are the
// workloads that a source has; stuck says that the disk hangs. A command waits while the state of
// its workload is being written.
func (c *Controller) obey(there map[pod.ObjectKey]bool, stuck bool, now time.Time) (done []*request) {
	c.mu.Lock()
	all := c.requests
	c.requests = nil
	c.mu.Unlock()
	var waiting []*request
	for _, r := range all {
		e := c.workloads[r.of]
		switch {
		case r.isLeft(): // a command that is done late may surprise its caller, or be done twice
		case e == nil || !there[r.of]:
			done = append(done, r.end("", ErrNoWorkload))
		case e.saving != nil || e.change != nil && e.change.write != nil:
			waiting = append(waiting, r)
		default:
			if err := c.do(e, r, now); err != nil {
				done = append(done, r.end("", err))
			}
		}
	}
	c.await(c.storeChanges(), stuck)
	for _, e := range c.workloads {
		if e.change != nil && e.change.isDone() {
			done = append(done, c.settleChange(e)...)
		}
	}
	if len(waiting) == 0 {
		return done
	}
	c.mu.Lock()
	c.requests = append(waiting, c.requests...)
	c.mu.Unlock()
	if c.writer.isIdle() {
		c.wake()
	}
	return done
}

// storeChanges begins to write the states of the commands of this Expand.
func (c *Controller) storeChanges() (writes []*write) {
	for _, e := range c.workloads {
		s := e.change
		if s == nil || s.write != nil {
			continue
		}
		state, err := json.Marshal(s.state)
		if err != nil || c.cfg.Store == nil {
			s.write = &write{state: state, err: err, done: make(chan struct{})}
			close(s.write.done)
			continue
		}
		s.write, e.maybe = c.writer.add(e.id, e.layer, state), &s.state
		writes = append(writes, s.write)
	}
	return writes
}

// settleChange ends the wait for the state of commands. After a failed write, the workload stays
// as it was. It stays, too, if the source has another object now: the commands were not judged
// for that one.
func (c *Controller) settleChange(e *entry) []*request {
	s := e.change
	e.change = nil
	switch {
	case s.write.err != nil:
		e.stored, e.due = nil, true // the Store may have the state: the next decision replaces it
		s.fail(s.write.err)
	case e.object == nil:
		e.stored = nil
		s.fail(ErrNoWorkload)
	case e.object != s.object:
		e.stored, e.due = nil, true // the next decision replaces the state in the Store
		s.fail(&RefusedError{errors.New("the workload has changed meanwhile: try again")})
	default:
		e.state, e.stored, e.maybe, e.due = s.state, s.write.state, nil, true
		c.stir(e)
		for _, r := range s.requests {
			c.cfg.Log.Info("Changing workload by command", "workload", e.name(), "command", string(r.command.Verb), "result", r.result)
		}
	}
	return s.requests
}

// fail sets the error of all commands of a change.
func (s *change) fail(err error) {
	for _, r := range s.requests {
		r.end("", err)
	}
}

// answer ends the wait for commands.
func (c *Controller) answer(all []*request) {
	for _, r := range all {
		close(r.done)
	}
}

// do decides about one command, after those for its workload in the same Expand. After an error
// nothing changes.
func (c *Controller) do(e *entry, r *request, now time.Time) error {
	c.mu.Lock()
	pods := c.podsOf(e)
	c.mu.Unlock()
	in := workload.Input{Object: e.object, Node: c.cfg.Node, Pods: pods, State: e.state, Now: now}
	if e.change != nil {
		in.State = e.change.state
	}
	var state workload.State
	var result, why string
	err := panics.ToError(func() (err error) {
		state, result, err = workload.Do(in, r.command)
		if err == nil {
			why = c.judge(e.object, state.Override)
		}
		return err
	})
	if _, is := panics.Of(err); is {
		return err
	}
	if err != nil {
		return &RefusedError{err}
	}
	if why != "" {
		return &RefusedError{errors.New("the source policy forbids the result: " + why)}
	}
	if e.change == nil {
		e.change = &change{object: e.object}
	}
	r.result = result
	e.change.state, e.change.requests = state, append(e.change.requests, r)
	return nil
}

// judge returns why a workload may not have these overrides, "" if it may.
func (c *Controller) judge(o *pod.Object, override *workload.Override) string {
	if override == nil || c.cfg.Judge == nil {
		return ""
	}
	effective, _, _ := override.Apply(o)
	return c.cfg.Judge(effective)
}

// allows reports whether a rollback may give a workload this content.
func (c *Controller) allows(o *pod.Object) bool { return c.cfg.Judge == nil || c.cfg.Judge(o) == "" }

// checkOverride drops an override that is damaged, or that gives the workload a content that the
// source policy forbids by now: then the content of the source holds.
func (c *Controller) checkOverride(e *entry) {
	why := ""
	if err := e.state.Override.Check(); err != nil {
		why = err.Error()
	} else {
		why = c.judge(e.object, e.state.Override)
	}
	if why == "" {
		return
	}
	e.state.Override = nil
	c.cfg.Log.Warn("Dropping the overrides of a workload; it is as its source has it", "workload", e.name(), "reason", why)
	if c.cfg.Event != nil {
		c.cfg.Event(e.object, workload.Event{Type: v1.EventTypeWarning, Reason: "OverrideDropped", Message: "The overrides are dropped: " + why})
	}
}
