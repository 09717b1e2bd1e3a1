package apiclient

import (
	"context"
	"sync"
)

// limiter bounds how many first requests are under way, in all and for each namespace.
type limiter struct {
	all chan struct{} // capacity MaxFirstRequests; a request sends before it, and receives after it

	mu     sync.Mutex        // guards shares and their users
	shares map[string]*share // by namespace, as long as it has users
}

// share is the slots of one namespace.
type share struct {
	users int           // requests that wait or are under way
	slots chan struct{} // capacity MaxNamespaceRequests
}

func newLimiter() limiter {
	return limiter{all: make(chan struct{}, MaxFirstRequests), shares: map[string]*share{}}
}

// acquire waits until a request for objects of namespace may begin. done frees its slot.
func (t *limiter) acquire(ctx context.Context, namespace string) (done func(), err error) {
	t.mu.Lock()
	s := t.shares[namespace]
	if s == nil {
		s = &share{slots: make(chan struct{}, MaxNamespaceRequests)}
		t.shares[namespace] = s
	}
	s.users++
	t.mu.Unlock()
	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if s.users--; s.users == 0 {
			delete(t.shares, namespace)
		}
	}
	select {
	case s.slots <- struct{}{}:
	case <-ctx.Done():
		leave()
		return nil, context.Cause(ctx)
	}
	select {
	case t.all <- struct{}{}:
		return func() {
			<-t.all
			<-s.slots
			leave()
		}, nil
	case <-ctx.Done():
		<-s.slots
		leave()
		return nil, context.Cause(ctx)
	}
}
