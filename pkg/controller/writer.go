package controller

import (
	"sync"
	"time"

	"github.com/nodectl/nodectl/pkg/boundedcall"
	"github.com/nodectl/nodectl/pkg/panics"
	"github.com/nodectl/nodectl/pkg/pod"
)

// writer writes to a Store in a goroutine of its own, one write after the other. A hanging disk
// delays only workloads that change, and no reading of a source. The goroutine ends when the queue
// is empty.
type writer struct {
	store Store
	wake  func() // called after the end of a write that is late

	mu    sync.Mutex
	queue []*write // the first one is being written
	runs  bool     // the goroutine runs
}

// write is one change of the Store.
type write struct {
	of    pod.ObjectKey
	layer string
	state []byte        // nil: remove the state
	done  chan struct{} // closed after the write
	err   error         // valid once done is closed
	late  bool          // Expand no longer waits for it
}

// isDone reports whether the write has ended.
func (w *write) isDone() bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

// add queues a write. It never waits.
func (w *writer) add(of pod.ObjectKey, layer string, state []byte) *write {
	next := &write{of: of, layer: layer, state: state, done: make(chan struct{})}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queue = append(w.queue, next)
	if !w.runs {
		w.runs = true
		boundedcall.Start(w.run)
	}
	return next
}

// isIdle reports whether every write has ended.
func (w *writer) isIdle() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.queue) == 0
}

func (w *writer) run() error {
	for next := w.first(); next != nil; next = w.first() {
		next.err = panics.ToError(func() error { return next.to(w.store) })
		if w.end(next) {
			w.wake()
		}
	}
	return nil
}

// first returns the next write. If there is none, it returns nil, and the goroutine must end.
func (w *writer) first() *write {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.queue) == 0 {
		w.queue, w.runs = nil, false
		return nil
	}
	return w.queue[0]
}

// end removes the first write from the queue, and reports whether it is late.
func (w *writer) end(first *write) (late bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queue = w.queue[1:]
	close(first.done)
	return first.late
}

// await waits for the end of these writes, at most for the limit. After a write that ends later, the
// writer calls wake.
func (w *writer) await(writes []*write, limit time.Duration) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for _, next := range writes {
		select {
		case <-next.done:
			continue
		case <-timer.C:
		}
		break
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, next := range writes {
		next.late = true
	}
}

// to applies the write to a Store.
func (w *write) to(s Store) error {
	if w.state == nil {
		return s.Remove(w.of)
	}
	return s.Save(w.of, w.layer, w.state)
}
