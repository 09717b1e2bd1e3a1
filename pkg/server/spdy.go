package server

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"sync/atomic"

	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// spdyConn is a caller's connection after the upgrade to SPDY.
type spdyConn struct {
	net.Conn
	in io.Reader
	// broken is set after a failed write. The library blocks forever in a write to a stream
	// whose reply it could not send.
	broken atomic.Bool
}

// Read implements net.Conn.
func (c *spdyConn) Read(b []byte) (int, error) { return c.in.Read(b) }

// Write implements net.Conn.
func (c *spdyConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if err != nil {
		c.broken.Store(true)
	}
	return n, err
}

// spdyUpgrade returns the hijacked connection as a spdyConn.
type spdyUpgrade struct {
	http.ResponseWriter
	streams int
	conn    *spdyConn // nil until it is hijacked
}

// Hijack implements http.Hijacker.
func (u *spdyUpgrade) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buf, err := http.NewResponseController(u.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	in, err := readSPDYFrames(buf.Reader, u.streams)
	if err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	u.conn = &spdyConn{Conn: conn, in: in}
	return u.conn, bufio.NewReadWriter(bufio.NewReader(u.conn), buf.Writer), nil
}

// callerSPDY is an upgraded connection of a caller.
type callerSPDY struct {
	httpstream.Connection
	conn *spdyConn
}

// upgradeSPDY upgrades a request to SPDY. It returns nil after it has answered with an error.
// streams limits the number of streams; a negative number is no limit. The library calls add for
// each new stream. add must not block, because the library has five goroutines for all frames of a
// connection.
func upgradeSPDY(w http.ResponseWriter, q *http.Request, streams int, add httpstream.NewStreamHandler) *callerSPDY {
	u := &spdyUpgrade{ResponseWriter: w, streams: streams}
	conn := spdy.NewResponseUpgrader().UpgradeResponse(u, q, add)
	if conn == nil {
		return nil
	}
	return &callerSPDY{conn, u.conn}
}

// replied waits for the reply to a stream, and reports whether it was sent. Only then may
// the stream be written to.
func (c *callerSPDY) replied(q *http.Request, reply <-chan struct{}) bool {
	select {
	case <-reply:
	case <-c.CloseChan():
		return false
	case <-q.Context().Done():
		return false
	}
	select {
	case <-c.CloseChan():
		return false
	default:
		return !c.conn.broken.Load()
	}
}
