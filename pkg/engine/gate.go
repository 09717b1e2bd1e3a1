package engine

import (
	"container/heap"
	"context"

	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
)

// gate hands out start slots: as many pods start at once as there are cores,
// the most critical and then the oldest first. More at once only delays the
// first pod; the machine is bound by the runtime's forks.
type gate struct {
	requests chan *ticket
	releases chan struct{}

	// Owned by run.
	free    int
	waiting ticketHeap
}

type ticket struct {
	want  *pod.Spec
	seq   uint64        // order of the pod's arrival in the sync loop
	grant chan struct{} // capacity 1: the gate never waits for who asked
}

func newGate(slots int) *gate {
	return &gate{requests: make(chan *ticket), releases: make(chan struct{}), free: slots}
}

func (g *gate) run(ctx context.Context) {
	for {
		select {
		case t := <-g.requests:
			heap.Push(&g.waiting, t)
		case <-g.releases:
			g.free++
		case <-ctx.Done():
			return
		}
		for g.free > 0 && g.waiting.Len() > 0 {
			g.free--
			heap.Pop(&g.waiting).(*ticket).grant <- struct{}{}
		}
	}
}

// acquire waits for a slot; it fails only at the end of ctx.
func (g *gate) acquire(ctx context.Context, want *pod.Spec, seq uint64) error {
	t := &ticket{want: want, seq: seq, grant: make(chan struct{}, 1)}
	select {
	case g.requests <- t:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-t.grant:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (g *gate) release(ctx context.Context) {
	select {
	case g.releases <- struct{}{}:
	case <-ctx.Done():
	}
}

type ticketHeap []*ticket

func (h ticketHeap) Len() int { return len(h) }
func (h ticketHeap) Less(i, j int) bool {
	if c := plan.StartOrder(h[i].want, h[j].want); c != 0 {
		return c < 0
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
