package engine

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
)

// queueUpdate has the worker of an entry get the newest update at the end of this turn.
// changed says that the update tells more than that it is time to look.
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

// send sends the newest update to the pod's worker, which it starts where there is none.
// It never waits: it replaces an update that the worker has not read yet.
func (l *loop) send(ctx context.Context, e *entry) {
	if e.want != nil && !e.admitted && e.refused == (refusal{}) {
		return // admission decides first
	}
	if e.updates == nil {
		e.updates = make(chan podUpdate, 1)
		w := &worker{
			env:      l.env,
			key:      e.key,
			seq:      e.seq,
			uid:      e.uid,
			updates:  e.updates,
			log:      l.log.With("pod", e.key.String()),
			trouble:  newTroubles(),
			created:  make(map[string]string),
			reported: reported{status: l.cfg.Before[e.key]},

			planningSince: &atomic.Int64{},
		}
		e.planningSince = w.planningSince
		if l.cfg.WorkerStarted != nil {
			l.cfg.WorkerStarted(time.Since(e.since))
		}
		l.workers.Go(func() { w.live(ctx) })
	}
	select {
	case <-e.updates:
	default:
	}
	stopWaits, stopUntil := l.stopWaits(e)
	e.updates <- podUpdate{
		gen:        e.gen,
		want:       e.granted(),
		requested:  e.requested(),
		refused:    e.refused,
		health:     e.health,
		network:    l.runtime.Network,
		runtime:    l.runtime.Runtime,
		resize:     e.resize,
		evicted:    e.evicted,
		waits:      l.waits(e),
		stopWaits:  stopWaits,
		stopUntil:  stopUntil,
		operations: e.operations,
		noNetwork:  l.runtime.NetworkMessage,
	}
}

// podUpdate is all that a worker needs to know from the sync loop: always everything, always
// the newest, so that losing or repeating one is harmless.
type podUpdate struct {
	gen       uint64
	want      *pod.Spec // nil: the pod has to go
	requested *pod.Spec // want, but with the resources that it asks for and is not given
	refused   refusal
	health    pod.Health
	network   bool
	runtime   bool     // it is ready to make things
	evicted   overfull // an instance that has to end
	// resize is why the pod does not get the resources it asks for now.
	resize refusal
	// waits and stopWaits name the pod that has to come, or go, before this one.
	waits, stopWaits string
	stopUntil        time.Time // stopWaits is over then
	// operations are what was requested, the newest last; the worker knows which it has
	// acknowledged.
	operations []*operation
	// noNetwork says why the network is not ready.
	noNetwork string
}

// refusal is why admission does not let a pod start; the zero one admits it.
type refusal struct {
	reason, message string
	final           bool // the pod has Failed: it is not judged again
}
