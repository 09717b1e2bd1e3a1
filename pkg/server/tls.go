package server

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/nodectl/nodectl/pkg/backoff"
)

// serveTLS answers on the TLS listener until ctx is done.
func (s *Server) serveTLS(ctx context.Context) {
	cfg := s.cfg.TLS
	f := &listenerHandler{
		Server: s, limiter: newRequestLimiter(cfg.Requests, cfg.Streams),
		authenticate: s.authenticateTLS, serves: func(r *route) bool { return r.kubelet },
	}
	s.listenAndServe(ctx, "TLS port", cfg.Address, func(l net.Listener) error {
		if cfg.Bound != nil {
			cfg.Bound(l.Addr().String())
		}
		web := s.httpServer(ctx, f)
		web.TLSConfig = s.tlsConfig()
		web.ConnContext = withCountedConn
		return s.serve(ctx, web, tls.NewListener(s.limitListener(l, "TLS port", cfg.Connections, cfg.PerPeer), web.TLSConfig))
	})
}

// tlsConfig returns the configuration of TLS. It requests a client certificate, which Access
// verifies.
func (s *Server) tlsConfig() *tls.Config {
	cfg := &tls.Config{
		GetCertificate: s.cfg.TLS.Certificate,
		MinVersion:     s.cfg.TLS.MinVersion,
		CipherSuites:   s.cfg.TLS.CipherSuites,
		ClientAuth:     tls.RequestClientCert,
		NextProtos:     []string{"h2", "http/1.1"},
	}
	if cfg.MinVersion == 0 {
		cfg.MinVersion = tls.VersionTLS13
	}
	required := func(c uint16) bool {
		return c == tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 || c == tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
	}
	if cfg.MinVersion < tls.VersionTLS13 && cfg.CipherSuites != nil && !slices.ContainsFunc(cfg.CipherSuites, required) {
		cfg.NextProtos = []string{"http/1.1"} // HTTP/2 needs one of them
	}
	return cfg
}

// authenticateTLS authenticates a caller of the TLS listener.
func (s *Server) authenticateTLS(r *http.Request) (Caller, *StatusError) {
	unauthorized := &StatusError{Code: http.StatusUnauthorized, Message: "Unauthorized"}
	if s.cfg.Access == nil {
		return Caller{}, unauthorized
	}
	ctx, cancel := context.WithTimeout(r.Context(), quickTimeout)
	defer cancel()
	c, ok, err := s.cfg.Access.Authenticate(r.WithContext(ctx))
	if err != nil {
		s.log.Debug("Failed to authenticate caller", "error", err)
	}
	if refusal := (*StatusError)(nil); errors.As(err, &refusal) {
		return Caller{}, refusal
	}
	if err != nil || !ok {
		return Caller{}, unauthorized
	}
	c.Local = false
	return c, nil
}

// serveHealth answers the health routes on the health port until ctx is done, without
// authentication (C-1.40.5).
func (s *Server) serveHealth(ctx context.Context) {
	f := &listenerHandler{
		Server: s, limiter: newRequestLimiter(16, 0), open: true,
		authenticate: func(*http.Request) (Caller, *StatusError) { return Caller{}, nil },
		serves:       func(r *route) bool { return r.health },
	}
	s.listenAndServe(ctx, "health port", s.cfg.Health, func(l net.Listener) error {
		return s.serve(ctx, s.httpServer(ctx, f), s.limitListener(l, "health port", 64, 0))
	})
}

// retryInterval is how long listenAndServe waits after a failure.
const retryInterval = time.Second

// listenAndServe serves on an address until ctx is done. If it cannot listen, or serve fails, it
// tries again. It logs the first of several failures to listen.
func (s *Server) listenAndServe(ctx context.Context, name, address string, serve func(net.Listener) error) {
	logged := false
	for ctx.Err() == nil {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
		if err == nil {
			s.log.Info("Listening", "listener", name, "address", l.Addr().String())
			logged = false
			err = serve(l)
			_ = l.Close()
			if ctx.Err() == nil {
				s.log.Error("Failed to serve; listening again", "listener", name, "address", address, "error", err)
			}
		} else if ctx.Err() == nil && !logged {
			logged = true
			s.log.Error("Failed to listen; retrying", "listener", name, "address", address, "error", err)
		}
		backoff.Sleep(ctx, retryInterval)
	}
}
