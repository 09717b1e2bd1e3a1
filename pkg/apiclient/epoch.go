package apiclient

import (
	"context"
	"sync"
)

// epoch is the time during which a server's data only move forward. A server that is
// restored from a backup agrees to a watch of a resource version of the future, and sends
// no event of it (F71). So a new epoch begins, for all kinds together, and every
// collection is listed again.
type epoch struct {
	mu     sync.Mutex      // guards the fields below
	data   context.Context // done when the epoch is over; nil: nothing was read in it
	over   func()          // ends data
	newest string          // resource version that a reflector has seen
}

// now returns a context that is done when the epoch is over.
func (e *epoch) now() context.Context {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.data == nil {
		e.data, e.over = context.WithCancel(context.Background())
	}
	return e.data
}

// end begins a new epoch.
func (e *epoch) end() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.data != nil {
		e.over()
		e.data = nil
	}
	e.newest = ""
}

// saw notes a resource version that a reflector of an epoch has seen. One of an epoch that
// is over says nothing about the server's data now.
func (e *epoch) saw(of context.Context, version string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if of != e.data {
		return
	}
	if e.newest == "" || Older(e.newest, version) {
		e.newest = version
	}
}

// Epoch returns a context that is done when the server's data turn out to have been set back.
// Collections listed before it have to be listed again (F71).
func (c *Client) Epoch() context.Context { return c.epoch.now() }

// NewestVersion returns the newest resource version that a reflector has seen; "" for none.
func (r *Reader) NewestVersion() string {
	e := &r.client.epoch
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.newest
}

// IsRolledBack reports whether version, which the server has just sent, is older than seen,
// which it sent before. If it is older than seen, or than newest, a new epoch begins.
// newest is NewestVersion from before the request: other watches may see newer versions
// while it is answered.
func (r *Reader) IsRolledBack(version, seen, newest string) bool {
	back := Older(version, seen)
	if back || Older(version, newest) {
		r.client.epoch.end()
	}
	return back
}
