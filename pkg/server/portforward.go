package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	clientspdy "k8s.io/client-go/transport/spdy"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	served "k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// portForward answers /portForward: connections to a pod's ports, as many as its
// caller wants over one session (C-1.40.9).
func (s *Server) portForward(w http.ResponseWriter, q *request) error {
	if s.cfg.PortForwardURL == nil {
		return missing(q)
	}
	tunnel := wsstream.IsWebSocketRequestWithTunnelingProtocol(q.Request)
	opts := &portforward.V4Options{}
	if !tunnel {
		var err error
		if opts, err = portforward.NewV4Options(q.Request); err != nil {
			return worded(http.StatusBadRequest, err)
		}
	}
	pod, err := s.pod(q)
	if err != nil {
		return err
	}
	if err := upgrades(q.Request); err != nil {
		return err
	}
	f, err := s.forwarder(q, pod)
	if err != nil {
		return s.refusedByRuntime(err)
	}
	defer f.wg.Wait()
	defer f.close()
	over, request := newSession(w, q.Request)
	defer over.end()
	f.wg.Go(func() { // when the runtime has hung up, nothing more can be forwarded
		select {
		case <-f.conn.CloseChan():
			over.leave()
		case <-over.ctx.Done():
		}
	})
	var answer http.ResponseWriter = over
	if tunnel {
		if answer, request = s.tunnel(over, request); answer == nil {
			q.result = "error"
			return nil
		}
	}
	portforward.ServePortForward(answer, request, f, pod.Name, string(pod.UID), opts,
		s.cfg.StreamIdle, served.DefaultStreamCreationTimeout, portforward.SupportedProtocols)
	return nil
}

// forwarder forwards the connections of one session over one connection to the
// runtime.
type forwarder struct {
	conn httpstream.Connection
	next atomic.Int64
	wg   sync.WaitGroup

	mu   sync.Mutex
	over bool // nothing more is begun
}

// close ends everything that is forwarded.
func (f *forwarder) close() {
	f.mu.Lock()
	f.over = true
	f.mu.Unlock()
	_ = f.conn.Close()
}

// begin counts one more that the session waits for.
func (f *forwarder) begin(run func()) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.over {
		f.wg.Go(run)
	}
	return !f.over
}

// errClosing is why nothing more is forwarded.
var errClosing = errors.New("the connection is closing")

// PortForward implements portforward.PortForwarder: it returns when the pod has said
// all that it will say. An error is the runtime's: nobody listens there, for one.
func (f *forwarder) PortForward(_ context.Context, _, _ string, port int32, caller io.ReadWriteCloser) error {
	err := f.forward(port, caller)
	if err != nil {
		// The library resets the caller's streams at an error. Nothing is written, but
		// only once the caller has been told that there is a stream: a reset that
		// comes before hides why.
		_, _ = caller.Write(nil)
	}
	return err
}

func (f *forwarder) forward(port int32, caller io.ReadWriteCloser) error {
	headers := http.Header{}
	headers.Set(portforward.PortHeader, strconv.Itoa(int(port)))
	headers.Set(portforward.PortForwardRequestIDHeader, strconv.FormatInt(f.next.Add(1), 10))
	headers.Set(portforward.StreamType, portforward.StreamTypeError)
	errs, err := f.conn.CreateStream(headers)
	if err != nil {
		return fmt.Errorf("create error stream: %w", err)
	}
	defer f.conn.RemoveStreams(errs)
	_ = errs.Close()               // nothing is written to it
	failed := make(chan string, 1) // cap 1: what the goroutine below has read, once
	if !f.begin(func() {
		text, _ := io.ReadAll(io.LimitReader(errs, 4<<10))
		failed <- string(text)
	}) {
		return errClosing
	}
	headers.Set(portforward.StreamType, portforward.StreamTypeData)
	data, why, err := f.dataStream(headers, failed)
	switch {
	case err != nil:
		return fmt.Errorf("create data stream: %w", err)
	case why != "":
		return errors.New(why)
	}
	defer f.conn.RemoveStreams(data)
	defer func() { _ = data.Reset() }()
	// What the caller says is read until it has said all, or the session ends: its
	// stream cannot be given up alone without losing what is under way to it.
	if !f.begin(func() {
		defer data.Close() // half of it: the pod may go on
		_, _ = io.Copy(data, caller)
	}) {
		return errClosing
	}
	_, _ = io.Copy(caller, data) // the pod has said all, or one of the two is gone
	_ = data.Reset()             // nobody reads what else the caller says
	if text := <-failed; text != "" {
		return errors.New(text)
	}
	return nil
}

// dataStream makes the stream for a connection's data; why is what the runtime said
// in its place. A runtime that fails at once may never answer for the stream.
func (f *forwarder) dataStream(headers http.Header, failed chan string) (data httpstream.Stream, why string, err error) {
	type made struct {
		stream httpstream.Stream
		err    error
	}
	answer, left := make(chan made, 1), make(chan struct{}) // cap 1: nobody may wait for it any more
	if !f.begin(func() {
		stream, err := f.conn.CreateStream(headers)
		answer <- made{stream, err}
		select {
		case <-left:
			if err == nil {
				_ = stream.Reset()
				f.conn.RemoveStreams(stream)
			}
		default:
		}
	}) {
		return nil, "", errClosing
	}
	select {
	case m := <-answer:
		if m.err != nil { // which is less than what the other stream says
			select {
			case why = <-failed:
			case <-time.After(time.Second):
			}
			if why != "" {
				return nil, why, nil
			}
		}
		return m.stream, "", m.err
	case why = <-failed:
	}
	if why == "" {
		failed <- why // it said nothing; whoever waits for it hears that
		m := <-answer
		return m.stream, "", m.err
	}
	close(left)
	select {
	case m := <-answer:
		if m.err == nil {
			_ = m.stream.Reset()
			f.conn.RemoveStreams(m.stream)
		}
	default: // the goroutine above sees that nobody waits
	}
	return nil, why, nil
}

// forwarder connects to the runtime's streaming server.
func (s *Server) forwarder(q *request, pod *v1.Pod) (*forwarder, error) {
	where, err := s.cfg.PortForwardURL(q.Context(), pod)
	if err != nil {
		return nil, err
	}
	transport, err := spdyTo()
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(q.Context(), http.MethodPost, where.String(), nil)
	if err != nil {
		return nil, err
	}
	web := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return errors.New("redirect not allowed") }}
	conn, _, err := clientspdy.NegotiateStreaming(clientspdy.NewUpgraderForStreaming(transport), web, r, portforward.ProtocolV1Name)
	if err != nil {
		return nil, fmt.Errorf("connect to container runtime's streams: %w", withhold(err, where))
	}
	return &forwarder{conn: conn}, nil
}
