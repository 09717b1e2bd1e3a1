// Package keylock has locks by key: one operation at a time works on one volume, claim or directory, and
// operations on others do not wait for it.
//
// A wait ends with its context, since an operation may hang. Only locks that are held or
// waited for are kept.
package keylock

import (
	"context"
	"sync"
)

// Locks are locks by key. The zero value is ready to use.
type Locks[K comparable] struct {
	mu  sync.Mutex // guards all, for the length of one map access
	all map[K]*lock
}

type lock struct {
	held  chan struct{} // cap 1
	users int           // guarded by Locks.mu
}

// Lock locks a key and returns the function that unlocks it. If ctx ends before that, it returns the
// cause.
func (l *Locks[K]) Lock(ctx context.Context, key K) (unlock func(), err error) {
	l.mu.Lock()
	if l.all == nil {
		l.all = make(map[K]*lock)
	}
	of := l.all[key]
	if of == nil {
		of = &lock{held: make(chan struct{}, 1)}
		l.all[key] = of
	}
	of.users++
	l.mu.Unlock()
	leave := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if of.users--; of.users == 0 {
			delete(l.all, key)
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
