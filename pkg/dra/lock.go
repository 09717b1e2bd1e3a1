package dra

import (
	"context"
	"sync"
)

// locks are locks by claim. One operation at a time works on a claim.
type locks struct {
	mu  sync.Mutex
	all map[string]*lock
}

type lock struct {
	held  chan struct{} // cap 1
	users int
}

// lock locks a claim, or returns the error of ctx.
func (l *locks) lock(ctx context.Context, id string) (unlock func(), err error) {
	l.mu.Lock()
	if l.all == nil {
		l.all = make(map[string]*lock)
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
