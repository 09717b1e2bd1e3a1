// Package startlimit limits how many pods start at once.
//
// The runtime's forks limit the machine, so more starts at once delay the first pods. But a
// start also waits for the kernel, for disks and for an API server, and with few starts the
// machine is idle meanwhile. So the limiter begins with a few slots. While pods wait, each
// completed start adds up to two more, up to a maximum. When no pod waits, the limit falls
// back to the first one. The first pods start early, and the last are not late.
//
// Run owns the slots. Callers ask over channels and never hold a lock.
package startlimit

import (
	"container/heap"
	"context"
	"slices"
	"sync/atomic"
	"time"
)

// maxAddedSlots is how many slots the limiter adds at most: many starts mostly wait for one
// disk, whatever the number of cores.
const maxAddedSlots = 7

// How long a call may hold a start slot, see SlotTimeout.
const (
	minSlotTimeout = 500 * time.Millisecond
	maxSlotTimeout = 5 * time.Second
)

// Limiter hands out start slots: by priority, then by the age of the pods, then in the order in
// which they came.
// Its methods but Run are safe for concurrent use.
type Limiter struct {
	requests    chan *Waiter
	withdrawals chan *Waiter
	releases    chan bool // true: the pod has started

	// average is the average duration of calls that start something, in nanoseconds; 0 before
	// the first one has ended.
	average atomic.Int64

	// Owned by Run.
	free    int
	added   int // slots beside the first ones, up to maxAddedSlots
	waiting queue
}

// Waiter is one request for a slot.
type Waiter struct {
	priority int32
	created  int64
	order    uint64
	granted  chan struct{} // capacity 1: Run never waits for a waiter
}

// New returns a limiter with a first limit of slots.
func New(slots int) *Limiter {
	return &Limiter{requests: make(chan *Waiter), withdrawals: make(chan *Waiter), releases: make(chan bool), free: slots}
}

// Run hands out slots until ctx ends.
func (l *Limiter) Run(ctx context.Context) {
	for {
		select {
		case w := <-l.requests:
			heap.Push(&l.waiting, w)
		case w := <-l.withdrawals:
			if i := slices.Index(l.waiting, w); i >= 0 {
				heap.Remove(&l.waiting, i)
			} else {
				l.free++ // it was granted meanwhile
			}
		case started := <-l.releases:
			l.free++
			if more := min(2, maxAddedSlots-l.added); started {
				l.free += more
				l.added += more
			}
		case <-ctx.Done():
			return
		}
		for l.free > 0 && l.waiting.Len() > 0 {
			l.free--
			heap.Pop(&l.waiting).(*Waiter).granted <- struct{}{}
		}
		if spare := min(l.free, l.added); l.waiting.Len() == 0 { // the next burst begins with the first limit
			l.free -= spare
			l.added -= spare
		}
	}
}

// Request queues for a slot. A waiter with a higher priority comes first, then the one whose pod
// was created earlier, in seconds, then the one with the lower order. It fails only at the end of
// ctx.
func (l *Limiter) Request(ctx context.Context, priority int32, created int64, order uint64) (*Waiter, error) {
	w := &Waiter{priority: priority, created: created, order: order, granted: make(chan struct{}, 1)}
	select {
	case l.requests <- w:
		return w, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Granted receives one value when the waiter has its slot.
func (w *Waiter) Granted() <-chan struct{} { return w.granted }

// Withdraw takes a waiter whose grant was not received out of the queue, or gives the
// slot back that it has by now.
func (l *Limiter) Withdraw(ctx context.Context, w *Waiter) {
	select {
	case l.withdrawals <- w:
	case <-ctx.Done():
	}
}

// Release gives a slot back; started says that the pod has started.
func (l *Limiter) Release(ctx context.Context, started bool) {
	select {
	case l.releases <- started:
	case <-ctx.Done():
	}
}

// SlotTimeout is how long a call that starts something may hold a start slot. A runtime that
// hangs over one pod must not block the others (F22). A runtime that is slow with all of them
// must not get more calls at once. So the timeout follows the duration of such calls.
func (l *Limiter) SlotTimeout() time.Duration {
	average := time.Duration(l.average.Load())
	if average == 0 {
		return maxSlotTimeout
	}
	return min(minSlotTimeout+4*average, maxSlotTimeout)
}

// RecordCall records the duration of a call that started something.
func (l *Limiter) RecordCall(d time.Duration) {
	for {
		old := l.average.Load()
		now := max(int64(d), 1)
		if old != 0 {
			now = old + (now-old)/8
		}
		if l.average.CompareAndSwap(old, max(now, 1)) {
			return
		}
	}
}

// queue is a heap of waiters, the next one first.
type queue []*Waiter

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	if a, b := q[i].priority, q[j].priority; a != b {
		return a > b
	}
	if a, b := q[i].created, q[j].created; a != b {
		return a < b
	}
	return q[i].order < q[j].order
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)   { *q = append(*q, x.(*Waiter)) }
func (q *queue) Pop() any {
	old := *q
	w := old[len(old)-1]
	*q = old[:len(old)-1]
	return w
}
