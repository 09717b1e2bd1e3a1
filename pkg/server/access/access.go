// Package access authenticates and authorizes callers of the node's server, as the kubelet's
// delegating authenticator and authorizer do. It verifies client certificates. The API server
// reviews tokens (TokenReview), and the access of callers to this node (SubjectAccessReview).
//
// Package access implements server.Access. It caches the results of reviews. The caches are bounded
// and hold no token. Concurrent equal reviews are one request. Without an API server, only
// certificates of group system:masters have access.
//
// Access fails closed: there are no anonymous callers, and without the result of a review nothing is
// allowed.
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
	// reviewTimeout is the timeout of one review, with its retry.
	reviewTimeout = 10 * time.Second
	// maxReviews limits the concurrent reviews, reviewsPerSecond and burst their rate, so that
	// unauthenticated callers cannot make the node flood the API server. TokenReviews and the
	// two lanes of SubjectAccessReviews have these limits each.
	maxReviews       = 16
	reviewsPerSecond = 50
	reviewBurst      = 100
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
	// How long to cache the results of reviews: accepted tokens, allowed access and denied access.
	// A refused token is cached for the shorter of TokensFor and DeniedFor. 0 is the kubelet's time;
	// a negative time caches nothing.
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

	tokenWarnings, accessWarnings server.WarningLimiter // warnings
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
		client, err := apiclient.NewTokenReviews(limited(cfg.API))
		if err != nil {
			return nil, err
		}
		if a.tokens, err = newTokens(client, cfg); err != nil {
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
	cfg.QPS, cfg.Burst = reviewsPerSecond, reviewBurst
	return cfg
}

// Authenticate implements server.Access: it authenticates by certificate first, then by token. It
// does not authenticate a request without TLS. It reads both caches before it verifies a certificate
// or reviews a token, because these operations are limited by peer. An error may be a
// *server.StatusError.
func (a *Access) Authenticate(r *http.Request) (c server.Caller, ok bool, err error) {
	if r.TLS == nil {
		return server.Caller{}, false, nil
	}
	// presented becomes nil if there is no certificate to verify, and token "" if there is none to
	// review.
	presented, now := r.TLS.PeerCertificates, time.Now()
	var chain chainKey
	var key string
	if a.certs == nil || len(presented) == 0 {
		presented = nil
	} else if err := checkChain(presented); err != nil {
		a.cfg.Log.Debug("Client certificate refused", "error", err)
		presented = nil
	} else {
		k, result, found := a.certs.cached(presented, now)
		if result.ok && known(result.caller) {
			return authenticated(result.caller), true, nil
		}
		if chain = k; found {
			presented = nil
		}
	}
	token := bearer(r)
	if a.tokens == nil {
		token = ""
	}
	if token != "" {
		k, result, found := a.tokens.cached(token)
		if result.ok && known(result.caller) {
			return authenticated(result.caller), true, nil
		}
		if key = k; found {
			token = ""
		}
	}
	if presented == nil && token == "" {
		return server.Caller{}, false, nil
	}
	peer := server.Peer(r.RemoteAddr)
	if presented != nil {
		if c, ok, err := a.verifyCertificate(r.Context(), peer, chain, presented, now); ok || err != nil {
			return c, ok, err
		}
	}
	if token == "" {
		return server.Caller{}, false, nil
	}
	return a.reviewToken(r.Context(), peer, key, token)
}

// verifyCertificate verifies a certificate that is in no cache.
func (a *Access) verifyCertificate(ctx context.Context, peer netip.Prefix, chain chainKey, presented []*x509.Certificate, now time.Time) (c server.Caller, ok bool, err error) {
	leave, err := a.peers.enter(peer, certificates, "")
	if err != nil {
		return server.Caller{}, false, err
	}
	result, err := a.certs.verifyChain(ctx, chain, presented, now)
	ok = err == nil && result.ok && known(result.caller)
	leave(!ok && err == nil)
	if !ok {
		return server.Caller{}, false, err
	}
	return authenticated(result.caller), true, nil
}

// reviewToken reviews a token that is in no cache.
func (a *Access) reviewToken(ctx context.Context, peer netip.Prefix, key, token string) (c server.Caller, ok bool, err error) {
	leave, err := a.peers.enter(peer, bearerTokens, "")
	if err != nil {
		return server.Caller{}, false, err
	}
	result, err := a.tokens.identify(ctx, key, token)
	ok = err == nil && result.ok && known(result.caller)
	leave(!ok && err == nil)
	if err != nil {
		if notLogged, ok := a.tokenWarnings.Allow(); ok {
			a.cfg.Log.Warn("Failed to review token", "error", err, "notLogged", notLogged)
		}
	}
	if !ok {
		return server.Caller{}, false, err
	}
	return authenticated(result.caller), true, nil
}

// known reports whether c is a user, and not anonymous.
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
		result, err := a.reviews.may(ctx, c, verb, subresource)
		if err != nil {
			if notLogged, ok := a.accessWarnings.Allow(); ok {
				a.cfg.Log.Warn("Failed to review access", "apiVerb", verb, "subresource", subresource, "error", err, "notLogged", notLogged)
			}
			return false, "", err
		}
		if reason = result.reason; result.allowed {
			return true, reason, nil
		}
	}
	a.reviews.trusted.Remove(c.Name)
	return false, reason, nil
}
