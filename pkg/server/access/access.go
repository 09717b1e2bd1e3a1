// Package access authenticates and authorizes callers of the node's server, as the kubelet's
// delegating authenticator and authorizer do. It verifies client certificates, has the API server
// review tokens (TokenReview) and the access of callers to this node (SubjectAccessReview).
//
// It implements server.Access on client-go. It caches the reviews for a while; the
// caches are bounded and hold no token. Concurrent equal reviews are one request.
// Without an API server it admits only certificates of group system:masters.
//
// The one rule: fail closed. There are no anonymous callers, and without a review
// nothing is allowed.
package access

import (
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/rest"

	"github.com/nodectl/nodectl/pkg/apiclient"
	"github.com/nodectl/nodectl/pkg/server"
)

const (
	// How long the kubelet caches reviews (C-1.40.2).
	tokensFor  = 2 * time.Minute
	allowedFor = 5 * time.Minute
	deniedFor  = 30 * time.Second
	// askFor is the timeout of one review.
	askFor = 10 * time.Second
	// asking limits the concurrent reviews, perSecond and burst their rate, so that
	// unauthenticated callers cannot make the node flood the API server. TokenReviews and the
	// two lanes of SubjectAccessReviews have these limits each.
	asking    = 16
	perSecond = 50
	burst     = 100
	// mastersGroup may do everything everywhere.
	mastersGroup = "system:masters"
	// The groups of authenticated and of unauthenticated callers.
	authenticatedGroup   = "system:authenticated"
	unauthenticatedGroup = "system:unauthenticated"
	anonymousName        = "system:anonymous"
)

// Config configures an Access.
type Config struct {
	// Node is the node's name; callers need rights on its subresources.
	Node string
	// API is the client configuration of the API server, as apiclient.Client.REST
	// returns it; nil: there is none.
	API *rest.Config
	// ClientCAFile holds the authorities of client certificates; it is read again
	// when it changes. "": client certificates are ignored.
	ClientCAFile string
	// NoTokens ignores bearer tokens, as authentication.webhook.enabled: false does.
	NoTokens bool
	// How long to cache reviews: of accepted tokens, allowed access, and denied access
	// or refused tokens. 0 is the kubelet's time; a negative one caches nothing.
	TokensFor, AllowedFor, DeniedFor time.Duration
	// Log receives failed reviews; may be nil.
	Log *slog.Logger
}

// Access implements server.Access.
type Access struct {
	cfg     Config
	certs   *authorities // nil: client certificates are ignored
	tokens  *tokens      // nil: tokens are ignored
	reviews *reviews     // nil: there is no API server
	peers   *peers

	unreviewed, unauthorized server.WarningLimiter // warnings
}

var _ server.Access = (*Access)(nil)

// New returns the Access of cfg. It reads the client CA file and sends nothing. It returns
// an error if no caller could ever be admitted, or if it cannot read the file.
func New(cfg Config) (*Access, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	for _, it := range []struct {
		to *time.Duration
		is time.Duration
	}{{&cfg.TokensFor, tokensFor}, {&cfg.AllowedFor, allowedFor}, {&cfg.DeniedFor, deniedFor}} {
		if *it.to == 0 {
			*it.to = it.is
		}
	}
	cfg.Node = strings.ToLower(cfg.Node) // as the Node object is named
	a := &Access{cfg: cfg, peers: newPeers()}
	switch {
	case cfg.Node == "":
		return nil, errors.New("no node name")
	case cfg.API == nil && cfg.ClientCAFile == "":
		return nil, errors.New("without an API server, callers can authenticate only by certificate: set --client-ca-file")
	case cfg.NoTokens && cfg.ClientCAFile == "":
		return nil, errors.New("no caller could authenticate: tokens are off and there is no --client-ca-file")
	}
	var err error
	if cfg.ClientCAFile != "" {
		if a.certs, err = newAuthorities(cfg.ClientCAFile, cfg.Log); err != nil {
			return nil, err
		}
	}
	if cfg.API == nil {
		return a, nil
	}
	if !cfg.NoTokens {
		ask, err := apiclient.NewTokenReviews(limited(cfg.API))
		if err != nil {
			return nil, err
		}
		if a.tokens, err = newTokens(ask, cfg); err != nil {
			return nil, err
		}
	}
	if a.reviews, err = newReviews(cfg, a.peers); err != nil {
		return nil, err
	}
	return a, nil
}

// limited returns cfg with its own rate limit.
func limited(cfg *rest.Config) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS, cfg.Burst = perSecond, burst
	return cfg
}

// Authenticate implements server.Access: it authenticates by certificate first, then by token. It
// does not authenticate a request without TLS. It looks into the caches of both before it
// verifies or reviews anything: only verifications and reviews are limited by peer. An error may
// be a *server.StatusError.
func (a *Access) Authenticate(r *http.Request) (c server.Caller, ok bool, err error) {
	if r.TLS == nil {
		return server.Caller{}, false, nil
	}
	// shown becomes nil, and token "", once there is nothing left to verify or review.
	shown, now := r.TLS.PeerCertificates, time.Now()
	var chain chainKey
	var key string
	if a.certs == nil || len(shown) == 0 {
		shown = nil
	} else if err := checkChain(shown); err != nil {
		a.cfg.Log.Debug("Client certificate refused", "error", err)
		shown = nil
	} else {
		k, said, found := a.certs.kept(shown, now)
		if said.ok && known(said.caller) {
			return authenticated(said.caller), true, nil
		}
		if chain = k; found {
			shown = nil
		}
	}
	token := bearer(r)
	if a.tokens == nil {
		token = ""
	}
	if token != "" {
		k, said, found := a.tokens.kept(token)
		if said.ok && known(said.caller) {
			return authenticated(said.caller), true, nil
		}
		if key = k; found {
			token = ""
		}
	}
	if shown == nil && token == "" {
		return server.Caller{}, false, nil
	}
	peer := server.Peer(r.RemoteAddr)
	if shown != nil {
		if c, ok, err := a.judgeCertificate(r.Context(), peer, chain, shown, now); ok || err != nil {
			return c, ok, err
		}
	}
	if token == "" {
		return server.Caller{}, false, nil
	}
	return a.judgeToken(r.Context(), peer, key, token)
}

// judgeCertificate verifies a certificate that is in no cache.
func (a *Access) judgeCertificate(ctx context.Context, peer netip.Prefix, chain chainKey, shown []*x509.Certificate, now time.Time) (c server.Caller, ok bool, err error) {
	leave, err := a.peers.enter(peer, certificates, "")
	if err != nil {
		return server.Caller{}, false, err
	}
	said, err := a.certs.judge(ctx, chain, shown, now)
	ok = err == nil && said.ok && known(said.caller)
	leave(!ok && err == nil)
	if !ok {
		return server.Caller{}, false, err
	}
	return authenticated(said.caller), true, nil
}

// judgeToken reviews a token that is in no cache.
func (a *Access) judgeToken(ctx context.Context, peer netip.Prefix, key, token string) (c server.Caller, ok bool, err error) {
	leave, err := a.peers.enter(peer, bearerTokens, "")
	if err != nil {
		return server.Caller{}, false, err
	}
	said, err := a.tokens.judge(ctx, key, token)
	ok = err == nil && said.ok && known(said.caller)
	leave(!ok && err == nil)
	if err != nil {
		if notLogged, ok := a.unreviewed.Allow(); ok {
			a.cfg.Log.Warn("Failed to review token", "error", err, "notLogged", notLogged)
		}
	}
	if !ok {
		return server.Caller{}, false, err
	}
	return authenticated(said.caller), true, nil
}

// known reports whether c is an authenticated user.
func known(c server.Caller) bool {
	return c.Name != "" && c.Name != anonymousName && !slices.Contains(c.Groups, unauthenticatedGroup)
}

// authenticated adds c to group system:authenticated, and clears Local, which only callers
// of the socket have.
func authenticated(c server.Caller) server.Caller {
	c.Local = false
	if !slices.Contains(c.Groups, authenticatedGroup) {
		c.Groups = append(slices.Clip(c.Groups), authenticatedGroup)
	}
	return c
}

// Authorize implements server.Access. It allows the local caller everything without a review.
func (a *Access) Authorize(ctx context.Context, c server.Caller, verb string, subresources ...string) (bool, string, error) {
	switch {
	case c.Local:
		return true, "local", nil
	case !known(c):
		return false, "the caller is not authenticated", nil
	case a.reviews == nil:
		return slices.Contains(c.Groups, mastersGroup), "without an API server, only group " + mastersGroup + " has access", nil
	}
	reason := ""
	for _, subresource := range subresources {
		said, err := a.reviews.may(ctx, c, verb, subresource)
		if err != nil {
			if notLogged, ok := a.unauthorized.Allow(); ok {
				a.cfg.Log.Warn("Failed to review access", "apiVerb", verb, "subresource", subresource, "error", err, "notLogged", notLogged)
			}
			return false, "", err
		}
		if reason = said.reason; said.allowed {
			return true, reason, nil
		}
	}
	a.reviews.trusted.Remove(c.Name)
	return false, reason, nil
}
