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

// RefusedError is the error of a command that changed nothing, with the reason.
type RefusedError struct{ err error }

// Error implements error.
func (e *RefusedError) Error() string { return e.err.Error() }

// Unwrap returns the reason.
func (e *RefusedError) Unwrap() error { return e.err }

// maxRequests limits the commands that wait for the next Expand, which executes them.
const maxRequests = 64

// request is a command that waits for Expand.
type request struct {
	of        pod.ObjectKey
	command   workload.Command
	callerErr func() error  // returns an error once the caller has stopped waiting
	done      chan struct{} // closed once result and err are set
	result    string
	err       error
}

// Do executes a command, and returns its result as text for a user. It returns once the state is
// stored and Expand has decided again. If ctx ends before Expand has begun the command, Expand drops
// it. If ctx ends later, the command may still take effect.
func (c *Controller) Do(ctx context.Context, of pod.ObjectKey, command workload.Command) (string, error) {
	r := &request{of: of, command: command, callerErr: ctx.Err, done: make(chan struct{})}
	c.mu.Lock()
	c.requests = slices.DeleteFunc(c.requests, (*request).isAbandoned)
	full := len(c.requests) >= maxRequests
	if !full {
		c.requests = append(c.requests, r)
	}
	c.mu.Unlock()
	if full {
		return "", &RefusedError{errors.New("too many commands are waiting")}
	}
	c.due.Send()
	select {
	case <-r.done:
		return r.result, r.err
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// change has the commands for one workload of one Expand, until their state is stored.
type change struct {
	*write   // nil until Expand has executed all commands
	requests []*request
	object   *pod.Object    // the workload that the commands change; nil: the change does not take effect
	state    workload.State // after all commands
}

// isAbandoned reports whether the caller has stopped waiting.
func (r *request) isAbandoned() bool { return r.callerErr() != nil }

// end stores the result for Do.
func (r *request) end(result string, err error) *request {
	r.result, r.err = result, err
	return r
}

// execute executes the waiting commands, and returns those that have a result or an error. present has
// the workloads that a source has. stuck means that an earlier write has not ended. A command waits
// while the state of its workload is being written.
func (c *Controller) execute(present map[pod.ObjectKey]bool, stuck bool, now time.Time) (done []*request) {
	c.mu.Lock()
	all := c.requests
	c.requests = nil
	c.mu.Unlock()
	var waiting []*request
	for _, r := range all {
		e := c.workloads[r.of]
		switch {
		case r.isAbandoned(): // the caller may have sent the command again
		case e == nil || !present[r.of]:
			done = append(done, r.end("", ErrNoWorkload))
		case e.saving != nil || e.change != nil && e.change.write != nil:
			waiting = append(waiting, r)
		default:
			if err := c.do(e, r, now); err != nil {
				done = append(done, r.end("", err))
			}
		}
	}
	c.await(c.storeChanges(now), stuck)
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
		c.due.Send()
	}
	return done
}

// storeChanges begins to write the states of the commands of this Expand.
func (c *Controller) storeChanges(now time.Time) (writes []*write) {
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
		s.write = c.writer.add(e.id, e.layer, state)
		e.noteUnconfirmed(&s.state, now)
		writes = append(writes, s.write)
	}
	return writes
}

// settleChange handles the end of the write of the commands' state. After a failed write, the
// workload stays unchanged. It also stays unchanged if the source has another object now, for which
// the commands were not executed.
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
		e.state, e.stored, e.unconfirmed, e.unconfirmedSince, e.due = s.state, s.write.state, nil, time.Time{}, true
		c.wakeRelease(e)
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

// answer makes Do return for these commands.
func (c *Controller) answer(all []*request) {
	for _, r := range all {
		close(r.done)
	}
}

// do executes one command, and adds it to the change of its workload. After an error nothing changes.
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

// judge returns the reason if the source policy forbids the workload with these overrides, else "".
func (c *Controller) judge(o *pod.Object, override *workload.Override) string {
	if override == nil || c.cfg.Judge == nil {
		return ""
	}
	effective, _, _ := override.Apply(o)
	return c.cfg.Judge(effective)
}

// allows reports whether a rollback may give a workload this content.
func (c *Controller) allows(o *pod.Object) bool { return c.cfg.Judge == nil || c.cfg.Judge(o) == "" }

// checkOverride drops the overrides if they are invalid, or if the source policy now forbids the
// workload with them. Then the fields of the source apply.
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
	c.cfg.Log.Warn("Dropping the overrides of a workload; the fields of its source apply", "workload", e.name(), "reason", why)
	if c.cfg.Event != nil {
		c.cfg.Event(e.object, workload.Event{Type: v1.EventTypeWarning, Reason: "OverrideDropped", Message: "The overrides are dropped: " + why})
	}
}
