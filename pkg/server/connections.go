package server

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"
)

// limitedListener closes connections above its limits at once, so that the agent keeps
// file descriptors for its pods (F10).
//
// A connection counts for its peer until a request on it is authorized. From then on it counts for
// its caller, because the API server is one peer and opens connections for all its users. Three
// quarters of the limit are for callers. A caller gets one of these only while it has fewer than are
// free. Its other connections continue to count for their peer.
type limitedListener struct {
	net.Listener
	name           string
	limit, perPeer int // perPeer is the limit of one peer, or 0 for none
	log            *slog.Logger
	warnings       WarningLimiter

	mu      sync.Mutex
	count   int
	callers int         // connections that count for callers
	counts  map[any]int // by peer (netip.Prefix), and by name of a caller (string)
}

func (s *Server) limitListener(l net.Listener, name string, limit, perPeer int) *limitedListener {
	return &limitedListener{Listener: l, name: name, limit: limit, perPeer: perPeer, log: s.log, counts: map[any]int{}}
}

// Accept implements net.Listener.
func (c *limitedListener) Accept() (net.Conn, error) {
	for {
		conn, err := c.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if peer := Peer(conn.RemoteAddr().String()); c.enter(peer) {
			return &countedConn{Conn: conn, in: c, holder: peer}, nil
		}
		_ = conn.Close()
	}
}

// Peer returns the peer of an address with a port: the IPv4 address, or the IPv6 /64 network. One
// host may have all addresses of such a network. The zero value means that address is invalid.
func Peer(address string) netip.Prefix {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return netip.Prefix{}
	}
	ip, bits := at.Addr().Unmap().WithZone(""), 32
	if ip.Is6() {
		bits = 64
	}
	peer, _ := ip.Prefix(bits)
	return peer
}

func (c *limitedListener) enter(peer netip.Prefix) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.count >= c.limit || c.perPeer > 0 && c.counts[peer] >= c.perPeer {
		notLogged, ok := c.warnings.Allow()
		if !ok {
			return false
		}
		log := c.log.With("listener", c.name, "connections", c.count, "limit", c.limit,
			"peerNetwork", peer, "peerConnections", c.counts[peer], "peerLimit", c.perPeer, "notLogged", notLogged)
		if c.count >= c.limit {
			log.Warn("Too many connections; closing further ones")
		} else {
			log.Warn("Too many connections of one peer; closing further ones")
		}
		return false
	}
	c.count++
	c.counts[peer]++
	return true
}

// countForCaller counts a connection for a caller instead of its peer, if the caller has fewer
// connections than are free for callers.
func (c *limitedListener) countForCaller(conn *countedConn, caller string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, isPeer := conn.holder.(netip.Prefix); isPeer && c.counts[caller] < c.limit-c.limit/4-c.callers {
		c.forget(conn.holder)
		conn.holder = caller
		c.counts[caller]++
		c.callers++
	}
}

// release stops counting a connection, which is closed.
func (c *limitedListener) release(conn *countedConn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if conn.holder != nil {
		c.forget(conn.holder)
		conn.holder = nil
		c.count--
	}
}

// forget subtracts one connection from a peer or a caller; mu is held.
func (c *limitedListener) forget(holder any) {
	if c.counts[holder]--; c.counts[holder] == 0 {
		delete(c.counts, holder)
	}
	if _, isCaller := holder.(string); isCaller {
		c.callers--
	}
}

// warningInterval is the minimum time between two warnings.
const warningInterval = 10 * time.Second

// WarningLimiter limits a warning to one in warningInterval, and counts the others.
type WarningLimiter struct {
	mu        sync.Mutex // guards the fields below
	last      time.Time
	notLogged int
}

// Allow reports whether to log the warning now, and how many were not logged since the last
// one.
func (s *WarningLimiter) Allow() (notLogged int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if !s.last.IsZero() && now.Sub(s.last) < warningInterval {
		s.notLogged++
		return 0, false
	}
	notLogged, s.last, s.notLogged = s.notLogged, now, 0
	return notLogged, true
}

// countedConn is a connection that counts until it is closed.
type countedConn struct {
	net.Conn
	in     *limitedListener
	holder any // for which it counts, nil when it is closed; guarded by in.mu
}

// countedConnKey is the context's key for the counted connection of a request.
type countedConnKey struct{}

// withCountedConn is http.Server's ConnContext.
func withCountedConn(ctx context.Context, conn net.Conn) context.Context {
	for {
		switch c := conn.(type) {
		case *countedConn:
			return context.WithValue(ctx, countedConnKey{}, c)
		case interface{ NetConn() net.Conn }:
			conn = c.NetConn()
		default:
			return ctx
		}
	}
}

// countConnForCaller counts the connection of an authorized request for its caller.
func countConnForCaller(ctx context.Context, caller string) {
	if c, ok := ctx.Value(countedConnKey{}).(*countedConn); ok {
		c.in.countForCaller(c, caller)
	}
}

// Close implements net.Conn.
func (c *countedConn) Close() error {
	defer c.in.release(c)
	return c.Conn.Close()
}

// NetConn returns the connection itself.
func (c *countedConn) NetConn() net.Conn { return c.Conn }

// CloseWrite closes the sending half, if the connection supports it.
func (c *countedConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
