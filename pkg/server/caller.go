package server

import (
	"context"
	"net/http"
)

// Caller is who asks.
type Caller struct {
	Name, UID string
	Groups    []string
	Extra     map[string][]string
	// Local is set for a caller on the local socket: root or the agent's own user,
	// who may do everything.
	Local bool
	// LocalUID and PID are the local caller's user and process, as the kernel says. The
	// PID is 0 for a process of another PID namespace.
	LocalUID uint32
	PID      int32
}

// Access says who asks on the TLS listener, and what they may do. Its methods are
// called from many goroutines.
type Access interface {
	// Who says who asks; ok is false for nobody known, which is answered 401. So is
	// an error, which says that it could not be found out; a *Refusal is answered in
	// its own words.
	Who(r *http.Request) (c Caller, ok bool, err error)
	// May asks in order whether c may do verb on one of nodes/<node>/<subresource>;
	// the first yes suffices. why is for the log. err says that it could not be
	// asked, which is answered 500: nothing is allowed then (C-1.40.4).
	May(ctx context.Context, c Caller, verb string, subresources ...string) (ok bool, why string, err error)
}
