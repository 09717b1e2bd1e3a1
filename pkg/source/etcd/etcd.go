// Package etcd reads manifests from etcd v3: each key below a prefix is one
// manifest file. It is the fourth source of the first kubelets (C-1.9).
//
// A session with one member lists the keys at one revision and reads the values that have
// changed since the last session. Then it watches from the next revision on. The package uses
// etcd's protocol without etcd's client library. The library's watches reconnect by themselves: after a
// restore from a backup they wait, without an error, for a revision that the cluster reaches only later.
//
// A key is removed by an event of the watch, or by a complete, linearizable list. If that list
// contradicts earlier reads, a second list has to confirm it.
package etcd

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/nodectl/nodectl/pkg/backoff"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/source"
)

// ValueLimit is the largest value that the source reads, in bytes. etcd's default limit is lower.
const ValueLimit = 10 << 20

const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 30 * time.Second
	// settled is how long a session must have lasted, so that the back-off after its end begins
	// again.
	settled = 10 * time.Second
)

// Config is the configuration of an etcd source.
type Config struct {
	// Endpoints are the client URLs of members of one cluster, http or https. The userinfo of a URL is
	// the user and password for that member.
	Endpoints []string
	// Prefix is the directory of the keys. "/pods" and "/pods/" are the same directory, which does not
	// contain "/pods2/a".
	Prefix string
	// CAFile has the authorities that may sign the certificates of members, as PEM; "" means those of
	// the system. CertFile and KeyFile have the client certificate and its key. The source reads all
	// three again for each connection (F72).
	CAFile, CertFile, KeyFile string
	// Username is the etcd user, and PasswordFile has the password. The source reads the file again
	// for each connection.
	Username, PasswordFile string
	// Parse decodes a value. The second result has a notice for each part that Parse ignored on
	// purpose. Only one goroutine at a time calls it. Required.
	Parse func(data []byte, file string) (source.File, []pod.Problem)
	// Log receives debug messages about sessions; nil discards them.
	Log *slog.Logger
	// Timeout limits the wait for one answer; zero is 10 s. A member without a leader answers with an
	// error before that.
	Timeout time.Duration
	// Confirm is the least time from a list that contradicts earlier reads to the list that confirms
	// it; zero is 5 s (F71).
	Confirm time.Duration
	// UserAgent is the user agent of requests.
	UserAgent string
	// Insecure allows http endpoints of other hosts.
	Insecure bool
}

// Source is an etcd source.
type Source struct {
	cfg     Config
	prefix  string // ends in a slash
	end     string // the first key after those with the prefix
	members []endpoint
}

// endpoint is one member's address.
type endpoint struct {
	address  string // host:port
	secure   bool
	near     bool // on this host
	user     string
	password string
}

var _ source.Source = (*Source)(nil)

// New returns the source of the keys below cfg.Prefix. An error names the invalid part of cfg, without
// secrets. The source dials nothing and reads no file before Sets.
func New(cfg Config) (*Source, error) {
	s := &Source{cfg: cfg}
	if cfg.Prefix == "" {
		return nil, errors.New("no prefix: every key of etcd would be read as a manifest")
	}
	s.prefix = strings.TrimRight(cfg.Prefix, "/") + "/"
	s.end = s.prefix[:len(s.prefix)-1] + "0" // the byte after the slash
	secure := false
	for _, text := range cfg.Endpoints {
		e, err := parseEndpoint(text, cfg.Insecure)
		if err != nil {
			return nil, err
		}
		secure = secure || e.secure
		s.members = append(s.members, e)
	}
	files := cfg.CAFile + cfg.CertFile + cfg.KeyFile
	switch {
	case len(s.members) == 0:
		return nil, errors.New("no endpoint")
	case (cfg.CertFile == "") != (cfg.KeyFile == ""):
		return nil, errors.New("a certificate needs its key, and a key its certificate")
	case (cfg.Username == "") != (cfg.PasswordFile == ""):
		return nil, errors.New("a user needs a password file, and a password file a user")
	case files != "" && !secure:
		return nil, errors.New("certificates need an https endpoint")
	}
	if s.cfg.Timeout <= 0 {
		s.cfg.Timeout = 10 * time.Second
	}
	if s.cfg.Confirm <= 0 {
		s.cfg.Confirm = 5 * time.Second
	}
	if s.cfg.Log == nil {
		s.cfg.Log = slog.New(slog.DiscardHandler)
	}
	return s, nil
}

func parseEndpoint(text string, insecure bool) (endpoint, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return endpoint{}, errors.New("an endpoint is not a URL")
	case u.Scheme != "http" && u.Scheme != "https":
		return endpoint{}, errors.New("an endpoint is not an http or https URL")
	case u.Hostname() == "":
		return endpoint{}, errors.New("an endpoint is a URL without a host")
	case source.IsUnprotected(u) && !insecure:
		return endpoint{}, fmt.Errorf("endpoint %s: %w", u.Host, source.ErrUnprotected)
	case strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "":
		return endpoint{}, fmt.Errorf("endpoint %s: only scheme, host and port are used", u.Host)
	}
	port := u.Port()
	if port == "" {
		port = "2379"
	}
	e := endpoint{address: net.JoinHostPort(u.Hostname(), port), secure: u.Scheme == "https", near: !source.IsUnprotected(u)}
	if u.User != nil {
		e.user = u.User.Username()
		e.password, _ = u.User.Password()
	}
	return e, nil
}

// Name returns "etcd:" and the prefix. It does not depend on the members, so that another list of members
// is the same layer.
func (s *Source) Name() string { return "etcd:" + s.cfg.Prefix }

// Sets implements source.Source. It never ends by itself.
func (s *Source) Sets(ctx context.Context) iter.Seq2[source.Snapshot, error] {
	return func(yield func(source.Snapshot, error) bool) {
		s.warn()
		r := newReader(s, yield)
		next := rand.N(len(s.members)) // a random one, so that nodes use different members
		var failing, flapping time.Duration
		for {
			start := time.Now()
			n, err := s.round(ctx, r, next)
			wait := &failing
			switch {
			case r.left || ctx.Err() != nil:
				return
			case err == nil: // there was a session, and it ended
				failing, wait = 0, &flapping
				if time.Since(start) > settled {
					flapping = 0
				}
			case !r.yieldError(err):
				return
			}
			next = n + 1
			*wait = backoff.Next(*wait, firstRetry, lastRetry)
			if !backoff.Sleep(ctx, r.pause(*wait)) {
				return
			}
		}
	}
}

// warn logs that a password is sent unencrypted.
func (s *Source) warn() {
	for _, e := range s.members {
		if !e.secure && !e.near && (s.cfg.Username != "" || e.user != "") {
			s.cfg.Log.Warn("Sending the password for etcd unencrypted; use https", "member", e.address)
		}
	}
}

// round tries the members, beginning with first, until a session with one of them succeeds, and that
// session has ended. It returns that member and nil. If no session succeeds, the error has the problem of
// each member.
func (s *Source) round(ctx context.Context, r *reader, first int) (int, error) {
	why := make([]string, len(s.members))
	for i := range s.members {
		n := (first + i) % len(s.members)
		e := s.members[n]
		looked, err := r.session(ctx, e)
		if r.left || ctx.Err() != nil {
			return n, nil
		}
		s.cfg.Log.Debug("Session with etcd ended", "member", e.address, "looked", looked, "reason", err)
		if looked {
			return n, nil
		}
		why[n] = err.Error()
	}
	return first, s.reasons(why)
}

// reasons joins the problems of the members, in the configured order.
func (s *Source) reasons(why []string) error {
	var words, members []string
	for n, w := range why {
		members = append(members, s.members[n].address)
		if n == len(why)-1 || why[n+1] != w {
			words = append(words, strings.Join(members, ", ")+": "+w)
			members = nil
		}
	}
	return errors.New(strings.Join(words, "; "))
}
