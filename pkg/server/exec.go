package server

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"k8s.io/client-go/tools/remotecommand"
	clientspdy "k8s.io/client-go/transport/spdy"
	clientexec "k8s.io/client-go/util/exec"
	served "k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// pingInterval is the interval of pings that keep a connection to the runtime from looking idle.
const pingInterval = 5 * time.Second

// streamCreationTimeout is how long a caller may take to create its streams. Until then, a caller
// that creates none takes the place of a stream. The kubelet allows 30 s.
const streamCreationTimeout = 10 * time.Second

// exec answers /exec: it runs a command in a container, with streams (C-1.40.9).
func (s *Server) exec(w http.ResponseWriter, q *request) error {
	if s.cfg.Containers == nil {
		return notImplemented(q)
	}
	command := q.params["command"]
	return s.remote(w, q, func(r *remote) (*url.URL, error) {
		return s.cfg.Containers.ExecURL(q.Context(), r.pod, q.values["container"], command, r.streams())
	})
}

// attach answers /attach: it connects to the streams of a container's main process.
func (s *Server) attach(w http.ResponseWriter, q *request) error {
	if s.cfg.Containers == nil {
		return notImplemented(q)
	}
	return s.remote(w, q, func(r *remote) (*url.URL, error) {
		return s.cfg.Containers.AttachURL(q.Context(), r.pod, q.values["container"], r.streams())
	})
}

// remote answers /exec and /attach. It opens streams to the runtime at the URL that where returns,
// and copies between these and the caller's streams.
func (s *Server) remote(w http.ResponseWriter, q *request, where func(*remote) (*url.URL, error)) error {
	opts, err := served.NewOptions(q.Request)
	if err != nil {
		return statusError(http.StatusBadRequest, err)
	}
	pod, err := s.pod(q)
	if err != nil {
		return err
	}
	if err := requireUpgrade(q.Request); err != nil {
		return err
	}
	r := &remote{pod: pod, opts: opts, q: q}
	if r.where, err = where(r); err != nil {
		return s.runtimeError(err)
	}
	defer func() {
		if q.began = r.used; !r.used {
			discardURL(q.Context(), s.log, r.where)
		}
	}()
	session, request := newSession(w, q.Request)
	defer session.end()
	if session.webSocket {
		return s.websocket(session, request, r)
	}
	s.spdy(session, request, r)
	return nil
}

// runtimeError returns an error of Config.Containers as a StatusError: callers may see
// the runtime's error.
func (s *Server) runtimeError(err error) error {
	var refusal *StatusError
	if errors.As(err, &refusal) {
		return refusal
	}
	return statusError(http.StatusInternalServerError, err)
}

// isSPDY reports whether a request asks to upgrade to SPDY.
func isSPDY(r *http.Request) bool {
	return httpstream.IsUpgradeRequest(r) && strings.EqualFold(r.Header.Get(httpstream.HeaderUpgrade), spdy.HeaderSpdy31)
}

// spdyTo returns an SPDY client for the runtime's streaming server, until ctx ends. It uses no
// proxy and follows no redirect. It sets used once the server has answered, because the URL is then
// used up. Like the kubelet, it does not verify the certificate: the runtime makes its own, and the
// agent got the URL over the runtime's socket.
func spdyTo(ctx context.Context, used *bool) (runtimeStreams, error) {
	dial := func(dialing context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(dialing, network, address)
		if err != nil {
			return nil, err
		}
		// If a container does not read its stdin, a write blocks and holds the lock that
		// closing the streams needs.
		closeAfter(ctx, conn)
		return conn, nil
	}
	transport, err := spdy.NewRoundTripperWithConfig(spdy.RoundTripperConfig{
		PingPeriod: pingInterval, UpgradeTransport: &http.Transport{DialContext: dial, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
	})
	return runtimeStreams{transport, used}, err
}

// runtimeStreams is a client for the runtime's streaming server.
type runtimeStreams struct {
	*spdy.SpdyRoundTripper
	used *bool
}

// NewConnection implements httpstream.UpgradeRoundTripper.
func (r runtimeStreams) NewConnection(answer *http.Response) (httpstream.Connection, error) {
	*r.used = true
	return r.SpdyRoundTripper.NewConnection(answer)
}

// discardTimeout is how long discardURL waits for the runtime.
const discardTimeout = 2 * time.Second

// discardURL uses up a URL of the runtime's streaming server to which no request was sent. The
// runtime keeps an unused URL for a minute, and refuses all streams of the node while it keeps
// 1000. A request without an upgrade uses the URL up and starts no command.
func discardURL(ctx context.Context, log *slog.Logger, where *url.URL) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), discardTimeout)
	defer cancel()
	if err := requestWithoutUpgrade(ctx, where); err != nil {
		log.Debug("Failed to use up URL of the container runtime's streaming server", "error", redact(err, where))
	}
}

// requestWithoutUpgrade sends a request to where as the streams do, and waits for the answer.
func requestWithoutUpgrade(ctx context.Context, where *url.URL) error {
	transport, err := spdyTo(ctx, new(bool))
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, where.String(), nil)
	if err != nil {
		return err
	}
	conn, err := transport.Dial(r)
	if err != nil {
		return err
	}
	defer conn.Close()
	answer, err := http.ReadResponse(bufio.NewReader(conn), r)
	if err != nil {
		return err
	}
	return answer.Body.Close()
}

// stream copies between the caller's streams and the runtime's until the command or container
// exits, or ctx is done. It returns a clientexec.CodeExitError for an exit code that is not 0.
func (r *remote) stream(ctx context.Context, in io.Reader, out, errs io.Writer, sizes remotecommand.TerminalSizeQueue) error {
	transport, err := spdyTo(ctx, &r.used)
	if err != nil {
		return err
	}
	x, err := remotecommand.NewSPDYExecutorRejectRedirects(transport, clientspdy.NewUpgraderForStreaming(transport), http.MethodPost, r.where)
	if err != nil {
		return err
	}
	opts := remotecommand.StreamOptions{Tty: r.opts.TTY}
	if r.opts.Stdin {
		opts.Stdin = in
	}
	if r.opts.Stdout {
		opts.Stdout = out
	}
	if r.opts.Stderr && !r.opts.TTY {
		opts.Stderr = errs
	}
	if r.opts.TTY {
		opts.TerminalSizeQueue = sizes
	}
	err = x.StreamWithContext(ctx, opts)
	var code clientexec.CodeExitError
	switch {
	case errors.As(err, &code):
		r.q.result = fmt.Sprintf("exit %d", code.Code)
		return code
	case ctx.Err() != nil: // the session ended first, mostly because the caller closed its connection
		r.q.result = "left"
	case err != nil:
		r.q.result = "error"
		return errors.New(r.plain(redact(err, r.where).Error()))
	}
	return err
}

// redactedError is an error whose text does not contain the URL of the runtime's streaming server.
type redactedError struct {
	text string
	err  error
}

func (w *redactedError) Error() string { return w.text }
func (w *redactedError) Unwrap() error { return w.err }

// redact removes the URL of the runtime's streaming server from an error message. Its path is a
// token that opens a stream, which callers must not see.
func redact(err error, where *url.URL) error {
	text := err.Error()
	for _, secret := range []string{where.String(), where.RequestURI(), where.Path} {
		if len(secret) > 1 {
			text = strings.ReplaceAll(text, secret, "(container runtime)")
		}
	}
	return &redactedError{text, err}
}

// plain returns an error's text without the prefixes of the runtime's streaming server, because this
// server adds the same prefixes.
func (r *remote) plain(text string) string {
	text = strings.TrimPrefix(text, "Internal error occurred: ")
	return strings.TrimPrefix(text, r.failed())
}

// failed returns the prefix of a streaming server's errors.
func (r *remote) failed() string {
	if strings.HasPrefix(r.q.route.path, "/attach") {
		return "error attaching to container: "
	}
	return "error executing command in container: "
}
