package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
)

// operationTimeout limits how long a request waits for the sync loop and the pod's worker. A
// worker answers at once, unless the runtime blocks it.
const operationTimeout = time.Minute

// ErrNoPod says that this engine knows no pod of the requested name.
var ErrNoPod = errors.New("there is no such pod")

// RefusedError is the answer to an operation that the pod's state or source does not allow.
type RefusedError struct{ Msg string }

func (e *RefusedError) Error() string { return e.Msg }

// operation is one request to do something with a pod as it is now. It applies to the current
// instance and does not change the desired state.
type operation struct {
	kind       operationKind
	key        pod.Key
	uid        string // the UID that the pod must have; "": any
	number     uint64 // assigned by the sync loop; only rises
	containers []string
	grace      *int64    // seconds; nil: the pod's own
	eviction   *Eviction // of an opEvict
	state      atomic.Int32
	answer     chan error // capacity 1: reply sends the first answer, and drops others
}

// The states of an opEvict. It leaves evictPending once: a worker begins it, or its caller withdraws
// it.
const (
	evictPending int32 = iota
	evictBegun
	evictWithdrawn
)

// begin reports whether a worker may carry the operation out. If so, the caller cannot withdraw it
// any more.
func (o *operation) begin() bool {
	return o.state.CompareAndSwap(evictPending, evictBegun) || o.state.Load() == evictBegun
}

// withdraw reports whether no worker has begun the operation. If so, none begins it later.
func (o *operation) withdraw() bool { return o.state.CompareAndSwap(evictPending, evictWithdrawn) }

type operationKind string

const (
	opRestart operationKind = "restart" // containers
	opDelete  operationKind = "delete"  // stop the whole instance
	opEvict   operationKind = "evict"   // end the instance as Failed
	opRevive  operationKind = "revive"  // start an evicted pod again
)

func (o *operation) reply(err error) {
	select {
	case o.answer <- err:
	default:
	}
}

// Restart stops containers of a pod, each with its preStop hook, and starts them again in the same
// sandbox. grace is in seconds; nil is each container's own. Restart policy and back-off do not
// apply; the restart counts rise. Without names, it restarts all running regular containers
// and sidecars. It returns when the worker has written the request into the pod's record: this
// agent, or the next one, completes it. If that write fails, Restart returns nil all the same,
// and only this agent completes the request.
//
// An error wraps ErrNoPod, or is a *RefusedError. When ctx ends, or after a minute, the error wraps
// that of the context.
func (e *Engine) Restart(ctx context.Context, key pod.Key, containers []string, grace *int64) error {
	return e.request(ctx, &operation{kind: opRestart, key: key, containers: containers, grace: grace})
}

// Delete stops the current instance of a pod. grace is in seconds; nil is the pod's own. A pod in
// the desired set then starts again as a new instance; a pod that is not in it is removed. Delete
// refuses a pod of an API server: it has to be deleted at that server. It also refuses a pod whose
// UID is not uid; an empty uid matches every pod. Delete returns as Restart does.
func (e *Engine) Delete(ctx context.Context, key pod.Key, uid string, grace *int64) error {
	return e.request(ctx, &operation{kind: opDelete, key: key, uid: uid, grace: grace})
}

// request sends an operation to the sync loop, and waits for the answer.
func (e *Engine) request(ctx context.Context, o *operation) error {
	if o.grace != nil && *o.grace < 0 {
		return &RefusedError{"grace period of " + fmt.Sprint(*o.grace) + " seconds must not be negative"}
	}
	o.answer = make(chan error, 1)
	ctx, cancel := context.WithTimeout(ctx, operationTimeout)
	defer cancel()
	select {
	case e.operations <- o:
	case <-ctx.Done():
		return fmt.Errorf("the sync loop is not responding: %w", ctx.Err())
	}
	select {
	case err := <-o.answer:
		return err
	case <-ctx.Done():
		if o.kind == opEvict && !o.withdraw() {
			return nil // the worker writes the record
		}
		return fmt.Errorf("the worker of pod %s is not responding: %w", o.key, ctx.Err())
	}
}

// handleOperation passes an operation to the worker of its pod, or answers why that is not possible.
func (l *loop) handleOperation(ctx context.Context, o *operation) {
	e := l.pods[o.key]
	if e == nil {
		l.operateOnOrphan(ctx, o)
		return
	}
	if of := l.nodeState.halting.halt; o.kind == opRestart && of != nil {
		o.reply(&RefusedError{fmt.Sprintf("pod %s would not start again: %s", o.key, of.Message)})
		return
	}
	if err := l.mayOperate(e, o); err != nil {
		o.reply(err)
		return
	}
	l.assign(e, o)
	if (o.kind == opDelete || o.kind == opRevive) && e.want != nil && e.ended { // a new instance: admission judges it, since another pod may have its ports
		l.forgetOrder(e) // admission notes it again
		e.admitted, e.ended, e.refused.final = false, false, false
		l.admit(ctx)
	}
}

// mayOperate returns why an operation on a pod is not possible, nil when it is.
func (l *loop) mayOperate(e *entry, o *operation) error {
	switch o.kind {
	case opRestart:
		if err := e.mayRestart(o); err != nil {
			return err
		}
		if why := plan.ForbiddenBy(l.cfg.Forbids, e.want); why != "" {
			return &RefusedError{fmt.Sprintf("pod %s would not start again: %s", o.key, why)}
		}
	case opDelete:
		switch {
		case o.uid != "" && !e.has(o.uid):
			return otherUID(o.key)
		case e.want != nil && e.want.Origin.FromAPI():
			return atServer(o.key)
		}
	case opEvict:
		if err := e.mayEvict(o); err != nil {
			return err
		}
	}
	if e.updates == nil {
		return &RefusedError{fmt.Sprintf("pod %s has not started: there is nothing to stop", o.key)}
	}
	return nil
}

// maxOperations is how many operations an update carries beside the newest one.
const maxOperations = 16

// assign adds an operation to those that the pod's updates carry. If there are more than
// maxOperations older ones, it drops the oldest.
func (l *loop) assign(e *entry, o *operation) {
	l.ids.operation++
	o.number = l.ids.operation
	e.operations = append(e.operations[len(e.operations)-min(len(e.operations), maxOperations):len(e.operations):len(e.operations)], o)
	l.log.Info("Operation requested", "operation", string(o.kind), "pod", o.key.String(), "containers", strings.Join(o.containers, ","))
	l.queueUpdate(e, true)
}

// operateOnOrphan handles an operation on a pod without an entry: an orphaned pod, or a pod that
// does not exist. It can delete only an orphaned pod that is not in the desired set.
func (l *loop) operateOnOrphan(ctx context.Context, o *operation) {
	s, known := l.orphans[o.key]
	switch {
	case !known:
		o.reply(fmt.Errorf("pod %s: %w", o.key, ErrNoPod))
	case l.state != nil && l.state.Pod(o.key) != nil:
		o.reply(&RefusedError{fmt.Sprintf("pod %s waits until its source answers: try again later", o.key)})
	case o.uid != "" && o.uid != s.uid:
		o.reply(otherUID(o.key))
	case o.kind == opEvict:
		o.reply(&RefusedError{fmt.Sprintf("pod %s is not in the desired set: it stops when its source has answered", o.key)})
	case o.kind == opRestart:
		o.reply(&RefusedError{fmt.Sprintf("pod %s is not in the desired set: its containers cannot be restarted", o.key)})
	case pod.IsAPILayer(s.Layer):
		o.reply(atServer(o.key))
	default:
		l.stopOrphan(ctx, o.key, s)
		l.assign(l.pods[o.key], o)
	}
}

func otherUID(key pod.Key) error {
	return &RefusedError{fmt.Sprintf("pod %s now has another UID", key)}
}

func atServer(key pod.Key) error {
	return &RefusedError{fmt.Sprintf("pod %s comes from an API server: delete it there (kubectl delete pod %s -n %s)", key, key.Name, key.Namespace)}
}

// has reports whether the desired pod, or the one that runs, has this UID.
func (e *entry) has(uid string) bool {
	return uid == e.uid || e.want != nil && uid == e.want.UID() || e.lastWant != nil && uid == e.lastWant.UID()
}

// mayRestart returns why containers of a pod cannot be restarted, nil when they can.
func (e *entry) mayRestart(o *operation) error {
	no := func(format string, a ...any) error { return &RefusedError{fmt.Sprintf(format, a...)} }
	switch {
	case e.want == nil, deleting(e.want):
		return no("pod %s is being deleted", o.key)
	case e.ended:
		return no("pod %s has terminated", o.key)
	case e.refused != (refusal{}) && (e.last == nil || e.last.instance == 0):
		return no("pod %s was not admitted: %s", o.key, e.refused.message)
	}
	for _, name := range o.containers {
		c, init := e.want.Container(name)
		switch {
		case c == nil:
			return no("pod %s has no container %q", o.key, name)
		case ephemeral(e.want, name):
			return no("container %q of pod %s is an ephemeral container: it runs only once", name, o.key)
		case init && !pod.Restartable(c):
			return no("container %q of pod %s is an init container: it runs only once", name, o.key)
		}
	}
	return nil
}

// ephemeral reports whether a container of the pod is an ephemeral one.
func ephemeral(of *pod.Spec, name string) bool {
	return slices.ContainsFunc(of.Pod.Spec.EphemeralContainers, func(c v1.EphemeralContainer) bool { return c.Name == name })
}

// acknowledge notes the operations that are newer than the last acknowledged one in the record. They
// apply to the pod as the worker last observed it. It writes the record before it answers the
// caller.
func (w *worker) acknowledge() {
	if !w.last.looked {
		return
	}
	for _, o := range w.update.operations {
		if o.number <= w.acked {
			continue
		}
		w.acked = o.number
		err := w.noteOperation(o)
		w.save()
		o.reply(err)
	}
}

// noteOperation puts an operation into the record.
func (w *worker) noteOperation(o *operation) error {
	switch o.kind {
	case opDelete:
		w.noteDelete(o.grace)
		return nil
	case opEvict:
		return w.noteEviction(o)
	case opRevive:
		w.noteRevived()
		return nil
	}
	names := o.containers
	if len(names) == 0 {
		names = w.restartable()
	}
	if len(names) == 0 {
		return &RefusedError{fmt.Sprintf("pod %s has no running container", o.key)}
	}
	for _, name := range names {
		c, ok := w.last.containers[name]
		if !ok || c.state == pod.StateCreated {
			delete(w.failedSteps.byContainer, name) // try a failed step of its start again at once
			continue
		}
		w.rec.setNotes(c.id, func(notes *pod.ContainerNotes) { notes.Killed, notes.Grace = pod.OnRequest, o.grace })
		delete(w.failedSteps.byContainer, name)
	}
	return nil
}

// restartable names the regular containers and sidecars that run.
func (w *worker) restartable() (names []string) {
	if w.update.want == nil {
		return nil
	}
	add := func(list []v1.Container, selects func(*v1.Container) bool) {
		for i := range list {
			if w.last.containers[list[i].Name].state == pod.StateRunning && selects(&list[i]) {
				names = append(names, list[i].Name)
			}
		}
	}
	add(w.update.want.Pod.Spec.InitContainers, pod.Restartable)
	add(w.update.want.Pod.Spec.Containers, func(*v1.Container) bool { return true })
	return names
}

// noteDelete records that the stop of the instance has begun. If it stops already, its grace
// only shrinks (C-1.16.12).
func (w *worker) noteDelete(grace *int64) {
	if w.rec.Instance == 0 && w.last.empty {
		return
	}
	if w.rec.StopSince.IsZero() {
		w.rec.StopSince, w.rec.StopGrace = time.Now(), grace
	} else if grace != nil {
		least := min(*grace, w.last.grace)
		if had := w.rec.StopGrace; had != nil {
			least = min(*grace, *had)
		}
		w.rec.StopGrace = &least
	}
	w.rec.StopAsked, w.rec.dirty = true, true
}
