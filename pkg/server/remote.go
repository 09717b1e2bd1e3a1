package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/remotecommand"
	clientexec "k8s.io/client-go/util/exec"
	served "k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// remote is one exec or attach.
type remote struct {
	pod   *v1.Pod
	opts  *served.Options
	where *url.URL // of the runtime
	q     *request
}

func (r *remote) streams() Streams {
	return Streams{Stdin: r.opts.Stdin, Stdout: r.opts.Stdout, Stderr: r.opts.Stderr, TTY: r.opts.TTY}
}

// ExecInContainer implements served.Executor.
func (r *remote) ExecInContainer(ctx context.Context, _, _, _ string, _ []string, in io.Reader, out, errs io.WriteCloser, _ bool, sizes <-chan served.TerminalSize, _ time.Duration) error {
	return r.stream(ctx, in, out, errs, &queue{ctx: ctx, sizes: sizes})
}

// AttachContainer implements served.Attacher.
func (r *remote) AttachContainer(ctx context.Context, _, _, _ string, in io.Reader, out, errs io.WriteCloser, _ bool, sizes <-chan served.TerminalSize) error {
	return r.stream(ctx, in, out, errs, &queue{ctx: ctx, sizes: sizes})
}

// queue hands a terminal's sizes on, until there are no more.
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

// websocket serves protocol 5, in which a caller can say that stdin has ended: the
// streaming server of cri-streaming knows up to 4, wsstream knows it.
func (s *Server) websocket(w http.ResponseWriter, q *http.Request, r *remote) error {
	type channel = wsstream.ChannelType
	when := func(on bool, c channel) channel {
		if on {
			return c
		}
		return wsstream.IgnoreChannel
	}
	conn := wsstream.NewConn(map[string]wsstream.ChannelProtocolConfig{served.StreamProtocolV5Name: {Binary: true, Channels: []channel{
		served.StreamStdIn:  when(r.opts.Stdin, wsstream.ReadChannel),
		served.StreamStdOut: when(r.opts.Stdout, wsstream.WriteChannel),
		served.StreamStdErr: when(r.opts.Stderr, wsstream.WriteChannel),
		served.StreamErr:    wsstream.WriteChannel,
		served.StreamResize: wsstream.ReadChannel,
	}}})
	conn.SetIdleTimeout(s.cfg.StreamIdle)
	_, streams, err := conn.Open(w, q) // which has answered, if it failed
	if err != nil {
		r.q.result = "error"
		s.log.Debug("WebSocket not opened", "error", err)
		return nil
	}
	defer conn.Close()
	status := streams[served.StreamErr]
	first := status // an empty message on a stream says that all of them are there
	switch {
	case r.opts.Stdout:
		first = streams[served.StreamStdOut]
	case r.opts.Stderr:
		first = streams[served.StreamStdErr]
	}
	_, _ = first.Write(nil)
	sizes := make(chan served.TerminalSize, 1) // cap 1: one is on its way while the next is read
	var wg sync.WaitGroup
	defer wg.Wait()
	defer conn.Close()
	wg.Go(func() { readSizes(q.Context(), streams[served.StreamResize], sizes) })
	err = r.stream(q.Context(), streams[served.StreamStdIn], streams[served.StreamStdOut], streams[served.StreamStdErr], &queue{ctx: q.Context(), sizes: sizes})
	text, broken := json.Marshal(r.status(err))
	if broken != nil {
		return broken
	}
	conn.SetWriteDeadline(lastWrite)
	if _, err := status.Write(text); err != nil && q.Context().Err() == nil {
		s.log.Debug("Status of a stream not sent", "error", err)
	}
	return nil
}

// lastWrite is how long the status of a stream may take to be sent.
const lastWrite = 10 * time.Second

// readSizes reads a terminal's sizes until there are no more.
func readSizes(ctx context.Context, from io.Reader, sizes chan<- served.TerminalSize) {
	defer close(sizes)
	for in := json.NewDecoder(from); ; {
		var size served.TerminalSize
		if in.Decode(&size) != nil {
			return
		}
		select {
		case sizes <- size:
		case <-ctx.Done():
			return
		}
	}
}

// status says how a stream has ended, as protocols 4 and 5 have it.
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
