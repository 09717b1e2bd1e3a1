// Package server is nodectl's HTTP: what a running agent tells whoever asks on
// the local socket of its root directory.
//
// It knows HTTP and the socket only. What an answer means comes from the
// functions in its Config, which cmd fills from what the engine shows; cmd also
// holds the clients, who get here by Dial.
//
// The one rule: deny by default. Who may ask is decided by who they are to the
// kernel, what may be asked by the one registry in routes.go.
package server

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

// Config is what a Server answers, and where.
type Config struct {
	// Socket is the path of the socket, in a directory that only its owner can
	// enter and that nobody else serves.
	Socket string

	// Updates returns the lines of a stream, each a whole JSON document with its
	// newline; they end when there are no more, or with ctx. Taking one blocks
	// while there is nothing to say. An error in place of the lines is the answer,
	// a *Refusal in its own words; one among the lines breaks the stream off.
	Updates func(ctx context.Context, query url.Values) (iter.Seq2[[]byte, error], error)
	// Pods and Sources return a JSON document.
	Pods    func() ([]byte, error)
	Sources func() ([]byte, error)

	Log *slog.Logger

	Streams  int           // at a time; default 256, or half the connections
	Requests int           // at a time, streams besides; default 64, or a quarter of them
	Patience time.Duration // how long a reader may take over one line; default 30 s

	// Connections at a time, whether they ask for anything or not; default 512, or
	// half of what this process may open: readers are hung up before the agent has
	// no file descriptor left for its pods (F10).
	Connections int
}

// Server answers on one socket. Make one with New; call Serve once.
type Server struct {
	cfg    Config
	log    *slog.Logger
	routes []route

	streams, requests atomic.Int64
	conns             atomic.Int64
	crowded           atomic.Bool // that there are too many connections was said
	// busy is held for reading by every request, and for writing by Serve when it
	// ends: it waits for the last one.
	busy   sync.RWMutex
	closed bool // guarded by busy: nothing is answered any more
}

// New returns a Server. It touches nothing.
func New(cfg Config) *Server {
	if cfg.Connections <= 0 {
		cfg.Connections = min(512, descriptors()/2)
	}
	if cfg.Streams <= 0 {
		cfg.Streams = min(256, cfg.Connections/2)
	}
	if cfg.Requests <= 0 {
		cfg.Requests = min(64, cfg.Connections/4)
	}
	if cfg.Patience <= 0 {
		cfg.Patience = 30 * time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Server{cfg: cfg, log: cfg.Log, routes: routes(cfg)}
}

// goodbye is how long readers have to take what was written when Serve ends.
const goodbye = time.Second

// Serve answers until ctx is done and returns nil when every connection is
// closed and the socket is gone. An error says that the socket could not be
// made.
func (s *Server) Serve(ctx context.Context) error {
	l, err := listen(s.cfg.Socket)
	if err != nil {
		return err
	}
	defer l.remove()
	s.log.Info("Answering on the local socket", "socket", s.cfg.Socket)
	web := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ConnContext:       withPeer,
		ConnState:         s.count,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	ended := make(chan error, 1) // cap 1: the goroutine below sends once, and never waits
	wg.Go(func() { ended <- web.Serve(l) })
	select {
	case err = <-ended:
	case <-ctx.Done():
	}
	s.shut(web)
	if ctx.Err() != nil || errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// count counts connections and hangs up those that are too many.
func (s *Server) count(c net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		if s.conns.Add(1) <= int64(s.cfg.Connections) {
			return
		}
		_ = c.Close()
		if !s.crowded.Swap(true) {
			s.log.Warn("Too many readers on the local socket; more are hung up", "limit", s.cfg.Connections)
		}
	case http.StateClosed:
		if s.conns.Add(-1) < int64(s.cfg.Connections)/2 {
			s.crowded.Store(false)
		}
	}
}

// shut closes everything: those who listen have a moment to take their last
// line.
func (s *Server) shut(web *http.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), goodbye)
	defer cancel()
	if web.Shutdown(ctx) != nil {
		_ = web.Close()
	}
	s.busy.Lock()
	defer s.busy.Unlock()
	s.closed = true
}
