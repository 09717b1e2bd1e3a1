package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/remotecommand"
	clientexec "k8s.io/client-go/util/exec"
	served "k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// remote is one exec or attach.
type remote struct {
	pod   *v1.Pod
	opts  *served.Options
	where *url.URL // of the runtime
	used  bool     // the runtime has answered a request to the URL, which is then used up
	q     *request
}

func (r *remote) streams() Streams {
	return Streams{Stdin: r.opts.Stdin, Stdout: r.opts.Stdout, Stderr: r.opts.Stderr, TTY: r.opts.TTY}
}

// queue returns the sizes of a terminal until the channel is closed or ctx is done. It implements
// remotecommand.TerminalSizeQueue.
type queue struct {
	ctx   context.Context
	sizes <-chan served.TerminalSize
}

// Next implements remotecommand.TerminalSizeQueue.
func (q *queue) Next() *remotecommand.TerminalSize {
	select {
	case size, ok := <-q.sizes:
		if ok {
			return &remotecommand.TerminalSize{Width: size.Width, Height: size.Height}
		}
	case <-q.ctx.Done():
	}
	return nil
}

// websocket serves protocols 1, 4 and 5 over a WebSocket. A caller can close stdin only with
// protocol 5.
func (s *Server) websocket(w *session, q *http.Request, r *remote) error {
	type channel = wsstream.ChannelType
	when := func(on bool, c channel) channel {
		if on {
			return c
		}
		return wsstream.IgnoreChannel
	}
	channels := []channel{
		served.StreamStdIn:  when(r.opts.Stdin, wsstream.ReadChannel),
		served.StreamStdOut: when(r.opts.Stdout, wsstream.WriteChannel),
		served.StreamStdErr: when(r.opts.Stderr, wsstream.WriteChannel),
		served.StreamErr:    wsstream.WriteChannel,
		served.StreamResize: when(r.opts.TTY, wsstream.ReadChannel),
	}
	protocols := map[string]wsstream.ChannelProtocolConfig{served.StreamProtocolV5Name: {Binary: true, Channels: channels}}
	if !wsstream.IsWebSocketRequestWithStreamCloseProtocol(q) {
		protocols = wsstream.NewDefaultChannelProtocols(channels)
		protocols[served.StreamProtocolV4Name] = wsstream.ChannelProtocolConfig{Binary: true, Channels: channels}
		protocols[base64V4] = wsstream.ChannelProtocolConfig{Channels: channels}
	}
	conn := wsstream.NewConn(protocols)
	conn.SetIdleTimeout(s.cfg.StreamIdle)
	protocol, streams, err := conn.Open(w, q) // Open answers the caller if it fails
	if err != nil {
		r.q.result = "error"
		s.log.Debug("Failed to open WebSocket", "error", err)
		return nil
	}
	defer conn.Close()
	status := streams[served.StreamErr]
	first := status // an empty message on a stream tells the caller that all streams are open
	switch {
	case r.opts.Stdout:
		first = streams[served.StreamStdOut]
	case r.opts.Stderr:
		first = streams[served.StreamStdErr]
	}
	_, _ = first.Write(nil)
	s.run(w, q, r, protocol, &callerIO{
		in: streams[served.StreamStdIn], out: streams[served.StreamStdOut], errs: streams[served.StreamStdErr],
		status: status, sizes: streams[served.StreamResize], close: func() { _ = conn.Close() },
	})
	return nil
}

// base64V4 is protocol 4 for WebSocket clients without binary messages.
const base64V4 = "v4." + wsstream.Base64ChannelWebSocketProtocol

// callerIO has the streams of the caller of exec or attach. run uses those that the options select.
type callerIO struct {
	in                io.Reader
	out, errs, status io.Writer
	sizes             io.Reader // nil: there is none
	close             func()
}

// run connects the caller's streams with those of the runtime, and at the end sends the caller
// the final status.
func (s *Server) run(w *session, q *http.Request, r *remote, protocol string, e *callerIO) {
	sizes := make(chan served.TerminalSize, 1) // cap 1: readSizes reads the next one meanwhile
	var wg sync.WaitGroup
	defer wg.Wait()
	defer e.close()
	if r.opts.TTY && e.sizes != nil { // the older protocols have no sizes
		wg.Go(func() { readSizes(q.Context(), e.sizes, sizes) })
	}
	err := r.stream(q.Context(), e.in, e.out, e.errs, &queue{ctx: q.Context(), sizes: sizes})
	w.limitLastWrite()
	if text := r.finalMessage(protocol, err); len(text) > 0 {
		if _, err := e.status.Write(text); err != nil && q.Context().Err() == nil {
			s.log.Debug("Failed to send the status of a stream", "error", err)
		}
	}
}

// finalMessage returns the last message to the caller: a Status with protocols 4 and 5, and the error's
// text with the older ones.
func (r *remote) finalMessage(protocol string, err error) []byte {
	status := r.status(err)
	switch protocol {
	case served.StreamProtocolV4Name, base64V4, served.StreamProtocolV5Name:
		text, _ := json.Marshal(status) // strings and numbers
		return text
	}
	return []byte(status.Message)
}

// callerStreams are the streams that a caller of exec or attach opens over SPDY.
type callerStreams struct {
	want     []string      // kinds
	complete chan struct{} // closed once all of them are there

	mu     sync.Mutex
	closed bool // accepts no more streams
	by     map[string]callerStream
}

// callerStream is one of the caller's streams.
type callerStream struct {
	httpstream.Stream
	reply <-chan struct{}
}

// streamKinds are all kinds of streams.
func streamKinds() []string {
	return []string{served.StreamTypeError, served.StreamTypeStdin, served.StreamTypeStdout, served.StreamTypeStderr, served.StreamTypeResize}
}

// add accepts a stream, or resets it. It implements httpstream.NewStreamHandler, and returns
// no error, because the library would log it.
func (c *callerStreams) add(stream httpstream.Stream, reply <-chan struct{}) error {
	kind := stream.Headers().Get(served.StreamType)
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, twice := c.by[kind]; c.closed || twice || !slices.Contains(streamKinds(), kind) {
		_ = stream.Reset()
		return nil
	}
	before := c.missing()
	c.by[kind] = callerStream{stream, reply}
	if before && !c.missing() {
		close(c.complete)
	}
	return nil
}

// missing reports whether a stream is missing; mu is held.
func (c *callerStreams) missing() bool {
	return slices.ContainsFunc(c.want, func(kind string) bool { return c.by[kind].Stream == nil })
}

// close resets all streams. The library's goroutines wait for the reader of a stream until
// it is reset, also after the connection is closed.
func (c *callerStreams) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, stream := range c.by {
		_ = stream.Reset()
	}
}

// spdy serves protocols 1 to 4 over SPDY.
func (s *Server) spdy(w *session, q *http.Request, r *remote) {
	r.q.result = "error"
	protocol, err := httpstream.Handshake(q, w, served.SupportedStreamingProtocols)
	if err != nil { // Handshake has answered
		return
	}
	c := &callerStreams{complete: make(chan struct{}), by: map[string]callerStream{}}
	for kind, on := range map[string]bool{
		served.StreamTypeError: true, served.StreamTypeStdin: r.opts.Stdin, served.StreamTypeStdout: r.opts.Stdout, served.StreamTypeStderr: r.opts.Stderr,
		served.StreamTypeResize: r.opts.TTY && (protocol == served.StreamProtocolV4Name || protocol == served.StreamProtocolV3Name),
	} {
		if on {
			c.want = append(c.want, kind)
		}
	}
	conn := upgradeSPDY(w, q, len(streamKinds()), c.add)
	if conn == nil {
		return
	}
	closing := sync.OnceFunc(func() {
		w.limitLastWrite()
		c.close()
		_ = conn.Close()
	})
	defer closing()
	conn.SetIdleTimeout(s.cfg.StreamIdle)
	w.wg.Go(func() { // the library stops reading after a GOAWAY
		select {
		case <-conn.CloseChan():
			w.cancel()
		case <-q.Context().Done():
		}
	})
	late := time.NewTimer(streamCreationTimeout)
	defer late.Stop()
	select {
	case <-c.complete:
	case <-q.Context().Done():
		return
	case <-late.C:
		s.log.Debug("Streams not created in time", "pod", r.pod.Name)
		return
	}
	c.mu.Lock()
	by := maps.Clone(c.by)
	c.mu.Unlock()
	for _, kind := range c.want {
		if !conn.replied(q, by[kind].reply) {
			return
		}
	}
	r.q.result = "ok"
	e := &callerIO{
		in: by[served.StreamTypeStdin], out: by[served.StreamTypeStdout], errs: by[served.StreamTypeStderr],
		status: by[served.StreamTypeError], close: closing,
	}
	if slices.Contains(c.want, served.StreamTypeResize) {
		e.sizes = by[served.StreamTypeResize]
	}
	s.run(w, q, r, protocol, e)
}

// maxSize is more than the JSON of a terminal's size needs.
const maxSize = 1 << 10

// readSizes reads a terminal's sizes until their end, or until one is too long. The decoder
// buffers a whole value, so its length must have a limit.
func readSizes(ctx context.Context, from io.Reader, sizes chan<- served.TerminalSize) {
	defer close(sizes)
	limited := &io.LimitedReader{R: from}
	for in := json.NewDecoder(limited); ; {
		var size served.TerminalSize
		if limited.N = maxSize; in.Decode(&size) != nil {
			return
		}
		select {
		case sizes <- size:
		case <-ctx.Done():
			return
		}
	}
}

// status returns the final status of a stream, as protocols 4 and 5 define it.
func (r *remote) status(err error) *metav1.Status {
	var code clientexec.CodeExitError
	switch {
	case err == nil:
		return &metav1.Status{Status: metav1.StatusSuccess}
	case errors.As(err, &code):
		return &metav1.Status{
			Status: metav1.StatusFailure, Reason: served.NonZeroExitCodeReason,
			Message: fmt.Sprintf("command terminated with non-zero exit code: %v", code),
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: served.ExitCodeCauseType, Message: fmt.Sprint(code.Code)}}},
		}
	}
	return &metav1.Status{
		Status: metav1.StatusFailure, Reason: metav1.StatusReasonInternalError, Code: http.StatusInternalServerError,
		Message: "Internal error occurred: " + r.failed() + err.Error(),
	}
}
