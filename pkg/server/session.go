package server

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// session is a connection that was taken over for streams. It ends when its caller
// is gone, which shows when nothing more can be read from it; when the server ends;
// or when the streams have. No connection is used for anything else afterwards.
type session struct {
	http.ResponseWriter
	ctx   context.Context
	leave context.CancelFunc

	mu   sync.Mutex
	conn *taken // nil until it is taken over
}

// newSession returns a session and the request that is answered in it.
func newSession(w http.ResponseWriter, r *http.Request) (*session, *http.Request) {
	ctx, leave := context.WithCancel(r.Context())
	return &session{ResponseWriter: w, ctx: ctx, leave: leave}, r.WithContext(ctx)
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
	t := &taken{Conn: conn, ahead: append([]byte(nil), ahead...), session: s}
	s.mu.Lock()
	s.conn = t
	s.mu.Unlock()
	context.AfterFunc(s.ctx, func() { time.AfterFunc(lastWords, t.cut) })
	return t, bufio.NewReadWriter(bufio.NewReader(t), bufio.NewWriter(t)), nil
}

// end closes the connection, if it was taken over.
func (s *session) end() {
	s.mu.Lock()
	conn := s.conn
	s.mu.Unlock()
	if conn != nil {
		_ = conn.Close()
	}
	s.leave()
}

// taken is the connection of a session.
type taken struct {
	net.Conn
	session *session
	closing sync.Once

	mu    sync.Mutex
	ahead []byte
}

// Read implements net.Conn.
func (t *taken) Read(b []byte) (int, error) {
	t.mu.Lock()
	if len(t.ahead) > 0 {
		defer t.mu.Unlock()
		n := copy(b, t.ahead)
		t.ahead = t.ahead[n:]
		return n, nil
	}
	t.mu.Unlock()
	n, err := t.Conn.Read(b)
	if err != nil {
		t.session.leave()
	}
	return n, err
}

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

// cut closes the connection at once; closing it again does no harm.
func (t *taken) cut() { _ = t.Conn.Close() }

// upgrades says why a request cannot be upgraded; nil when it can.
func upgrades(r *http.Request) error {
	if wsstream.IsWebSocketRequest(r) || isSPDY(r) {
		return nil
	}
	return &Refusal{Code: http.StatusBadRequest, Message: "Upgrade request required"}
}
