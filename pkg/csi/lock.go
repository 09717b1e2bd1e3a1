package csi

import (
	"context"
	"sync"
)

// locks are locks by volume. One operation at a time works on a volume.
type locks struct {
	mu  sync.Mutex
	all map[volumeID]*lock
}

type lock struct {
	held  chan struct{} // cap 1
	users int
}

// lock locks a volume, or returns the error of ctx.
func (l *locks) lock(ctx context.Context, id volumeID) (unlock func(), err error) {
	l.mu.Lock()
	if l.all == nil {
		l.all = make(map[volumeID]*lock)
	}
	of := l.all[id]
	if of == nil {
		of = &lock{held: make(chan struct{}, 1)}
		l.all[id] = of
	}
	of.users++
	l.mu.Unlock()
	leave := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if of.users--; of.users == 0 {
			delete(l.all, id)
		}
	}
	select {
	case of.held <- struct{}{}:
		return func() { <-of.held; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, context.Cause(ctx)
	}
}
