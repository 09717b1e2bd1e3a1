package engine

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/nodectl/nodectl/pkg/activity"
	"github.com/nodectl/nodectl/pkg/pod"
)

// queueUpdate has flush send the newest update to the entry's worker at the end of this iteration of
// the loop. With changed, the update gets a new generation. If a report about an older generation
// then says that the pod is gone, has terminated or has freed a UID, the loop ignores that. An
// update that can change none of these facts, such as a probe status, needs no new generation.
func (l *loop) queueUpdate(e *entry, changed bool) {
	if changed {
		l.ids.update++
		e.gen = l.ids.update
	}
	if !e.queued {
		e.queued = true
		l.pending = append(l.pending, e)
	}
}

// flush sends the pending updates.
func (l *loop) flush(ctx context.Context) {
	for _, e := range l.pending {
		e.queued = false
		if l.pods[e.key] == e {
			l.send(ctx, e)
		}
	}
	l.pending = l.pending[:0]
}

// send sends the newest update to the pod's worker; it starts the worker if there is none.
// It never waits: it replaces an update that the worker has not read yet.
func (l *loop) send(ctx context.Context, e *entry) {
	if e.want != nil && !e.admitted && e.refused == (refusal{}) {
		l.env.board.SetState(e.key, activity.State{WaitFor: "admission: the Node object of this node is not known yet"})
		return // admission has not decided yet
	}
	if e.updates == nil {
		e.updates = make(chan podUpdate, 1)
		w := &worker{
			env:         l.env,
			key:         e.key,
			seq:         e.seq,
			uid:         e.uid,
			updates:     e.updates,
			log:         l.log.With("pod", e.key.String()),
			failedSteps: newFailedSteps(),
			created:     make(map[string]string),
			reported:    reported{status: l.cfg.Before[e.key]},

			planningSince: &atomic.Int64{},
		}
		e.planningSince = w.planningSince
		if l.cfg.WorkerStarted != nil {
			l.cfg.WorkerStarted(time.Since(e.since))
		}
		l.workers.Go(func() { w.runAndRecover(ctx) })
	}
	select {
	case <-e.updates:
	default:
	}
	stopWaits, stopUntil := l.stopWaits(e)
	e.updates <- podUpdate{
		gen:        e.gen,
		want:       e.withPlaced(e.withAllocated()),
		unplaced:   e.unplaced,
		requested:  e.requested(),
		refused:    e.refused,
		health:     e.health,
		network:    l.runtime.Network,
		runtime:    l.runtime.Runtime,
		resize:     e.resize,
		waits:      l.waits(e),
		stopWaits:  stopWaits,
		stopUntil:  stopUntil,
		operations: e.operations,
		noNetwork:  l.runtime.NetworkMessage,
		halt:       l.haltOf(e),
		devices:    l.ids.devices,
	}
}

// podUpdate has all that a worker gets from the sync loop about its pod. Each update is complete: a
// worker may miss one, or read the same one twice.
type podUpdate struct {
	gen       uint64
	want      *pod.Spec // with the allocated resources, see withAllocated; nil: stop and remove the pod
	requested *pod.Spec // with the requested resources, see requested
	refused   refusal   // of the pod, or of an edit of an admitted pod
	unplaced  refusal   // see admission.unplaced
	health    pod.Health
	network   bool
	runtime   bool // the runtime is ready
	// resize is why the pod does not get the resources it requests.
	resize refusal
	// waits is a text that names the pod that has to reach its condition before this pod starts.
	// stopWaits is one that names the pod that has to be gone before this pod stops. "" is none.
	waits, stopWaits string
	stopUntil        time.Time // this pod stops then, even if the pod in stopWaits is not gone
	// operations are the newest requested ones, in order; the worker knows which it has
	// acknowledged.
	operations []*operation
	// noNetwork says why the network is not ready.
	noNetwork string
	halt      podHalt
	// devices counts the changes of devices of plugins, and of drivers of claims.
	devices uint64
}

// refusal is why admission refuses a pod, an edit of an admitted pod, or a resize. Zero means
// that it was not refused: it was admitted, or not judged yet.
type refusal struct {
	reason, message string
	final           bool // the pod has Failed, and admission does not judge it again
}
