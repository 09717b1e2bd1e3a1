package server

import (
	"log/slog"
	"net"
	"sync"
)

// crowded is a listener that hangs up whoever is one too many, at once: agents run
// out of file descriptors for their pods otherwise (F10). A connection counts
// until it is closed, whoever has it.
type crowded struct {
	net.Listener
	name           string
	limit, perPeer int // perPeer of 0 is no limit
	log            *slog.Logger

	mu    sync.Mutex
	count int
	peers map[string]int
	said  bool
}

func (s *Server) bounded(l net.Listener, name string, limit, perPeer int) *crowded {
	return &crowded{Listener: l, name: name, limit: limit, perPeer: perPeer, log: s.log, peers: map[string]int{}}
}

// Accept implements net.Listener.
func (c *crowded) Accept() (net.Conn, error) {
	for {
		conn, err := c.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if peer := peerName(conn); c.enter(peer) {
			return &counted{Conn: conn, left: sync.OnceFunc(func() { c.leave(peer) })}, nil
		}
		_ = conn.Close()
	}
}

func peerName(conn net.Conn) string {
	host, _, err := net.SplitHostPort(conn.RemoteAddr().String())
	if err != nil {
		return ""
	}
	return host
}

func (c *crowded) enter(peer string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.count >= c.limit || c.perPeer > 0 && c.peers[peer] >= c.perPeer {
		if !c.said {
			c.said = true
			c.log.Warn("Too many connections; more are hung up", "listener", c.name, "peer", peer, "connections", c.count, "limit", c.limit, "limitOfPeer", c.perPeer)
		}
		return false
	}
	c.count++
	if c.perPeer > 0 {
		c.peers[peer]++
	}
	return true
}

func (c *crowded) leave(peer string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count--
	if c.perPeer > 0 {
		if c.peers[peer]--; c.peers[peer] <= 0 {
			delete(c.peers, peer)
		}
	}
	if c.count < c.limit/2 {
		c.said = false
	}
}

// counted is a connection that counts until it is closed.
type counted struct {
	net.Conn
	left func()
}

// Close implements net.Conn.
func (c *counted) Close() error {
	defer c.left()
	return c.Conn.Close()
}

// NetConn returns the connection itself.
func (c *counted) NetConn() net.Conn { return c.Conn }

// CloseWrite says that nothing more is sent, where the connection can.
func (c *counted) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
