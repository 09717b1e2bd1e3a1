// Package client is the client of an agent for the commands: it reads pods, node,
// events, images and logs, opens streams into containers, and restarts and deletes
// pods.
//
// It connects to the agent's local socket, or with Server to the TLS port, where it
// uses only the kubelet's routes. cmd turns flags into a Config and answers into
// text. Streams are client-go's: WebSocket first, SPDY if the server refuses that.
//
// The package trusts no answer of a server. It limits the size of answers, and no
// answer chooses a path that the package writes to. Errors name the server that they
// come from.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// answerTime is how long Document waits for the start of an answer.
const answerTime = 10 * time.Second

// mostAnswer is the maximal size of a document. A node with some hundred pods needs a
// hundredth of it.
const mostAnswer = 256 << 20

// Config is the address of an agent, with credentials.
type Config struct {
	// Dial connects to the local socket; Socket is its path, for errors.
	Dial   func(ctx context.Context) (net.Conn, error)
	Socket string

	// Server, as https://host:10250, is used instead of the socket if it is not "".
	Server               string
	CertificateAuthority string // files; "" is the system's
	ClientCertificate    string
	ClientKey            string
	TokenFile            string
}

// Client is a client of one agent. It is safe for concurrent use.
type Client struct {
	cfg  Config
	rest *rest.Config
	base *url.URL
	web  *http.Client
}

// New returns a client; it does not connect yet. It returns an error for an invalid
// Config.
func New(cfg Config) (*Client, error) {
	c := &Client{cfg: cfg, base: &url.URL{Scheme: "http", Host: "nodectl"}, rest: &rest.Config{UserAgent: "nodectl"}}
	transport := &http.Transport{DisableCompression: true, DisableKeepAlives: true}
	if cfg.Server == "" {
		transport.DialContext = c.dial
		c.rest.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil }
	} else {
		at, err := url.Parse(cfg.Server)
		if err != nil || at.Scheme != "https" || at.Host == "" || at.User != nil || strings.Trim(at.Path, "/") != "" || at.RawQuery != "" {
			return nil, errors.New("it is not a server, as https://node-7:10250")
		}
		c.base = &url.URL{Scheme: at.Scheme, Host: at.Host}
		c.rest.BearerTokenFile = cfg.TokenFile
		c.rest.TLSClientConfig = rest.TLSClientConfig{CAFile: cfg.CertificateAuthority, CertFile: cfg.ClientCertificate, KeyFile: cfg.ClientKey, NextProtos: []string{"http/1.1"}}
		if transport.TLSClientConfig, err = rest.TLSConfigFor(c.rest); err != nil {
			return nil, err
		}
		transport.Proxy = http.ProxyFromEnvironment
	}
	c.rest.Host = c.base.String()
	wrapped, err := rest.HTTPWrappersForConfig(c.rest, transport)
	if err != nil {
		return nil, err
	}
	c.web = &http.Client{
		Transport:     wrapped,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c, nil
}

// Local reports whether the client uses the socket, where the agent has more routes than
// a kubelet.
func (c *Client) Local() bool { return c.cfg.Server == "" }

// Place returns the address of the agent: the socket's path or the server's URL.
func (c *Client) Place() string {
	if c.Local() {
		return c.cfg.Socket
	}
	return c.base.String()
}

func (c *Client) dial(ctx context.Context, _, _ string) (net.Conn, error) { return c.cfg.Dial(ctx) }

// AbsentError is the error if no agent answers.
type AbsentError struct {
	Place string
	Local bool
	// Denied means that the socket exists and belongs to another user.
	Denied bool
	err    error
}

func (a *AbsentError) Error() string {
	switch {
	case a.Denied:
		return "the agent at " + a.Place + " answers only its own user"
	case a.Local:
		return "no agent answers at " + a.Place
	}
	return "no agent answers at " + a.Place + ": " + a.err.Error()
}

func (a *AbsentError) Unwrap() error { return a.err }

// RefusedError is an agent's refusal, with its message.
type RefusedError struct {
	Code    int // of HTTP
	Message string
	Causes  []string
	status  bool // it was a Kubernetes Status: the server knows the route
}

func (r *RefusedError) Error() string { return r.Message }

// IsRefused reports whether err is a refusal with this code.
func IsRefused(err error, code int) bool {
	r, ok := errors.AsType[*RefusedError](err)
	return ok && r.Code == code
}

// Get requests a path and returns the body of the answer, without a limit. The caller
// closes it.
func (c *Client) Get(ctx context.Context, path string, query url.Values) (io.ReadCloser, error) {
	return c.ask(ctx, http.MethodGet, path, query)
}

// Post sends a POST request, and returns when the agent has answered.
func (c *Client) Post(ctx context.Context, path string, query url.Values) error {
	body, err := c.ask(ctx, http.MethodPost, path, query)
	if err != nil {
		return err
	}
	defer body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(body, 1<<16)) // so that the agent's write does not fail
	return nil
}

// PostDocument sends a POST request and reads the JSON document that the agent answers with
// once it is done.
func (c *Client) PostDocument(ctx context.Context, path string, query url.Values, into any) error {
	body, err := c.ask(ctx, http.MethodPost, path, query)
	if err != nil {
		return err
	}
	return c.decode(ctx, path, body, into)
}

// Document reads a JSON document. It returns an *AbsentError if the agent does not begin to
// answer within answerTime.
func (c *Client) Document(ctx context.Context, path string, query url.Values, into any) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := time.AfterFunc(answerTime, func() { cancel(fmt.Errorf("no answer within %s", answerTime)) })
	body, err := c.Get(ctx, path, query)
	if !late.Stop() && err != nil && ctx.Err() != nil {
		return &AbsentError{Place: c.Place(), err: context.Cause(ctx)}
	}
	if err != nil {
		return err
	}
	return c.decode(ctx, path, body, into)
}

// decode reads the JSON document of an answer, and closes it.
func (c *Client) decode(ctx context.Context, path string, body io.ReadCloser, into any) error {
	defer body.Close()
	data, err := io.ReadAll(io.LimitReader(body, mostAnswer+1))
	switch {
	case err != nil && ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return fmt.Errorf("lost the agent at %s: %w", c.Place(), bare(err))
	case len(data) > mostAnswer:
		return fmt.Errorf("the answer of the agent at %s is larger than %d MiB", c.Place(), mostAnswer>>20)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("the answer of the agent at %s to %s is not JSON: %w", c.Place(), path, err)
	}
	return nil
}

func (c *Client) url(path string, query url.Values) *url.URL {
	u := *c.base
	u.Path, u.RawQuery = path, query.Encode()
	return &u
}

func (c *Client) ask(ctx context.Context, method, path string, query url.Values) (io.ReadCloser, error) {
	r, err := http.NewRequestWithContext(ctx, method, c.url(path, query).String(), nil)
	if err != nil {
		return nil, err
	}
	answer, err := c.web.Do(r)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, c.absent(err)
	}
	if answer.StatusCode < 300 {
		return answer.Body, nil
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(answer.Body, 1<<16)) // a part is better than nothing
	return nil, refusal(answer.StatusCode, answer.Status, text)
}

// refusal reads the body of a refusal: a Status, or text.
func refusal(code int, status string, body []byte) *RefusedError {
	var s metav1.Status
	if json.Unmarshal(body, &s) == nil && s.Message != "" {
		return refusedBy(code, s)
	}
	text := strings.TrimSpace(string(bytes.ToValidUTF8(body, []byte("?"))))
	if text == "" || strings.HasPrefix(text, "<") {
		text = status
	}
	return &RefusedError{Code: code, Message: text}
}

func refusedBy(code int, s metav1.Status) *RefusedError {
	r := &RefusedError{Code: code, Message: s.Message, status: true}
	if s.Details != nil {
		for _, cause := range s.Details.Causes {
			r.Causes = append(r.Causes, cause.Message)
		}
	}
	return r
}

// absent returns the error for a request without an answer.
func (c *Client) absent(err error) error {
	if why, gone := c.gone(err); gone {
		return why
	}
	return &AbsentError{Place: c.Place(), err: bare(err)}
}

// gone reports whether a connection error means that no agent is there.
func (c *Client) gone(err error) (*AbsentError, bool) {
	for _, gone := range []error{fs.ErrNotExist, syscall.ECONNREFUSED, syscall.ENOTDIR} {
		if errors.Is(err, gone) {
			return &AbsentError{Place: c.Place(), Local: c.Local(), err: bare(err)}, true
		}
	}
	if c.Local() && errors.Is(err, fs.ErrPermission) {
		return &AbsentError{Place: c.Place(), Local: true, Denied: true, err: bare(err)}, true
	}
	return nil, false
}

// bare returns an error without the internal URL and address of the request, which mean
// nothing to the user.
func bare(err error) error {
	if failure, ok := errors.AsType[*url.Error](err); ok {
		err = failure.Err
	}
	if failure, ok := errors.AsType[*net.OpError](err); ok {
		err = failure.Err
	}
	return err
}
