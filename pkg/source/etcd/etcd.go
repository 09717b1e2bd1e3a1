// Package etcd reads manifests from etcd v3: each key below a prefix is one
// manifest file. It is the fourth source of the first kubelets (C-1.9).
//
// A session with one member lists the keys at one revision, reads the values that
// changed since the session before, and watches from the next revision on. It uses
// etcd's protocol without etcd's client library, whose watches reconnect by themselves:
// after a restore from a backup they wait, without an error, for a revision from before
// it.
//
// Only a complete, linearizable list removes a key. If that list contradicts earlier
// reads, a second one has to confirm it.
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

// ValueLimit is the largest value that is read, in bytes; etcd's own limit is
// lower unless it was raised.
const ValueLimit = 10 << 20

const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 30 * time.Second
	// settled is how long a session must have lasted for its end not to be one
	// of several in a row.
	settled = 10 * time.Second
)

// Config configures an etcd source.
type Config struct {
	// Endpoints are the members' client URLs, http or https, all of one
	// cluster. Userinfo in a URL is that member's user and password.
	Endpoints []string
	// Prefix is the directory of the keys; "/pods" and "/pods/" mean the same,
	// and neither means "/pods2/a".
	Prefix string
	// CAFile holds the authorities that https members are checked against, as PEM; ""
	// is the system's. CertFile and KeyFile are the client certificate. All three are
	// read again for every connection (F72).
	CAFile, CertFile, KeyFile string
	// Username with the password in PasswordFile is the etcd user; that file, too, is
	// read again for every connection.
	Username, PasswordFile string
	// Parse decodes a value; the second result lists the parts that it skipped on purpose. One
	// goroutine at a time calls it.
	Parse func(data []byte, file string) (source.File, []pod.Problem)
	// Log receives sessions, at debug; nil discards them.
	Log *slog.Logger
	// Timeout bounds one answer; zero is 10 s, longer than a member without a
	// leader takes to say so.
	Timeout time.Duration
	// Confirm is how long a list that contradicts earlier reads must hold before it is
	// accepted; zero is 5 s (F71).
	Confirm time.Duration
	// UserAgent names the program to the members.
	UserAgent string
	// Insecure allows http endpoints of other hosts.
	Insecure bool
}

// Source is an etcd source.
type Source struct {
	cfg     Config
	prefix  string // ends in a slash
	end     string // the first key behind the prefix
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

// New returns the source of the keys below cfg.Prefix; the error names the invalid part of cfg,
// without secrets. It dials nothing and reads no file before Sets.
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

// Name returns "etcd:" and the prefix: other members of the cluster are the
// same layer.
func (s *Source) Name() string { return "etcd:" + s.cfg.Prefix }

// Sets implements source.Source. It never ends by itself.
func (s *Source) Sets(ctx context.Context) iter.Seq2[source.Snapshot, error] {
	return func(yield func(source.Snapshot, error) bool) {
		s.warn()
		r := newReader(s, yield)
		next := rand.N(len(s.members)) // nodes spread over the members
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
			case !r.cannot(err):
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

// round tries the members, beginning with first, until one could be looked at and that session has
// ended; it returns that member and nil. Otherwise the error has the problem of each.
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
