// Package server is nodectl's HTTP server. It has up to three listeners: the local socket in
// the agent's run directory, the TLS port that a cluster expects of a kubelet, and the health
// port. The health port answers health checks in plain HTTP.
//
// It implements HTTP, the listeners and the streaming protocols. The parts in its Config
// return the content of the answers; package agent implements them. An Access authenticates
// and authorizes callers of the TLS port. Clients of the socket connect with Dial.
//
// The server denies by default. On the socket it answers root and the agent's own user, which the
// kernel identifies. On the TLS port, Access decides. The registry in routes.go has all requests
// that the server answers.
//
// Comments name duties (D2), faults (F10) and facts about the kubelet (C-1.40.3) by the
// numbers of docs/contract.md.
package server

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// Server answers on the listeners of its Config. New makes a Server. Serve is called once.
type Server struct {
	cfg    Config
	log    *slog.Logger
	routes []route

	// Every request holds busy for reading. Serve takes it for writing at its end, and so waits
	// for the requests in progress.
	busy   sync.RWMutex
	closed bool // guarded by busy: the server refuses requests

	checkpointing sync.Mutex // held while a checkpoint is made
	// logQueries has an entry for each log query that runs, and its capacity is their limit.
	logQueries chan struct{}

	auditFile      auditFile
	refusals       refusals
	healthWarnings map[string]*WarningLimiter // warnings by check
}

// New returns a Server. It opens no listener and no file.
func New(cfg Config) *Server {
	setDefault(&cfg.Connections, min(512, descriptors()/2))
	setDefault(&cfg.Streams, min(256, cfg.Connections/2))
	setDefault(&cfg.Requests, min(64, cfg.Connections/4))
	setDefault(&cfg.MaxCheckpoints, 10)
	if cfg.WriteTimeout <= 0 {
		cfg.WriteTimeout = 30 * time.Second
	}
	if cfg.StreamIdle <= 0 {
		cfg.StreamIdle = 4 * time.Hour
	}
	if cfg.TLS != nil {
		t := *cfg.TLS
		setDefault(&t.Connections, 256)
		setDefault(&t.PerPeer, 32)
		setDefault(&t.Streams, 64)
		setDefault(&t.Requests, 64)
		cfg.TLS = &t
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{cfg: cfg, log: cfg.Log, routes: routes(), auditFile: auditFile{path: cfg.Audit}, logQueries: make(chan struct{}, maxJournalQueries), healthWarnings: map[string]*WarningLimiter{}}
	for name := range cfg.Checks {
		s.healthWarnings[name] = new(WarningLimiter)
	}
	return s
}

// setDefault sets a limit that is not positive to its default.
func setDefault(limit *int, value int) {
	if *limit <= 0 {
		*limit = value
	}
}

// shutdownTimeout is how long the server waits at its end for callers to read the rest of their
// answers. Then it closes their connections.
const shutdownTimeout = 3 * time.Second

// Serve answers until ctx is done. It returns nil when every connection is closed and the
// socket is removed. It returns an error if it cannot make the socket and has no other
// listener. If a port is in use, it tries again until the port is free.
func (s *Server) Serve(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	var l *socket
	if s.cfg.Socket != "" {
		var err error
		if l, err = listen(s.cfg.Socket); err != nil && s.cfg.TLS == nil && s.cfg.Health == "" {
			return err
		} else if err != nil { // the API server still needs the other listeners
			s.log.Error("Failed to serve the local socket; serving the other listeners", "error", err)
		}
	}
	if s.cfg.Answering != nil {
		s.cfg.Answering()
	}
	if l != nil {
		defer l.remove()
		s.log.Info("Serving the local socket", "socket", s.cfg.Socket)
		ended := make(chan error, 1) // cap 1: the goroutine below sends once, and never waits
		var err error
		wg.Go(func() { ended <- s.serve(ctx, s.local(ctx), s.limitListener(l, "local socket", s.cfg.Connections, 0)) })
		s.network(ctx, &wg)
		select {
		case err = <-ended:
		case <-ctx.Done():
			err = <-ended
		}
		cancel()
		wg.Wait()
		s.refuseRequests()
		return err
	}
	s.network(ctx, &wg)
	<-ctx.Done()
	wg.Wait()
	s.refuseRequests()
	return nil
}

// network starts the configured TCP listeners.
func (s *Server) network(ctx context.Context, wg *sync.WaitGroup) {
	if s.cfg.TLS != nil {
		wg.Go(func() { s.serveTLS(ctx) })
	}
	if s.cfg.Health != "" {
		wg.Go(func() { s.serveHealth(ctx) })
	}
}

// local returns the HTTP server of the socket.
func (s *Server) local(ctx context.Context) *http.Server {
	f := &listenerHandler{
		Server: s, limiter: newRequestLimiter(s.cfg.Requests, s.cfg.Streams),
		authenticate: func(r *http.Request) (Caller, *StatusError) {
			p, ok := allowedProcess(r.Context())
			if !ok {
				return Caller{}, &StatusError{Code: http.StatusForbidden, Message: "this socket is for root and the agent's own user"}
			}
			return Caller{Name: "local", Local: true, LocalUID: p.uid, PID: p.pid}, nil
		},
		serves: func(*route) bool { return true },
	}
	web := s.httpServer(ctx, f)
	web.ConnContext = withProcess
	return web
}

// httpServer returns an HTTP server with the limits that all listeners share (D2).
func (s *Server) httpServer(ctx context.Context, h http.Handler) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    28 << 10, // and 4 KiB that net/http adds
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: 100},
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
}

// serve answers on l until ctx is done, and then waits up to shutdownTimeout for the requests in
// progress. It returns nil if ctx is done.
func (s *Server) serve(ctx context.Context, web *http.Server, l net.Listener) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ended := make(chan error, 1) // cap 1: the goroutine below sends once, and never waits
	wg.Go(func() { ended <- web.Serve(l) })
	var err error
	select {
	case err = <-ended:
	case <-ctx.Done():
	}
	shutdown, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	if web.Shutdown(shutdown) != nil {
		_ = web.Close()
	}
	if ctx.Err() != nil || errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// refuseRequests waits until no request is being answered. The server refuses later ones.
func (s *Server) refuseRequests() {
	s.busy.Lock()
	defer s.busy.Unlock()
	s.closed = true
}
