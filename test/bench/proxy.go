package main

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
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// maxMessage is the limit of CRI messages, as its clients and servers have it.
const maxMessage = 16 << 20

// proxy stands on a socket before the runtime's, passes every call on as it is,
// and counts them.
type proxy struct {
	server *grpc.Server
	conn   *grpc.ClientConn
	path   string
	wg     sync.WaitGroup

	trace *trace // nil: calls are only counted

	mu      sync.Mutex
	counted map[string]int
}

// newProxy starts a proxy on the socket at path.
func newProxy(endpoint, path string, trace *trace) (*proxy, error) {
	conn, err := grpc.NewClient(endpoint,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(bytesCodec{}), grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)))
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	p := &proxy{conn: conn, path: path, trace: trace, counted: make(map[string]int)}
	p.server = grpc.NewServer(grpc.ForceServerCodec(bytesCodec{}), grpc.UnknownServiceHandler(p.pass),
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage))
	p.wg.Go(func() { _ = p.server.Serve(l) })
	return p, nil
}

func (p *proxy) endpoint() string { return "unix://" + p.path }

func (p *proxy) close() error {
	p.server.Stop()
	p.wg.Wait()
	return p.conn.Close()
}

// calls returns how often each method was called so far; a stream counts when
// it is opened.
func (p *proxy) calls() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.counted)
}

// pass carries one call, of whatever kind.
func (p *proxy) pass(_ any, in grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(in)
	name := method[strings.LastIndexByte(method, '/')+1:]
	p.mu.Lock()
	p.counted[name]++
	p.mu.Unlock()
	begin := time.Now()
	defer func() { p.trace.add(begin, "%s %.1f ms", name, float64(time.Since(begin))/float64(time.Millisecond)) }()

	ctx, cancel := context.WithCancel(in.Context())
	defer cancel()
	md, _ := metadata.FromIncomingContext(ctx)
	out, err := p.conn.NewStream(metadata.NewOutgoingContext(ctx, md),
		&grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		for {
			var m []byte
			if err := in.RecvMsg(&m); err != nil {
				_ = out.CloseSend()
				return
			}
			if out.SendMsg(&m) != nil {
				return
			}
		}
	})
	for {
		var m []byte
		switch err := out.RecvMsg(&m); {
		case errors.Is(err, io.EOF):
			in.SetTrailer(out.Trailer())
			return nil
		case err != nil:
			in.SetTrailer(out.Trailer())
			return status.Convert(err).Err()
		}
		if err := in.SendMsg(&m); err != nil {
			return err
		}
	}
}

// bytesCodec leaves messages as they are.
type bytesCodec struct{}

func (bytesCodec) Marshal(v any) ([]byte, error) {
	b, ok := v.(*[]byte)
	if !ok {
		return nil, status.Errorf(codes.Internal, "not bytes: %T", v)
	}
	return *b, nil
}

func (bytesCodec) Unmarshal(data []byte, v any) error {
	b, ok := v.(*[]byte)
	if !ok {
		return status.Errorf(codes.Internal, "not bytes: %T", v)
	}
	*b = slices.Clone(data)
	return nil
}

func (bytesCodec) Name() string { return "proto" }

// since returns the calls made between two countings.
func since(now, before map[string]int) map[string]int {
	made := make(map[string]int)
	for method, n := range now {
		if d := n - before[method]; d > 0 {
			made[method] = d
		}
	}
	return made
}

func total(calls map[string]int) int {
	n := 0
	for _, c := range calls {
		n += c
	}
	return n
}

func describe(calls map[string]int) string {
	if len(calls) == 0 {
		return "none"
	}
	var words []string
	for _, name := range slices.Sorted(maps.Keys(calls)) {
		words = append(words, fmt.Sprintf("%s %d", name, calls[name]))
	}
	return strings.Join(words, ", ")
}
