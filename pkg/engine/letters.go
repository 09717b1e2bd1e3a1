package engine

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
)

// send puts an entry into the outbox: its worker gets the newest letter at the
// end of this turn. news says that the letter tells more than that it is time to
// look.
func (l *loop) send(e *entry, news bool) {
	if news {
		l.ids.letter++
		e.gen = l.ids.letter
	}
	if !e.posted {
		e.posted = true
		l.outbox = append(l.outbox, e)
	}
}

// post empties the outbox.
func (l *loop) post(ctx context.Context) {
	for _, e := range l.outbox {
		e.posted = false
		if l.pods[e.key] == e {
			l.deliver(ctx, e)
		}
	}
	l.outbox = l.outbox[:0]
}

// deliver puts the newest letter into the box of the pod's worker, which it
// starts where there is none. It never waits: a letter not yet read is replaced.
func (l *loop) deliver(ctx context.Context, e *entry) {
	if e.want != nil && !e.seated && e.refused == (refusal{}) {
		return // admission decides first
	}
	if e.mail == nil {
		e.mail = make(chan letter, 1)
		w := &worker{
			env:      l.env,
			key:      e.key,
			seq:      e.seq,
			uid:      e.uid,
			mail:     e.mail,
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
	case <-e.mail:
	default:
	}
	stopWaits, stopUntil := l.stopWaits(e)
	e.mail <- letter{
		gen:       e.gen,
		want:      e.granted(),
		asked:     e.want,
		refused:   e.refused,
		health:    e.health,
		network:   l.runtime.Network,
		runtime:   l.runtime.Runtime,
		resize:    e.resize,
		evicted:   e.evicted,
		waits:     l.waits(e),
		stopWaits: stopWaits,
		stopUntil: stopUntil,
		errands:   e.errands,
		noNetwork: l.runtime.NetworkMessage,
	}
}

// letter is all that the sync loop has to tell a worker: always everything,
// always the newest, so that losing or repeating one is harmless.
type letter struct {
	gen     uint64
	want    *pod.Spec // nil: the pod has to go
	asked   *pod.Spec // want, but with the resources that it asks for and is not given
	refused refusal
	health  pod.Health
	network bool
	runtime bool     // it is ready to make things
	evicted overfull // an instance that has to end
	// resize is why the pod does not get the resources it asks for now.
	resize refusal
	// waits and stopWaits name the pod that has to come, or go, before this one.
	waits, stopWaits string
	stopUntil        time.Time // stopWaits is over then
	// errands are what was asked for, the newest last; the worker knows which it heeded.
	errands []*errand
	// noNetwork says why the network is not ready.
	noNetwork string
}

// refusal is admission's word; the zero one lets the pod in.
type refusal struct {
	reason, message string
	final           bool // the pod has Failed: it is not judged again
}
