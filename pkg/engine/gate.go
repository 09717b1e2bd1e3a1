package engine

import (
	"container/heap"
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
)

// gate hands out start slots: one pod more starts at once than there are cores, the
// most critical and then the oldest first. The machine is bound by the runtime's
// forks, so that more at once delay the first pods; but a start also waits, for the
// kernel, for disks and for an API server, and a machine with few starts is idle
// meanwhile. So where pods wait, each start that is done makes room for two, up to
// a bound, until nobody waits: the first are early, and the last are not late.
type gate struct {
	requests    chan *ticket
	withdrawals chan *ticket
	releases    chan bool // true: what was to start has

	usual atomic.Int64 // how long a call lasts that starts something, in nanoseconds; 0: none has ended

	// Owned by run.
	free    int
	added   int // slots beside the first ones, up to mostAdded
	waiting ticketHeap
}

type ticket struct {
	want  *pod.Spec
	seq   uint64        // order of the pod's arrival in the sync loop
	grant chan struct{} // capacity 1: the gate never waits for who asked
}

// mostAdded is how many more may start at once where many wait: what they wait for is
// mostly the one disk, whatever the cores.
const mostAdded = 7

// newGate returns a gate with so many slots at first.
func newGate(slots int) *gate {
	return &gate{requests: make(chan *ticket), withdrawals: make(chan *ticket), releases: make(chan bool), free: slots}
}

func (g *gate) run(ctx context.Context) {
	for {
		select {
		case t := <-g.requests:
			heap.Push(&g.waiting, t)
		case t := <-g.withdrawals:
			if i := slices.Index(g.waiting, t); i >= 0 {
				heap.Remove(&g.waiting, i)
			} else {
				g.free++ // it was granted meanwhile
			}
		case started := <-g.releases:
			g.free++
			if more := min(2, mostAdded-g.added); started {
				g.free += more
				g.added += more
			}
		case <-ctx.Done():
			return
		}
		for g.free > 0 && g.waiting.Len() > 0 {
			g.free--
			heap.Pop(&g.waiting).(*ticket).grant <- struct{}{}
		}
		if spare := min(g.free, g.added); g.waiting.Len() == 0 { // the next crowd begins anew
			g.free -= spare
			g.added -= spare
		}
	}
}

// The bounds of patience.
const (
	leastPatience = 500 * time.Millisecond
	mostPatience  = 5 * time.Second
)

// patience is how long a call that starts something may hold a start slot: a
// runtime that hangs over one pod must not hold the others (F22), and one that is
// slow with all of them must not be asked for more at once. So it follows how
// long such calls last.
func (g *gate) patience() time.Duration {
	usual := time.Duration(g.usual.Load())
	if usual == 0 {
		return mostPatience
	}
	return min(leastPatience+4*usual, mostPatience)
}

// took notes how long a call lasted that started something.
func (g *gate) took(d time.Duration) {
	for {
		old := g.usual.Load()
		now := max(int64(d), 1)
		if old != 0 {
			now = old + (now-old)/8
		}
		if g.usual.CompareAndSwap(old, max(now, 1)) {
			return
		}
	}
}

// ask puts t in the queue: its grant is sent when it has a slot. It fails only at
// the end of ctx.
func (g *gate) ask(ctx context.Context, t *ticket) error {
	select {
	case g.requests <- t:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// withdraw takes t out of the queue, or gives back the slot it has by now.
func (g *gate) withdraw(ctx context.Context, t *ticket) {
	select {
	case g.withdrawals <- t:
	case <-ctx.Done():
	}
}

// release gives a slot back; started says that what was to start has.
func (g *gate) release(ctx context.Context, started bool) {
	select {
	case g.releases <- started:
	case <-ctx.Done():
	}
}

type ticketHeap []*ticket

func (h ticketHeap) Len() int { return len(h) }
func (h ticketHeap) Less(i, j int) bool {
	if a, b := plan.Priority(h[i].want), plan.Priority(h[j].want); a != b {
		return a > b
	}
	return h[i].seq < h[j].seq
}
func (h ticketHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *ticketHeap) Push(x any)   { *h = append(*h, x.(*ticket)) }
func (h *ticketHeap) Pop() any {
	old := *h
	t := old[len(old)-1]
	*h = old[:len(old)-1]
	return t
}
