package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
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

// portForward answers /portForward: it forwards connections to a pod's ports, many over
// one session (C-1.40.9).
func (s *Server) portForward(w http.ResponseWriter, q *request) error {
	if s.cfg.Containers == nil {
		return notImplemented(q)
	}
	tunnel := wsstream.IsWebSocketRequestWithTunnelingProtocol(q.Request)
	opts := &portforward.V4Options{}
	if !tunnel {
		var err error
		if opts, err = portforward.NewV4Options(q.Request); err != nil {
			return statusError(http.StatusBadRequest, err)
		}
		if len(opts.Ports) > maxPorts {
			return &StatusError{Code: http.StatusBadRequest, Message: fmt.Sprintf("more than %d ports", maxPorts)}
		}
	}
	pod, err := s.pod(q)
	if err != nil {
		return err
	}
	if err := requireUpgrade(q.Request); err != nil {
		return err
	}
	session, request := newSession(w, q.Request)
	f, err := s.forwarder(session.ctx, pod, func() (func(), bool) { return q.limiter.forwards.enter(q) })
	if err != nil {
		session.end()
		return s.runtimeError(err)
	}
	defer func() { // runs last, when all forwarded connections have ended
		q.began = f.next.Load() > 0
		if session.hijacked() == nil {
			q.result = "error"
		}
	}()
	defer f.wg.Wait()
	defer f.close()
	defer session.end() // runs first: it unblocks a write
	f.wg.Go(func() {    // ends the session when the runtime closes its connection
		select {
		case <-f.conn.CloseChan():
			session.cancel()
		case <-session.ctx.Done():
		}
	})
	var answer http.ResponseWriter = session
	if tunnel {
		if answer, request = s.tunnel(session, request); answer == nil {
			q.result = "error"
			return nil
		}
	}
	if wsstream.IsWebSocketRequest(request) {
		portforward.ServePortForward(answer, request, f, pod.Name, string(pod.UID), opts,
			s.cfg.StreamIdle, served.DefaultStreamCreationTimeout, portforward.SupportedProtocols)
		return nil
	}
	s.forwardSPDY(session, answer, request, f, pod)
	return nil
}

// Limits of port-forwarding. A browser opens a dozen connections. The runtime has a thread
// for each forwarded connection, and containerd crashes at 10,000 threads.
const (
	maxPorts    = 64  // of one URL
	maxForwards = 128 // connections of a session at a time
	// maxForwardsListener limits the connections of all sessions of a listener at a time; podShares
	// divides them among pods, namespaces and callers.
	maxForwardsListener = 1024
	// maxPairs limits the connections of a session that wait for a stream, are forwarded, or end.
	maxPairs = 2 * maxForwards
)

var errTooManyForwards = errors.New("too many connections are forwarded")

// pairs are the connections that a caller opens over SPDY, with two streams each.
type pairs struct {
	f       *forwarder
	pod     *v1.Pod
	request *http.Request
	conn    *callerSPDY
	ready   chan struct{} // closed once conn is set

	mu      sync.Mutex
	closed  bool
	pending map[string]*pair
	all     map[*pair]struct{}
}

// pair is one connection.
type pair struct {
	id         string
	data, errs *callerStream // nil until it arrives
	late       *time.Timer
}

// forwardSPDY forwards the connections that a caller opens over SPDY, until the caller closes
// its connection or the session ends.
func (s *Server) forwardSPDY(session *session, w http.ResponseWriter, q *http.Request, f *forwarder, pod *v1.Pod) {
	if _, err := httpstream.Handshake(q, w, portforward.SupportedProtocols); err != nil { // Handshake has answered
		return
	}
	p := &pairs{f: f, pod: pod, request: q, ready: make(chan struct{}), pending: map[string]*pair{}, all: map[*pair]struct{}{}}
	p.conn = upgradeSPDY(w, q, -1, p.add)
	if p.conn == nil {
		return
	}
	close(p.ready)
	p.conn.SetIdleTimeout(s.cfg.StreamIdle)
	select {
	case <-p.conn.CloseChan():
	case <-q.Context().Done():
	}
	session.cancel()
	p.close()
	_ = p.conn.Close()
}

// add accepts a stream. It implements httpstream.NewStreamHandler, and returns no error,
// because the library logs each one.
func (p *pairs) add(stream httpstream.Stream, reply <-chan struct{}) error {
	if !p.accept(stream, reply) {
		_ = stream.Reset()
		p.f.begin(func() { // the library keeps a stream whose reply was sent until RemoveStreams
			<-p.ready
			p.conn.replied(p.request, reply)
			p.conn.RemoveStreams(stream)
		})
	}
	return nil
}

// accept reports whether it accepts a stream. With the second stream of a connection, it
// starts to forward the connection.
func (p *pairs) accept(stream httpstream.Stream, reply <-chan struct{}) bool {
	kind := stream.Headers().Get(portforward.StreamType)
	port, err := strconv.ParseUint(stream.Headers().Get(portforward.PortHeader), 10, 16)
	if err != nil || port == 0 || kind != portforward.StreamTypeData && kind != portforward.StreamTypeError {
		return false
	}
	id := stream.Headers().Get(portforward.PortForwardRequestIDHeader)
	if id == "" { // clients before Kubernetes 1.2, which create the error stream first
		n := int64(stream.Identifier())
		if kind == portforward.StreamTypeData {
			n -= 2
		}
		id = strconv.FormatInt(n, 10)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	of := p.pending[id]
	if p.closed || of == nil && len(p.all) >= maxPairs {
		return false
	}
	if of == nil {
		of = &pair{id: id}
		of.late = time.AfterFunc(served.DefaultStreamCreationTimeout, func() { p.expire(of) })
		p.pending[id], p.all[of] = of, struct{}{}
	}
	to := &of.errs
	if kind == portforward.StreamTypeData {
		to = &of.data
	}
	if *to != nil {
		return false
	}
	*to = &callerStream{stream, reply}
	if of.data != nil && of.errs != nil {
		delete(p.pending, id)
		of.late.Stop()
		return p.f.begin(func() { p.forward(of, int32(port)) })
	}
	return true
}

// expire gives up a connection whose second stream did not arrive in time.
func (p *pairs) expire(of *pair) {
	p.mu.Lock()
	late := !p.closed && p.pending[of.id] == of
	if late {
		delete(p.pending, of.id)
	}
	p.mu.Unlock()
	if late && !p.f.begin(func() {
		if of.errs != nil && p.replied(of.errs) {
			_, _ = fmt.Fprintf(of.errs, "(request=%s) timed out waiting for streams", of.id)
		}
		p.end(of)
	}) {
		p.end(of)
	}
}

// replied waits until the reply to a stream was sent, and reports whether it was.
func (p *pairs) replied(stream *callerStream) bool {
	<-p.ready
	return p.conn.replied(p.request, stream.reply)
}

// forward forwards one connection.
func (p *pairs) forward(of *pair, port int32) {
	defer p.end(of)
	if !p.replied(of.errs) || !p.replied(of.data) {
		return
	}
	if err := p.f.PortForward(p.request.Context(), p.pod.Name, string(p.pod.UID), port, of.data); err != nil {
		_, _ = fmt.Fprintf(of.errs, "error forwarding port %d to pod %s, uid %v: %v", port, p.pod.Name, p.pod.UID, err)
		return
	}
	_ = of.data.Close() // sends the end of the data: the reset that follows does not cut it off
	_ = of.errs.Close()
}

// end removes a connection.
func (p *pairs) end(of *pair) {
	p.mu.Lock()
	delete(p.all, of)
	p.mu.Unlock()
	<-p.ready
	p.reset(of)
}

// reset ends the streams of a connection. The library's goroutines wait for the reader of a
// stream until it is reset, also after the connection is closed.
func (p *pairs) reset(of *pair) {
	for _, stream := range []*callerStream{of.data, of.errs} {
		if stream != nil {
			_ = stream.Reset()
			p.conn.RemoveStreams(stream)
		}
	}
}

// close ends all connections.
func (p *pairs) close() {
	p.mu.Lock()
	p.closed = true
	all := slices.Collect(maps.Keys(p.all))
	p.mu.Unlock()
	for _, of := range all {
		of.late.Stop()
		p.reset(of)
	}
}

// forwarder forwards the connections of one session over one connection to the
// runtime.
type forwarder struct {
	conn httpstream.Connection
	next atomic.Int64 // number of connections opened
	wg   sync.WaitGroup

	place func() (release func(), ok bool) // takes a place of the listener for a connection

	mu     sync.Mutex
	closed bool // set when the session ends: it forwards no more connections
	open   int  // connections
}

// enter takes a place for a connection; release frees it.
func (f *forwarder) enter() (release func(), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, errClosing
	}
	if f.open >= maxForwards {
		return nil, errTooManyForwards
	}
	releasePlace, ok := f.place()
	if !ok {
		return nil, errTooManyForwards
	}
	f.open++
	return func() {
		f.mu.Lock()
		f.open--
		f.mu.Unlock()
		releasePlace()
	}, nil
}

// close ends all forwarded connections.
func (f *forwarder) close() {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	_ = f.conn.Close()
}

// begin starts a goroutine that the session waits for. It returns false after close.
func (f *forwarder) begin(run func()) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.closed {
		f.wg.Go(run)
	}
	return !f.closed
}

// errClosing is the error of a connection that is opened after close.
var errClosing = errors.New("the connection is closing")

// PortForward implements portforward.PortForwarder: it returns when the pod has closed
// its side. An error is the runtime's, for example a port that is not open.
func (f *forwarder) PortForward(_ context.Context, _, _ string, port int32, caller io.ReadWriteCloser) error {
	err := f.forward(port, caller)
	if err != nil {
		// The library resets the caller's streams after an error. If it did so before it had
		// sent the reply to the stream, the caller would not see the error. An empty write
		// waits for that reply.
		_, _ = caller.Write(nil)
	}
	return err
}

func (f *forwarder) forward(port int32, caller io.ReadWriteCloser) error {
	release, err := f.enter()
	if err != nil {
		return err
	}
	defer release()
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
	failed := make(chan string, 1) // cap 1: the result of the goroutine below
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
	// Copy the caller's data until its end, or until its stream is closed.
	if !f.begin(func() {
		defer data.Close() // closes the sending half: the pod may go on
		_, _ = io.Copy(data, caller)
	}) {
		return errClosing
	}
	_, _ = io.Copy(caller, data) // until the pod has closed its side, or the caller or the runtime its connection
	_ = data.Reset()             // the pod reads no more data of the caller
	if text := <-failed; text != "" {
		return errors.New(text)
	}
	return nil
}

// dataStream creates the stream for a connection's data, or returns the runtime's error in
// why. A runtime that fails at once may never reply to the stream.
func (f *forwarder) dataStream(headers http.Header, failed chan string) (data httpstream.Stream, why string, err error) {
	type made struct {
		stream httpstream.Stream
		err    error
	}
	answer, abandoned := make(chan made, 1), make(chan struct{}) // cap 1: dataStream may have returned
	if !f.begin(func() {
		stream, err := f.conn.CreateStream(headers)
		answer <- made{stream, err}
		select {
		case <-abandoned:
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
		if m.err != nil { // the error stream has the better message
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
		failed <- why // no error so far; forward receives it again
		m := <-answer
		return m.stream, "", m.err
	}
	close(abandoned)
	select {
	case m := <-answer:
		if m.err == nil {
			_ = m.stream.Reset()
			f.conn.RemoveStreams(m.stream)
		}
	default: // the goroutine above sees that abandoned is closed, and resets the stream
	}
	return nil, why, nil
}

// forwarder connects to the runtime's streaming server, until ctx ends. The forwarder calls place for
// each connection.
func (s *Server) forwarder(ctx context.Context, pod *v1.Pod, place func() (release func(), ok bool)) (*forwarder, error) {
	where, err := s.cfg.Containers.PortForwardURL(ctx, pod)
	if err != nil {
		return nil, err
	}
	used := false
	defer func() {
		if !used {
			discardURL(ctx, s.log, where)
		}
	}()
	transport, err := spdyTo(ctx, &used)
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, where.String(), nil)
	if err != nil {
		return nil, err
	}
	web := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return errors.New("redirect not allowed") }}
	conn, _, err := clientspdy.NegotiateStreaming(clientspdy.NewUpgraderForStreaming(transport), web, r, portforward.ProtocolV1Name)
	if err != nil {
		return nil, fmt.Errorf("connect to container runtime's streams: %w", redact(err, where))
	}
	return &forwarder{conn: conn, place: place}, nil
}
