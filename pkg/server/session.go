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

// session is a connection that was taken over for streams. It ends when its caller
// is gone, which shows when nothing more can be read from it; when the server ends;
// or when the streams have. No connection is used for anything else afterwards.
type session struct {
	http.ResponseWriter
	ctx       context.Context
	leave     context.CancelFunc
	webSocket bool // is spoken in the connection; SPDY otherwise
	wg        sync.WaitGroup

	mu   sync.Mutex
	conn *taken // nil until it is taken over
}

// newSession returns a session and the request that is answered in it.
func newSession(w http.ResponseWriter, r *http.Request) (*session, *http.Request) {
	ctx, leave := context.WithCancel(r.Context())
	return &session{ResponseWriter: w, ctx: ctx, leave: leave, webSocket: wsstream.IsWebSocketRequest(r)}, r.WithContext(ctx)
}

// Hijack implements http.Hijacker: what is taken over belongs to the session.
func (s *session) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buf, err := http.NewResponseController(s.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	// What was read ahead comes first, then the connection itself: reads that go
	// round the session would not show that the caller is gone.
	ahead, _ := buf.Reader.Peek(buf.Reader.Buffered())
	t := &taken{Conn: conn, session: s}
	t.in = io.MultiReader(bytes.NewReader(bytes.Clone(ahead)), readerFunc(t.read))
	if s.webSocket {
		t.in = readWebSocketFrames(bufio.NewReader(t.in))
	}
	s.mu.Lock()
	s.conn = t
	s.mu.Unlock()
	cutAfter(s.ctx, conn)
	s.wg.Go(func() { s.watch(t) })
	return t, bufio.NewReadWriter(bufio.NewReader(t), bufio.NewWriter(t)), nil
}

// cutAfter closes a connection soon after ctx has ended. Whatever writes to it, and waits
// for a reader, ends with that.
func cutAfter(ctx context.Context, conn net.Conn) {
	context.AfterFunc(ctx, func() { time.AfterFunc(lastWords, func() { _ = conn.Close() }) })
}

// watched is how long a caller that has hung up may go unnoticed.
const watched = time.Second

// watch ends the session when its caller has hung up and the session reads nothing, because
// what it has read waits for a container that reads nothing. Where the receive window is
// full, the caller's FIN comes only when its kernel gives up on the data before it.
func (s *session) watch(t *taken) {
	tick := time.NewTicker(watched)
	defer tick.Stop()
	for before := int64(-1); ; {
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
		}
		now := t.reads.Load()
		if now == before && hasHungUp(t.Conn) {
			s.leave()
		}
		before = now
	}
}

// lastWrite is how long the status of a stream may take to be sent.
const lastWrite = 10 * time.Second

// last ends the session soon: the caller has that long to read what is written last. It is
// no deadline of the connection, which the WebSocket library sets again with each write.
func (s *session) last() {
	late := time.AfterFunc(lastWrite, s.leave)
	context.AfterFunc(s.ctx, func() { late.Stop() })
}

// end closes the connection, if it was taken over. A write that waits for the caller ends
// soon.
func (s *session) end() {
	s.leave()
	if conn := s.taken(); conn != nil {
		_ = conn.Close()
	}
	s.wg.Wait()
}

// taken returns the connection, nil until it is taken over.
func (s *session) taken() *taken {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conn
}

// taken is the connection of a session.
type taken struct {
	net.Conn
	session *session
	closing sync.Once
	in      io.Reader
	reads   atomic.Int64 // so many have returned
}

// Read implements net.Conn.
func (t *taken) Read(b []byte) (int, error) {
	n, err := t.in.Read(b)
	if err != nil {
		t.session.leave()
	}
	return n, err
}

// read reads from the connection itself.
func (t *taken) read(b []byte) (int, error) {
	n, err := t.Conn.Read(b)
	t.reads.Add(1)
	return n, err
}

// readerFunc is a function that is an io.Reader.
type readerFunc func([]byte) (int, error)

// Read implements io.Reader.
func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// lastWords is how long a session that has ended may take to say so, and its caller to
// read that, before the connection is closed under them.
const lastWords = 500 * time.Millisecond

// Close implements net.Conn. The caller gets what was sent last: a connection that is
// closed while something in it is unread is reset, and what is under way is lost.
func (t *taken) Close() error {
	var err error
	t.closing.Do(func() {
		if half, ok := t.Conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
			_ = t.SetReadDeadline(time.Now().Add(lastWords))
			_, _ = io.Copy(io.Discard, t.Conn)
		}
		err = t.Conn.Close()
	})
	return err
}

// upgrades says why a request cannot be upgraded; nil when it can.
func upgrades(r *http.Request) error {
	if wsstream.IsWebSocketRequest(r) || isSPDY(r) {
		return nil
	}
	return &Refusal{Code: http.StatusBadRequest, Message: "Upgrade request required"}
}
