// Package criproxy is a proxy between a CRI client and a container runtime. It is a unix
// socket that passes every call on unchanged and counts it. A test can act at a chosen
// moment: end the client between a call's effect and its reply (Hooks), or have calls and
// events of one pod fail, hang, arrive late, twice, in another order or not at all (Rule).
//
// Three kinds of tests use it: those that kill an agent at every step of a pod's lifecycle,
// those that show how an agent handles a faulty runtime, and those that count calls.
//
// The proxy passes a message on byte for byte, so that it loses and adds nothing. It decodes
// a message only where a Rule matches its method, and encodes it again only where the rule
// changes it.
package criproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// mutating are the CRI methods that change pods. Images are no pods.
var mutating = []string{
	"RunPodSandbox", "StopPodSandbox", "RemovePodSandbox",
	"CreateContainer", "StartContainer", "StopContainer", "RemoveContainer", "UpdateContainerResources",
}

// Mutating reports whether a CRI method, by its bare name, changes pods.
func Mutating(method string) bool { return slices.Contains(mutating, method) }

// A Call is one call on its way.
type Call struct {
	Method  string    // bare: "RunPodSandbox"
	N       int       // among the mutating calls, from 1 in order of arrival; 0 for any other
	Time    time.Time // when it arrived
	Context context.Context
	Request mem.BufferSlice // as received
	Answer  mem.BufferSlice // as received, of a stream the first; nil before it arrives
}

// Hooks run for each call, on the call's own goroutine; nil hooks are skipped.
type Hooks struct {
	// Before runs before a call is passed on.
	Before func(Call)
	// After runs when the runtime has answered (err is its error) and before the client gets
	// the answer. For a stream it runs before the first answer only.
	After func(c Call, err error)
}

// A Proxy is a socket in front of a runtime's.
type Proxy struct {
	hooks  Hooks
	path   string
	conn   *grpc.ClientConn
	server *grpc.Server
	wg     sync.WaitGroup
	names  *names

	mu      sync.Mutex // guards the fields below, and the counters of faults
	faults  []*Fault
	counts  map[string]int
	mutated []string
	busy    int // mutating calls under way
}

// New listens on path, which must not exist, and passes calls on to endpoint, as unix:///….
// Close ends it.
func New(endpoint, path string, hooks Hooks) (*Proxy, error) {
	conn, err := grpc.NewClient(endpoint,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(raw{}), grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)))
	if err != nil {
		return nil, fmt.Errorf("proxy to %s: %w", endpoint, err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	names, err := newNames(endpoint)
	if err != nil {
		return nil, errors.Join(err, l.Close(), conn.Close())
	}
	p := &Proxy{hooks: hooks, path: path, conn: conn, names: names, counts: make(map[string]int)}
	p.server = grpc.NewServer(grpc.ForceServerCodecV2(raw{}), grpc.UnknownServiceHandler(p.pass),
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage))
	p.wg.Go(func() { _ = p.server.Serve(l) }) // it returns when Close is called
	return p, nil
}

// maxMessage is larger than any list of a node.
const maxMessage = 64 << 20

// Endpoint returns the proxy's socket, as unix:///….
func (p *Proxy) Endpoint() string { return "unix://" + p.path }

// Close closes every connection, waits for the calls under way and removes the socket.
func (p *Proxy) Close() error {
	p.server.Stop()
	p.wg.Wait()
	return errors.Join(p.conn.Close(), p.names.conn.Close())
}

// Counts returns how often each method was called so far; a stream counts once, when it is
// opened.
func (p *Proxy) Counts() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.counts)
}

// Mutations returns the mutating calls so far, by their bare names, in the order
// they came.
func (p *Proxy) Mutations() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.mutated)
}

// Busy returns how many mutating calls are under way: received, and not answered yet.
func (p *Proxy) Busy() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.busy
}

// Idle returns an error while a mutating call is under way.
func (p *Proxy) Idle() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.busy == 0 {
		return nil
	}
	return fmt.Errorf("mutating calls on their way: %d of %v", p.busy, p.counts)
}

// answered ends the count of a call in Busy.
func (p *Proxy) answered(c Call) {
	if c.N == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy--
}

func (p *Proxy) count(method string) Call {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := Call{Method: method[strings.LastIndexByte(method, '/')+1:]}
	p.counts[c.Method]++
	if Mutating(c.Method) {
		p.mutated = append(p.mutated, c.Method)
		c.N = len(p.mutated)
		p.busy++
	}
	return c
}

// pass carries one call. In CRI each has one request, and one answer or a
// stream of them.
func (p *Proxy) pass(_ any, in grpc.ServerStream) error {
	method, ok := grpc.MethodFromServerStream(in)
	if !ok {
		return status.Error(codes.Internal, "a call without a method")
	}
	ctx, cancel := context.WithCancel(in.Context())
	defer cancel()
	if md, ok := metadata.FromIncomingContext(ctx); ok { // containerd's own calls set a namespace
		ctx = metadata.NewOutgoingContext(ctx, md)
	}
	var q mem.BufferSlice
	if err := in.RecvMsg(&q); err != nil {
		return err
	}
	c := p.count(method)
	defer p.answered(c)
	c.Time, c.Context, c.Request = time.Now(), ctx, q
	if p.hooks.Before != nil {
		p.hooks.Before(c)
	}
	caught := p.catch(ctx, c.Method, method, q)
	err := caught.before(ctx)
	if err == nil {
		err = p.ask(ctx, method, q, in, c, caught)
	}
	caught.end(err)
	return err
}

// ask passes a request on, and returns the answers to the client.
func (p *Proxy) ask(ctx context.Context, method string, q mem.BufferSlice, in grpc.ServerStream, c Call, caught hits) error {
	if caught.any(func(r Rule) bool { return r.Twice }) {
		var first mem.BufferSlice
		if err := p.conn.Invoke(ctx, method, q, &first); ctx.Err() != nil {
			return err
		}
	}
	out, err := p.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return err
	}
	// Their only error is io.EOF: the first answer has the cause.
	_ = out.SendMsg(q)
	_ = out.CloseSend()
	check := func(m mem.BufferSlice, err error) error {
		if p.hooks.After != nil {
			c.Answer = m
			p.hooks.After(c, unlessEOF(err))
		}
		return caught.after(ctx)
	}
	if c.Method == events {
		return p.relay(ctx, in, out, check)
	}
	for first := true; ; first = false {
		var m mem.BufferSlice
		err := out.RecvMsg(&m)
		if first {
			if fault := check(m, err); fault != nil {
				return fault
			}
		}
		if err != nil {
			return unlessEOF(err)
		}
		if caught.any(func(r Rule) bool { return r.Empty }) {
			m = nil
		}
		if err := in.SendMsg(m); err != nil {
			return err
		}
	}
}

// unlessEOF returns nil for the regular end of a stream, and a status as it was
// sent for any other error.
func unlessEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return status.Convert(err).Err()
}

// raw leaves messages as they are.
type raw struct{}

func (raw) Name() string { return "proto" }

func (raw) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(mem.BufferSlice)
	if !ok {
		return nil, fmt.Errorf("not a message as it came: %T", v)
	}
	return m, nil
}

func (raw) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(*mem.BufferSlice)
	if !ok {
		return fmt.Errorf("no room for a message as it came: %T", v)
	}
	*m = mem.BufferSlice{mem.SliceBuffer(data.Materialize())}
	return nil
}
