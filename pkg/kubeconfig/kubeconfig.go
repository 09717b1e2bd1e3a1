// Package kubeconfig is the way to an API server: whoever speaks to one asks a
// Client, which reads where the server is and who we are from a kubeconfig.
//
// A Client is a transport. What is sent through it goes to the server that the
// file names at that moment, whatever its URL says. So a rotated certificate, token
// or authority, another server, and a file that a bootstrap has yet to write need
// no restart, and all parts of an agent share few connections.
//
// The one rule: the kubeconfig and the files it names are read again before every
// request, and nothing else says who we are or whom we believe; a server that says
// "ask elsewhere" is not followed.
package kubeconfig

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

// lingers is how long requests that are under way have, once there is another
// certificate, authority or server, before their connections are closed.
const lingers = 30 * time.Second

// Config says where a Client finds its kubeconfig.
type Config struct {
	// File is the kubeconfig's path.
	File string
	// Awaited lets Open succeed while File, or the client certificate it names, is not
	// there: requests fail until it is.
	Awaited bool
	// Pair is a file with a certificate and its key, "" for none. They are shown in
	// place of a client certificate that the kubeconfig holds itself, while they are
	// of the same name and valid: a rotated certificate wins, as the kubelet has it.
	Pair string
	// UserAgent is sent with every request.
	UserAgent string
	// Log hears, at debug, that the kubeconfig has changed; nil is silence.
	Log *slog.Logger
}

// Client sends requests to the server that a kubeconfig names. Its methods may be
// called by many goroutines.
type Client struct {
	cfg     Config
	lingers time.Duration // the constant above; tests have less time

	gate sync.Mutex // guards what follows; files are read under it, and nothing is sent
	way  *Way       // as it was last; nil before the files were read
	old  []retired  // with requests under way, perhaps
}

// retired is a way that nothing is sent on any more.
type retired struct {
	way   *Way
	since time.Time
}

var _ http.RoundTripper = (*Client)(nil)

// Open returns the Client of a kubeconfig. It reads the files and sends nothing.
// The error is a pod.Problem where one of them cannot be read or used.
func Open(cfg Config) (*Client, error) {
	if cfg.File == "" {
		return nil, errors.New("no kubeconfig")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	c := &Client{cfg: cfg, lingers: lingers}
	way, err := read(cfg, nil)
	if err != nil && (!cfg.Awaited || !c.missing()) {
		return nil, err
	}
	c.way = way
	return c, nil
}

// missing reports whether the kubeconfig or its client certificate is not there.
func (c *Client) missing() bool {
	_, err := IdentityOf(c.cfg.File)
	return errors.Is(err, fs.ErrNotExist)
}

// lookAgain is how often Await looks.
const lookAgain = 250 * time.Millisecond

// Await returns when the kubeconfig and the client certificate it names are there, or
// at once where Config does not await them. The error is that of ctx.
func (c *Client) Await(ctx context.Context) error {
	for c.cfg.Awaited && c.missing() {
		select {
		case <-time.After(lookAgain):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// File returns the kubeconfig's path.
func (c *Client) File() string { return c.cfg.File }

// Host returns the scheme, host and port of the server as they were known last, for
// people; "" when they never were.
func (c *Client) Host() string {
	c.gate.Lock()
	defer c.gate.Unlock()
	if c.way == nil {
		return ""
	}
	return c.way.host
}

// Way returns the way to the server as the files describe it now; it is the same
// one for as long as they do not change. The error is a pod.Problem.
func (c *Client) Way() (*Way, error) {
	c.gate.Lock()
	defer c.gate.Unlock()
	c.closeOld(time.Now())
	way, err := read(c.cfg, c.way)
	if err != nil {
		return nil, err
	}
	if was := c.way; was != nil && was != way {
		was.wire.CloseIdleConnections()
		if was.identity != way.identity {
			c.old = append(c.old, retired{was, time.Now()})
		}
		c.cfg.Log.Debug("Kubeconfig changed", "kubeconfig", c.cfg.File, "server", way.host)
	}
	c.way = way
	return way, nil
}

// closeOld closes what a certificate, authority or server that is no longer ours
// has had time to end; gate is held.
func (c *Client) closeOld(now time.Time) {
	c.old = slices.DeleteFunc(c.old, func(r retired) bool {
		if now.Sub(r.since) < c.lingers {
			return false
		}
		r.way.close()
		return true
	})
}

// RoundTrip sends a request to the server of now: scheme, host and the path before
// the request's own are the kubeconfig's. It implements http.RoundTripper, but that
// an answer that redirects has no Location, so that nobody follows it.
func (c *Client) RoundTrip(r *http.Request) (*http.Response, error) {
	way, err := c.Way()
	if err != nil {
		if r.Body != nil {
			_ = r.Body.Close()
		}
		return nil, err
	}
	return way.RoundTrip(r)
}

// CancelRequest does nothing: requests end with their contexts. client-go warns
// where it is missing.
func (c *Client) CancelRequest(*http.Request) {}

// REST returns what client-go's typed clients need to speak through c. They are
// limited by nobody: whoever wants a limit sets it in what is returned, which is
// the caller's.
func (c *Client) REST() *rest.Config {
	cfg := &rest.Config{
		Host:      "https://kubernetes.invalid", // c has its own
		Transport: c,
		UserAgent: c.cfg.UserAgent,
		QPS:       -1,
	}
	cfg.ContentType = "application/vnd.kubernetes.protobuf"
	cfg.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	return cfg
}

// CloseIdleConnections gives back the connections that nobody uses.
func (c *Client) CloseIdleConnections() {
	c.gate.Lock()
	defer c.gate.Unlock()
	if c.way != nil {
		c.way.wire.CloseIdleConnections()
	}
	for _, r := range c.old {
		r.way.wire.CloseIdleConnections()
	}
}

// Close closes every connection, whoever uses it.
func (c *Client) Close() {
	c.gate.Lock()
	defer c.gate.Unlock()
	for _, r := range c.old {
		r.way.close()
	}
	c.old = nil
	if c.way != nil {
		c.way.close()
	}
}
