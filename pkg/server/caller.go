package server

import (
	"context"
	"net/http"
	"net/netip"
)

// Caller is the authenticated user of a request.
type Caller struct {
	Name, UID string
	Groups    []string
	Extra     map[string][]string
	// Peer is the address that a remote caller's request comes from, as Peer returns it.
	Peer netip.Prefix
	// Local is set for a caller on the local socket: root or the agent's own user,
	// who may do everything.
	Local bool
	// LocalUID and PID are the local caller's user and process, read from the kernel. The
	// PID is 0 for a process of another PID namespace.
	LocalUID uint32
	PID      int32
}

// Access authenticates and authorizes callers of the TLS listener. Its methods are
// safe for concurrent use.
type Access interface {
	// Who authenticates the caller. The server answers 401 where ok is false, and where
	// authentication failed with an error; it answers a *Refusal with its code and
	// message.
	Who(r *http.Request) (c Caller, ok bool, err error)
	// May asks in order whether c may do verb on one of nodes/<node>/<subresource>;
	// the first yes suffices. why is for the log. If authorization fails with an
	// error, the server answers 500 and allows nothing (C-1.40.4); it answers a *Refusal
	// with its code and message. Callers wait in May before they take a place for a request,
	// so May bounds how many wait.
	May(ctx context.Context, c Caller, verb string, subresources ...string) (ok bool, why string, err error)
}
