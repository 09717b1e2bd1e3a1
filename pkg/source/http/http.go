// Package http polls a URL for manifests.
//
// It yields one source.File, named by the URL without its secrets. It accepts only a complete answer with
// status 200, or 304 after a conditional request. Any other answer is an error, and the last good set
// stays in use.
//
// The package writes neither the body of an answer nor the node's credentials to a log or an
// error, and sends neither to another origin.
package http

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	nethttp "net/http"
	"net/url"
	"time"

	"github.com/nodectl/nodectl/pkg/backoff"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/source"
)

// BodyLimit is the largest body that the source reads, in bytes, decompressed.
const BodyLimit = 10 << 20

// HeaderLimit is the largest header of an answer that the source reads, in bytes.
const HeaderLimit = 64 << 10

const (
	firstRetry = time.Second
	lastRetry  = 5 * time.Minute
	// trustFor is how long the source accepts the status 304 before it requests the complete document
	// again.
	trustFor = 5 * time.Minute
)

// Config is the configuration of an http source.
type Config struct {
	// URL is an http or https URL; userinfo becomes basic authentication.
	URL string
	// Header has the headers of each request. The source sends them only to the origin of URL.
	Header nethttp.Header
	// CheckFrequency is the time between two requests; zero is 20 s (C-1.7.1).
	CheckFrequency time.Duration
	// Timeout limits one request with its body; zero is 10 s (C-1.7.1).
	Timeout time.Duration
	// CAFile, CertFile and KeyFile are PEM files. CAFile has the authorities that may sign
	// the server's certificate; "" means those of the system. CertFile and KeyFile have the
	// client certificate and its key; set both or neither. The source reads the files again
	// before each request, and a change opens a new connection, so a user may rotate them.
	// An unusable file is an error of the source. The source does not read them for an http
	// URL.
	CAFile, CertFile, KeyFile string
	// Client makes the requests, with its Transport and Jar; the files above then have no effect. nil:
	// the source makes a client of its own.
	Client *nethttp.Client
	// Parse decodes the body. The second result has a notice for each part that Parse ignored on
	// purpose. Only one goroutine at a time calls it. Required.
	Parse func(data []byte, file string) (source.File, []pod.Problem)
	// Log receives a debug message for each request; nil discards them.
	Log *slog.Logger
	// UserAgent is the User-Agent of requests, unless Header has one.
	UserAgent string
	// Insecure allows an http URL of another host.
	Insecure bool
}

// Source is an http source.
type Source struct {
	cfg  Config
	url  *url.URL                                // without userinfo and fragment
	name string                                  // the URL without secrets, for messages
	read func(what, path string) ([]byte, error) // readCredential
}

var _ source.Source = (*Source)(nil)

// New returns the source of cfg.URL. An error says why the source cannot poll that URL, and
// does not contain it. The source sends nothing before Sets.
func New(cfg Config) (*Source, error) {
	u, err := url.Parse(cfg.URL)
	switch {
	case err != nil:
		return nil, errors.New("not a URL")
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, errors.New("not an http or https URL")
	case u.Hostname() == "":
		return nil, errors.New("a URL without a host")
	case source.IsUnprotected(u) && !cfg.Insecure:
		return nil, source.ErrUnprotected
	case cfg.CertFile != "" && cfg.KeyFile == "":
		return nil, errors.New("a client certificate without its key")
	case cfg.CertFile == "" && cfg.KeyFile != "":
		return nil, errors.New("a client key without its certificate")
	}
	if cfg.CheckFrequency <= 0 {
		cfg.CheckFrequency = 20 * time.Second
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = 10 * time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Source{cfg: cfg, name: redact(u), read: readCredential}
	s.cfg.Header = headers(cfg, u)
	u.User, u.Fragment, u.RawFragment = nil, "", ""
	s.url = u
	return s, nil
}

// headers returns the headers of every request.
func headers(cfg Config, u *url.URL) nethttp.Header {
	h := cfg.Header.Clone()
	if h == nil {
		h = nethttp.Header{}
	}
	if h.Get("Accept") == "" {
		h.Set("Accept", "application/yaml, application/json, */*;q=0.5")
	}
	if h.Get("User-Agent") == "" && cfg.UserAgent != "" {
		h.Set("User-Agent", cfg.UserAgent)
	}
	if u.User != nil && h.Get("Authorization") == "" {
		password, _ := u.User.Password()
		r := nethttp.Request{Header: h}
		r.SetBasicAuth(u.User.Username(), password)
	}
	return h
}

// Name returns "http:" and the URL without userinfo and secret parameters, which
// is also the name of its one File.
func (s *Source) Name() string { return "http:" + s.name }

// Sets implements source.Source. It never ends by itself.
func (s *Source) Sets(ctx context.Context) iter.Seq2[source.Snapshot, error] {
	return func(yield func(source.Snapshot, error) bool) {
		p := &poller{Source: s, pace: pacer{poll: s.cfg.CheckFrequency}}
		defer func() { p.closeIdle() }()
		lastError, yielded := "", false // lastError: the error last yielded, "" after a set
		for {
			err := p.poll(ctx)
			if ctx.Err() != nil {
				return
			}
			switch {
			case err != nil && err.Error() != lastError:
				lastError = err.Error()
				if !yield(source.Snapshot{}, err) {
					return
				}
			case err == nil && (!yielded || lastError != "" || p.set.Dirty()):
				lastError, yielded = "", true
				if !yield(p.set.Snapshot(), nil) {
					return
				}
			}
			if !backoff.Sleep(ctx, p.delay(err)) {
				return
			}
		}
	}
}

// poller is the state of one run of Sets.
type poller struct {
	*Source
	client *nethttp.Client
	creds  credentials // the TLS files with which client was made
	set    source.Builder
	pace   pacer

	have     bool              // the last complete answer was a document that poll accepted
	sum      [sha256.Size]byte // of that document's body
	read     source.File       // its content
	notices  []pod.Problem     // the parts that its parser skipped
	version  version           // its version
	shown    bool              // the set has this content
	full     time.Time         // when the last poll with a complete document began
	etag     string            // ETag of the last 200
	modified string            // Last-Modified of the last 200
	retry    time.Duration     // the last delay after a failure
	unframed bool              // only the end of the connection shows the end of the last body
	rejected [sha256.Size]byte // the sum of the last unframed body that poll rejected
}

// delay returns how long to wait before the next poll: about CheckFrequency, or after failures an
// exponential back-off.
func (p *poller) delay(err error) time.Duration {
	if err == nil || errors.As(err, new(*alternation)) {
		p.retry = 0
		return jitter(p.cfg.CheckFrequency)
	}
	p.retry = backoff.Next(p.retry, min(firstRetry, p.cfg.CheckFrequency), max(lastRetry, p.cfg.CheckFrequency))
	return jitter(p.retry)
}

// jitter changes d by up to a tenth, so that nodes do not poll at the same moment.
func jitter(d time.Duration) time.Duration {
	return backoff.Jitter(d, 0.9, 1.1)
}

// poll sends one request and updates the set.
func (p *poller) poll(ctx context.Context) error {
	start := time.Now()
	body, status, err := p.get(ctx)
	p.cfg.Log.Debug("Requested manifests", "url", p.name, "status", status, "bytes", len(body), "took", time.Since(start))
	switch {
	case err != nil:
		p.closeIdle()
		return err
	case status == nethttp.StatusNotModified:
		return p.apply(start)
	case len(bytes.TrimSpace(body)) == 0:
		// An outage must not look like a set without pods, as it does in the kubelet (C-1.7.4).
		p.have = false
		return errors.New("empty answer; to serve no pods, answer with an empty List")
	}
	sum := sha256.Sum256(body)
	p.full = start
	if p.have && sum == p.sum {
		return p.apply(start)
	}
	read, notices := p.cfg.Parse(body, p.name)
	read.File = p.name
	if p.unframed && sum != p.rejected && p.set.IsWorse(read) {
		// The body may be truncated, since its length is not known. poll accepts it if the next answer
		// is equal.
		p.have, p.rejected = false, sum
		return errors.New("the answer states no length and lacks pods of the last one; requesting it again")
	}
	p.have, p.sum, p.shown, p.rejected = true, sum, false, [sha256.Size]byte{}
	p.read, p.notices = read, notices
	p.version = versionOf(p.read)
	// The log contains only these facts about a body (F61).
	p.cfg.Log.Debug("Read changed document", "url", p.name, "bytes", len(body), "sha256", hex.EncodeToString(sum[:]),
		"pods", len(p.read.Pods), "problems", len(p.read.Problems))
	return p.apply(start)
}

// apply puts the last document into the set, unless the pacer keeps another version in force.
// The error says that content alternates.
func (p *poller) apply(now time.Time) error {
	var alternates error
	if !harmless(p.read) {
		alternates = p.pace.serve(p.version, now)
		if p.version != p.pace.force {
			return alternates
		}
	}
	if !p.shown {
		p.set.Put(p.read, p.notices)
		p.shown = true
	}
	return alternates
}

// get requests the document. Without an error, status is 200 and body is complete, or status is 304 after a
// conditional request.
func (p *poller) get(ctx context.Context) (body []byte, status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	request, err := nethttp.NewRequestWithContext(ctx, nethttp.MethodGet, p.url.String(), nil)
	if err != nil {
		return nil, 0, errors.New("not a URL")
	}
	request.Header = p.cfg.Header.Clone()
	request.Host = request.Header.Get("Host")
	conditional := p.have && time.Since(p.full) < trustFor && (p.etag != "" || p.modified != "")
	if conditional {
		if p.etag != "" {
			request.Header.Set("If-None-Match", p.etag)
		}
		if p.modified != "" {
			request.Header.Set("If-Modified-Since", p.modified)
		}
	}
	if err := p.setClient(); err != nil {
		return nil, 0, err
	}
	response, err := p.client.Do(request)
	if err != nil {
		return nil, 0, explain(err)
	}
	defer response.Body.Close()
	status = response.StatusCode
	if status != nethttp.StatusOK && (status != nethttp.StatusNotModified || !conditional) {
		return nil, status, fmt.Errorf("HTTP %d", status)
	}
	body, err = io.ReadAll(io.LimitReader(response.Body, BodyLimit+1))
	switch {
	case err != nil:
		return nil, status, explain(err)
	case len(body) > BodyLimit:
		return nil, status, fmt.Errorf("the body is larger than %d MiB", BodyLimit>>20)
	}
	p.unframed = response.ProtoMajor == 1 && response.ContentLength < 0 && len(response.TransferEncoding) == 0 &&
		!response.Uncompressed && response.TLS == nil // gzip and TLS report a truncated body
	if status == nethttp.StatusOK {
		p.etag, p.modified = response.Header.Get("ETag"), response.Header.Get("Last-Modified")
	}
	return body, status, nil
}
