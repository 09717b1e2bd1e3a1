// Package apiclient is the one way to an API server. Every part of an agent that sends
// requests to one sends them through a Client.
//
// A Client is an HTTP transport. It reads a kubeconfig, and sends each request to the
// server that the file names at that moment, whatever the request's URL says. A rotated
// certificate, token or authority, another server, and a file that a bootstrap has yet
// to write need no restart. All parts of an agent share few connections.
//
// The Client reads the kubeconfig and the files that it names again before every
// request. No other place has the node's identity, or the authority that the node
// trusts. The Client follows no redirect.
package apiclient

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

	"github.com/nodectl/nodectl/pkg/backoff"
)

// drainTimeout is how long requests in flight may go on after the certificate, authority or
// server has changed. Then their connections are closed.
const drainTimeout = 30 * time.Second

// Config says where a Client finds its kubeconfig.
type Config struct {
	// File is the kubeconfig's path.
	File string
	// Awaited lets Open succeed while File, or the client certificate it names, does not
	// exist: requests fail until it does.
	Awaited bool
	// Pair is a file with a certificate and its key, "" for none. They replace a client
	// certificate that is in the kubeconfig itself, while they are valid and have the same
	// name: a rotated certificate wins, as in the kubelet.
	Pair string
	// UserAgent is sent with every request.
	UserAgent string
	// Log gets a debug message when the kubeconfig has changed; nil for none.
	Log *slog.Logger
}

// Client sends requests to the server that a kubeconfig names. Its methods may be
// called by many goroutines.
type Client struct {
	cfg          Config
	drainTimeout time.Duration // the constant above; tests have less time

	mu        sync.Mutex // guards the fields below; held while files are read, never while a request is sent
	transport *Transport // the newest one; nil before the files were read
	old       []retired  // that may have requests in flight

	epoch        epoch
	reachability reachability
}

// retired is a transport that gets no new requests.
type retired struct {
	transport *Transport
	since     time.Time
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
	c := &Client{cfg: cfg, drainTimeout: drainTimeout}
	transport, err := read(cfg, nil)
	if err != nil && (!cfg.Awaited || !c.missing()) {
		return nil, err
	}
	c.use(transport)
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
		if !backoff.Sleep(ctx, lookAgain) {
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
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.transport == nil {
		return ""
	}
	return c.transport.host
}

// Transport returns the transport to the server as the files describe it now. It is the
// same one for as long as they do not change. The error is a pod.Problem.
func (c *Client) Transport() (*Transport, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closeOld(time.Now())
	transport, err := read(c.cfg, c.transport)
	if err != nil {
		return nil, err
	}
	if was := c.transport; was != nil && was != transport {
		was.wire.CloseIdleConnections()
		if was.identity != transport.identity {
			c.old = append(c.old, retired{was, time.Now()})
		}
		c.cfg.Log.Debug("Kubeconfig changed", "kubeconfig", c.cfg.File, "server", transport.host)
	}
	c.use(transport)
	return transport, nil
}

// use makes transport, which may be nil, the newest one; mu is held, or c is not shared yet.
func (c *Client) use(transport *Transport) {
	if transport != nil && transport != c.transport {
		transport.reachability = &c.reachability
	}
	c.transport = transport
}

// closeOld closes the connections of retired transports whose time is over; mu is held.
func (c *Client) closeOld(now time.Time) {
	c.old = slices.DeleteFunc(c.old, func(r retired) bool {
		if now.Sub(r.since) < c.drainTimeout {
			return false
		}
		r.transport.close()
		return true
	})
}

// RoundTrip sends a request to the server that the kubeconfig names now: scheme, host and
// the path before the request's own are the kubeconfig's. It implements
// http.RoundTripper, except that it removes Location from a redirect, so that no client
// follows it.
func (c *Client) RoundTrip(r *http.Request) (*http.Response, error) {
	transport, err := c.Transport()
	if err != nil {
		if r.Body != nil {
			_ = r.Body.Close()
		}
		return nil, err
	}
	return transport.RoundTrip(r)
}

// CancelRequest does nothing: requests end with their contexts. client-go warns
// where it is missing.
func (c *Client) CancelRequest(*http.Request) {}

// REST returns the configuration by which client-go's typed clients send their requests
// through c, without a rate limit. The caller may change it.
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

// CloseIdleConnections closes the connections that no request uses.
func (c *Client) CloseIdleConnections() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.transport != nil {
		c.transport.wire.CloseIdleConnections()
	}
	for _, r := range c.old {
		r.transport.wire.CloseIdleConnections()
	}
}

// Close closes every connection, also those that a request uses.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.old {
		r.transport.close()
	}
	c.old = nil
	if c.transport != nil {
		c.transport.close()
	}
}
