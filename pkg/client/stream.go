package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/gorilla/websocket"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	restspdy "k8s.io/client-go/transport/spdy"
	restws "k8s.io/client-go/transport/websocket"
	"k8s.io/client-go/util/exec"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// Size is the size of a terminal.
type Size struct{ Width, Height uint16 }

// Streams are the streams of a command in a container. A nil one is not opened. With TTY
// there is no Stderr. Resize yields the terminal's sizes; the caller closes it.
type Streams struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	TTY            bool
	Resize         <-chan Size
}

// ExitError is the error of a command in a container that ended with a code other than 0.
type ExitError struct{ Code int }

func (e *ExitError) Error() string {
	return fmt.Sprintf("command terminated with exit code %d", e.Code)
}

// Exec runs a command in a container until it ends. It returns *ExitError for a code other
// than 0.
func (c *Client) Exec(ctx context.Context, namespace, name, container string, command []string, s Streams) error {
	return c.stream(ctx, "/exec/"+namespace+"/"+name+"/"+container, url.Values{"command": command}, s)
}

// Attach connects streams to the main process of a container, until it ends.
func (c *Client) Attach(ctx context.Context, namespace, name, container string, s Streams) error {
	return c.stream(ctx, "/attach/"+namespace+"/"+name+"/"+container, url.Values{}, s)
}

func (c *Client) stream(ctx context.Context, path string, q url.Values, s Streams) error {
	for key, on := range map[string]bool{"input": s.Stdin != nil, "output": s.Stdout != nil, "error": s.Stderr != nil && !s.TTY, "tty": s.TTY} {
		if on {
			q.Set(key, "1")
		}
	}
	at := c.url(path, q)
	first, err := remotecommand.NewWebSocketExecutor(c.webSocket(), http.MethodGet, at.String())
	if err != nil {
		return err
	}
	transport, upgrader, err := c.spdy()
	if err != nil {
		return err
	}
	second, err := remotecommand.NewSPDYExecutorRejectRedirects(transport, upgrader, http.MethodPost, at)
	if err != nil {
		return err
	}
	both, err := remotecommand.NewFallbackExecutor(first, second, otherWay)
	if err != nil {
		return err
	}
	o := remotecommand.StreamOptions{Stdin: s.Stdin, Stdout: s.Stdout, Tty: s.TTY}
	if !s.TTY {
		o.Stderr = s.Stderr
	}
	if s.Resize != nil {
		o.TerminalSizeQueue = sizes(s.Resize)
	}
	return c.streamed(ctx, both.StreamWithContext(ctx, o))
}

// streamed returns the end of a stream as an error of this package.
func (c *Client) streamed(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if ended, ok := errors.AsType[exec.CodeExitError](err); ok {
		return &ExitError{Code: ended.Code}
	}
	err = cause(err)
	if status, ok := errors.AsType[*apierrors.StatusError](err); ok {
		return refusedBy(int(status.ErrStatus.Code), status.ErrStatus)
	}
	if why, gone := c.gone(err); gone {
		return why
	}
	if no, ok := errors.AsType[*RefusedError](err); ok {
		return no
	}
	text, refused := strings.CutPrefix(err.Error(), "unable to upgrade connection: ")
	if refused {
		return &RefusedError{Message: strings.TrimSpace(text)}
	}
	for again := true; again; { // each server in between adds this prefix
		text, again = strings.CutPrefix(text, "Internal error occurred: ")
	}
	return errors.New(text)
}

// otherWay reports whether to try SPDY: the server answered and does not support
// WebSocket. A refusal would be the same with SPDY.
func otherWay(err error) bool {
	if no, ok := errors.AsType[*RefusedError](cause(err)); ok {
		switch no.Code {
		case http.StatusBadRequest, http.StatusMethodNotAllowed, http.StatusUpgradeRequired:
			return true
		}
		return no.Code == http.StatusForbidden && !no.status // an older server without v5
	}
	if _, ok := errors.AsType[*apierrors.StatusError](cause(err)); ok {
		return false
	}
	return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
}

// cause returns why an upgrade failed, or err.
func cause(err error) error {
	if failure, ok := errors.AsType[*httpstream.UpgradeFailureError](err); ok {
		return failure.Cause
	}
	return err
}

// sizes is a remotecommand.TerminalSizeQueue.
type sizes <-chan Size

// Next implements remotecommand.TerminalSizeQueue.
func (s sizes) Next() *remotecommand.TerminalSize {
	size, ok := <-s
	if !ok {
		return nil
	}
	return &remotecommand.TerminalSize{Width: size.Width, Height: size.Height}
}

// webSocket returns the configuration of a WebSocket to the agent. client-go's WebSocket
// dials TCP only: for the socket, upgrade replaces its round trip.
func (c *Client) webSocket() *rest.Config {
	if !c.Local() {
		return c.rest
	}
	cfg := rest.CopyConfig(c.rest)
	cfg.WrapTransport = func(rt http.RoundTripper) http.RoundTripper {
		if its, ok := rt.(*restws.RoundTripper); ok {
			return &upgrade{its: its, client: c}
		}
		return rt
	}
	return cfg
}

// upgrade opens a WebSocket over the local socket.
type upgrade struct {
	its    *restws.RoundTripper // gets the connection
	client *Client
}

// RoundTrip implements http.RoundTripper.
func (u *upgrade) RoundTrip(r *http.Request) (*http.Response, error) {
	protocols := r.Header[websocketProtocols]
	header := r.Header.Clone()
	header.Del(websocketProtocols)
	d := websocket.Dialer{
		NetDialContext: u.client.dial, Subprotocols: protocols,
		ReadBufferSize: u.its.DataBufferSize() + 1024, WriteBufferSize: u.its.DataBufferSize() + 1024, // room for the byte with the stream's number
		HandshakeTimeout: time.Minute,
	}
	at := *r.URL
	at.Scheme = "ws"
	conn, answer, err := d.DialContext(r.Context(), at.String(), header)
	if err != nil {
		if errors.Is(err, websocket.ErrBadHandshake) && answer != nil {
			defer answer.Body.Close()
			text, _ := io.ReadAll(io.LimitReader(answer.Body, 1<<16)) // a part is better than nothing
			return nil, &httpstream.UpgradeFailureError{Cause: refusal(answer.StatusCode, answer.Status, text)}
		}
		return nil, err
	}
	if !slices.Contains(protocols, conn.Subprotocol()) {
		_ = conn.Close()
		return nil, &httpstream.UpgradeFailureError{Cause: fmt.Errorf("the agent chose protocol %q instead of one of %q", conn.Subprotocol(), protocols)}
	}
	u.its.Conn = conn
	return answer, nil
}

const websocketProtocols = "Sec-Websocket-Protocol"

// spdy returns the transport and upgrader for SPDY to the agent.
func (c *Client) spdy() (http.RoundTripper, restspdy.Upgrader, error) {
	if !c.Local() {
		return restspdy.RoundTripperFor(c.rest)
	}
	rt, err := spdy.NewRoundTripperWithConfig(spdy.RoundTripperConfig{
		PingPeriod:       5 * time.Second,
		UpgradeTransport: &http.Transport{DialContext: c.dial},
	})
	return rt, restspdy.NewUpgraderForStreaming(rt), err
}

// Forward forwards connections on local ports to ports of a pod until ctx ends, or, with
// an error, until the pod or the agent is gone. Ports are as kubectl's: 8080:80, 80, or
// :80 for a free one. It writes the addresses and each connection to out, and errors of
// connections to errOut.
func (c *Client) Forward(ctx context.Context, namespace, name string, addresses, ports []string, out, errOut io.Writer) error {
	transport, upgrader, err := c.spdy()
	if err != nil {
		return err
	}
	at := c.url("/portForward/"+namespace+"/"+name, nil)
	web := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
		return errors.New("the server redirects the request: redirects are not followed") // the token would go there
	}}
	dialer := restspdy.NewDialer(upgrader, web, http.MethodPost, at)
	f, err := portforward.NewOnAddresses(dialer, addresses, ports, ctx.Done(), nil, out, errOut)
	if err != nil {
		return err
	}
	return c.streamed(ctx, f.ForwardPorts())
}
