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
	// Peer is the peer of a remote caller, as the function Peer returns it.
	Peer netip.Prefix
	// Local says that the caller is on the local socket: root or the agent's own user. It may do
	// everything.
	Local bool
	// LocalUID and PID are the local caller's user and process, read from the kernel. The
	// PID is 0 for a process of another PID namespace.
	LocalUID uint32
	PID      int32
}

// Access authenticates and authorizes callers of the TLS listener. Its methods are
// safe for concurrent use.
type Access interface {
	// Authenticate authenticates the caller. If ok is false, or err is not nil, the server answers
	// 401. If err is a *StatusError, the server answers with that instead.
	Authenticate(r *http.Request) (c Caller, ok bool, err error)
	// Authorize reports whether c may do verb on nodes/<node>/<subresource> for one of the
	// subresources. It checks them in order until one is allowed. reason is for the log. If err
	// is not nil, the server answers 500 and allows nothing (C-1.40.4). If err is a
	// *StatusError, the server answers with that instead. The server does not limit the callers
	// that wait in Authorize, so Authorize has to limit them.
	Authorize(ctx context.Context, c Caller, verb string, subresources ...string) (ok bool, reason string, err error)
}
