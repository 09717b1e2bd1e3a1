package server

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// session is one exec, attach or port-forward, and the hijacked connection of its caller. It
// ends when its streams end, when a read from the caller fails, or when the server ends. The end
// closes the connection.
type session struct {
	http.ResponseWriter
	ctx       context.Context
	cancel    context.CancelFunc
	webSocket bool // the protocol is WebSocket; SPDY otherwise
	wg        sync.WaitGroup

	mu   sync.Mutex
	conn *hijackedConn // nil until it is hijacked
}

// newSession returns a session and its request, whose context ends with the session.
func newSession(w http.ResponseWriter, r *http.Request) (*session, *http.Request) {
	ctx, cancel := context.WithCancel(r.Context())
	return &session{ResponseWriter: w, ctx: ctx, cancel: cancel, webSocket: wsstream.IsWebSocketRequest(r)}, r.WithContext(ctx)
}

// Hijack implements http.Hijacker. The session owns the connection.
func (s *session) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buf, err := http.NewResponseController(s.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	// Read first returns the bytes that net/http has buffered, and then reads from the connection.
	// Every read goes through the hijackedConn, which ends the session when one fails.
	ahead, _ := buf.Reader.Peek(buf.Reader.Buffered())
	t := &hijackedConn{Conn: conn, session: s}
	t.in = io.MultiReader(bytes.NewReader(bytes.Clone(ahead)), readerFunc(t.read))
	if s.webSocket {
		t.in = readWebSocketFrames(bufio.NewReader(t.in))
	}
	s.mu.Lock()
	s.conn = t
	s.mu.Unlock()
	closeAfter(s.ctx, conn)
	s.wg.Go(func() { s.watch(t) })
	return t, bufio.NewReadWriter(bufio.NewReader(t), bufio.NewWriter(t)), nil
}

// closeAfter closes a connection closeTimeout after ctx is done. This ends a write that blocks
// because the other side does not read.
func closeAfter(ctx context.Context, conn net.Conn) {
	context.AfterFunc(ctx, func() { time.AfterFunc(closeTimeout, func() { _ = conn.Close() }) })
}

// watchInterval is the interval in which a session checks whether its caller has hung up.
const watchInterval = time.Second

// watch ends the session when the caller has closed its connection although no read fails. The
// session does not read while a container does not accept its data, so watch checks the connection
// once a second. If the receive window is full, the caller's FIN does not arrive. The session then
// ends only when the caller's kernel gives up.
func (s *session) watch(t *hijackedConn) {
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	for before := int64(-1); ; {
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
		}
		now := t.reads.Load()
		if now == before && hasHungUp(t.Conn) {
			s.cancel()
		}
		before = now
	}
}

// lastWriteTimeout is how long the server may take to send the final status of a stream.
const lastWriteTimeout = 10 * time.Second

// limitLastWrite ends the session after lastWriteTimeout. The server calls it before it sends the
// last message. It sets no write deadline, because the WebSocket library sets its own at each
// write.
func (s *session) limitLastWrite() {
	late := time.AfterFunc(lastWriteTimeout, s.cancel)
	context.AfterFunc(s.ctx, func() { late.Stop() })
}

// end ends the session: it closes the connection, if it was hijacked, and waits for the
// session's goroutines. A blocked write ends within closeTimeout.
func (s *session) end() {
	s.cancel()
	if conn := s.hijacked(); conn != nil {
		_ = conn.Close()
	}
	s.wg.Wait()
}

// hijacked returns the connection, nil until it is hijacked.
func (s *session) hijacked() *hijackedConn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conn
}

// hijackedConn is the connection of a session.
type hijackedConn struct {
	net.Conn
	session *session
	closing sync.Once
	in      io.Reader
	reads   atomic.Int64 // number of finished reads
}

// Read implements net.Conn.
func (t *hijackedConn) Read(b []byte) (int, error) {
	n, err := t.in.Read(b)
	if err != nil {
		t.session.cancel()
	}
	return n, err
}

// read reads from the connection itself.
func (t *hijackedConn) read(b []byte) (int, error) {
	n, err := t.Conn.Read(b)
	t.reads.Add(1)
	return n, err
}

// readerFunc is a function that is an io.Reader.
type readerFunc func([]byte) (int, error)

// Read implements io.Reader.
func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// closeTimeout is how long a connection stays open after its session has ended, so that the
// caller gets the last message.
const closeTimeout = 500 * time.Millisecond

// Close implements net.Conn. It reads and discards input first: the kernel resets a
// connection that is closed with unread input, and the caller would lose the last message.
func (t *hijackedConn) Close() error {
	var err error
	t.closing.Do(func() {
		if half, ok := t.Conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
			_ = t.SetReadDeadline(time.Now().Add(closeTimeout))
			_, _ = io.Copy(io.Discard, t.Conn)
		}
		err = t.Conn.Close()
	})
	return err
}

// requireUpgrade returns an error if a request does not ask to upgrade to WebSocket or SPDY.
func requireUpgrade(r *http.Request) error {
	if wsstream.IsWebSocketRequest(r) || isSPDY(r) {
		return nil
	}
	return &StatusError{Code: http.StatusBadRequest, Message: "Upgrade request required"}
}
