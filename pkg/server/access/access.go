// Package access says who asks the node's server, and what they may do, as the
// kubelet's delegating authenticator and authorizer do: by client certificate, by
// the API server's word on a token (TokenReview), and by its word on what somebody
// may do with this node (SubjectAccessReview).
//
// It implements server.Access on client-go. What the API server said is kept for a
// while, in caches of bounded size that hold no token; questions that are the same
// are asked once. Without an API server there is nobody to ask: only certificates
// of group system:masters are let in.
//
// The one rule: fail closed. Nobody is anonymous, and what could not be asked is
// not allowed.
package access

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/rest"

	"github.com/nodectl/nodectl/pkg/apiclient"
	"github.com/nodectl/nodectl/pkg/server"
)

const (
	// The kubelet's times for what is kept (C-1.40.2).
	tokensFor  = 2 * time.Minute
	allowedFor = 5 * time.Minute
	deniedFor  = 30 * time.Second
	// askFor bounds one question.
	askFor = 10 * time.Second
	// asking bounds questions of one kind at a time, and perSecond and burst how
	// many there are: who knocks without being known cannot make the node a hammer.
	asking    = 16
	perSecond = 50
	burst     = 100
	// mastersGroup may do everything everywhere.
	mastersGroup = "system:masters"
	// Of whoever said who they are, and of whoever did not.
	authenticatedGroup   = "system:authenticated"
	unauthenticatedGroup = "system:unauthenticated"
	anonymousName        = "system:anonymous"
)

// Config says whom an Access believes and asks.
type Config struct {
	// Node is the node's name, whose subresources are asked for.
	Node string
	// API speaks to the API server, as apiclient.Client.REST does; nil: there is
	// none.
	API *rest.Config
	// ClientCAFile holds the authorities that sign client certificates; it is read
	// again when it changes. "": certificates say nothing.
	ClientCAFile string
	// NoTokens takes no bearer token, as authentication.webhook.enabled: false does.
	NoTokens bool
	// For how long the API server's word is kept: whose a token is, a yes, a no and
	// that a token is nobody's. 0 is the kubelet's time; less keeps nothing.
	TokensFor, AllowedFor, DeniedFor time.Duration
	// Log hears what could not be asked; nil is silence.
	Log *slog.Logger
}

// Access implements server.Access.
type Access struct {
	cfg     Config
	certs   *authorities // nil: certificates say nothing
	tokens  *tokens      // nil: tokens say nothing
	reviews *reviews     // nil: there is no API server
	peers   *peers

	unreviewed, unauthorized server.Seldom // warnings
}

var _ server.Access = (*Access)(nil)

// New returns the Access of cfg. It reads the client CA file and sends nothing. The
// error says that nobody could ever be let in, or that the file cannot be read.
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
	cfg.Node = strings.ToLower(cfg.Node) // as an API server knows it
	a := &Access{cfg: cfg, peers: newPeers()}
	switch {
	case cfg.Node == "":
		return nil, errors.New("no node name")
	case cfg.API == nil && cfg.ClientCAFile == "":
		return nil, errors.New("without an API server, whoever asks needs a certificate: set --client-ca-file")
	case cfg.NoTokens && cfg.ClientCAFile == "":
		return nil, errors.New("nobody can be let in: neither tokens nor client certificates say who asks")
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
	ask, err := apiclient.NewSubjectAccessReviews(limited(cfg.API))
	if err != nil {
		return nil, err
	}
	a.reviews = newReviews(ask, cfg)
	return a, nil
}

// limited returns cfg with a limit of its own.
func limited(cfg *rest.Config) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS, cfg.Burst = perSecond, burst
	return cfg
}

// Who implements server.Access: by certificate first, then by token. A request without TLS
// is not authenticated. The caches answer at once; everything else costs the node work, of
// which a peer gets little. An error may be a *server.Refusal.
func (a *Access) Who(r *http.Request) (c server.Caller, ok bool, err error) {
	if r.TLS == nil {
		return server.Caller{}, false, nil
	}
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
		leave, err := a.peers.enter(peer, certificates)
		if err != nil {
			return server.Caller{}, false, err
		}
		said, err := a.certs.judge(r.Context(), chain, shown, now)
		ok := err == nil && said.ok && known(said.caller)
		leave(!ok && err == nil)
		if ok {
			return authenticated(said.caller), true, nil
		}
		if err != nil {
			return server.Caller{}, false, err
		}
	}
	if token == "" {
		return server.Caller{}, false, nil
	}
	leave, err := a.peers.enter(peer, bearerTokens)
	if err != nil {
		return server.Caller{}, false, err
	}
	said, err := a.tokens.judge(r.Context(), key, token)
	ok = err == nil && said.ok && known(said.caller)
	leave(!ok && err == nil)
	if err != nil {
		if hidden, ok := a.unreviewed.Now(); ok {
			a.cfg.Log.Warn("Token not reviewed", "error", err, "notLogged", hidden)
		}
		return server.Caller{}, false, err
	}
	if !ok {
		return server.Caller{}, false, nil
	}
	return authenticated(said.caller), true, nil
}

// known reports whether c is somebody.
func known(c server.Caller) bool {
	return c.Name != "" && c.Name != anonymousName && !slices.Contains(c.Groups, unauthenticatedGroup)
}

// authenticated puts c into the group of all who said who they are, and takes from
// it what only the local socket gives.
func authenticated(c server.Caller) server.Caller {
	c.Local = false
	if !slices.Contains(c.Groups, authenticatedGroup) {
		c.Groups = append(slices.Clip(c.Groups), authenticatedGroup)
	}
	return c
}

// May implements server.Access. The local caller may do everything and nobody is
// asked.
func (a *Access) May(ctx context.Context, c server.Caller, verb string, subresources ...string) (bool, string, error) {
	switch {
	case c.Local:
		return true, "local", nil
	case !known(c):
		return false, "nobody known", nil
	case a.reviews == nil:
		return slices.Contains(c.Groups, mastersGroup), "without an API server, only group " + mastersGroup + " is let in", nil
	}
	why := ""
	for _, subresource := range subresources {
		said, err := a.reviews.may(ctx, c, verb, subresource)
		if err != nil {
			if hidden, ok := a.unauthorized.Now(); ok {
				a.cfg.Log.Warn("Access not reviewed", "verb", verb, "subresource", subresource, "error", err, "notLogged", hidden)
			}
			return false, "", err
		}
		if why = said.why; said.allowed {
			return true, why, nil
		}
	}
	return false, why, nil
}
