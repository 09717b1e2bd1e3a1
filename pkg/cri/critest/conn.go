package critest

import (
	"context"
	"io"
	"path"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/cri"
)

// Conn is one client's in-process connection to the runtime: generated clients work on it,
// without a goroutine or a socket.
type Conn struct {
	rt   *Runtime
	life context.Context
	cut  context.CancelFunc
}

// Connect returns a connection.
func (rt *Runtime) Connect() *Conn {
	life, cut := context.WithCancel(context.Background())
	return &Conn{rt: rt, life: life, cut: cut}
}

// CRI returns the adapter under test on this connection.
func (c *Conn) CRI(cfg cri.Config) *cri.Runtime {
	if cfg.Endpoint == "" {
		cfg.Endpoint = "critest"
	}
	rt, img := c.Clients()
	return cri.New(cfg, rt, img)
}

// Clients returns the generated clients on this connection.
func (c *Conn) Clients() (runtimeapi.RuntimeServiceClient, runtimeapi.ImageServiceClient) {
	return runtimeapi.NewRuntimeServiceClient(c), runtimeapi.NewImageServiceClient(c)
}

// Cut cuts off this client alone, as kill -9 of it does: it gets no more answers, and its
// further calls have no effect.
func (c *Conn) Cut() { c.cut() }

var errCut = status.Error(codes.Unavailable, "connection error: this client was cut off")

// Invoke implements grpc.ClientConnInterface: the server's method runs in the caller's
// goroutine.
func (c *Conn) Invoke(ctx context.Context, method string, q, a any, _ ...grpc.CallOption) error {
	if c.life.Err() != nil {
		return errCut
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.life, cancel)()

	handle := handlerOf(method)
	if handle == nil {
		return status.Errorf(codes.Unimplemented, "unknown method %s", method)
	}
	take := func(into any) error {
		proto.Merge(into.(proto.Message), q.(proto.Message))
		return nil
	}
	answer, err := handle(c.rt, ctx, take, c.rt.intercept)
	switch {
	case c.life.Err() != nil:
		return errCut
	case ctx.Err() != nil:
		return status.FromContextError(ctx.Err()).Err()
	case err != nil:
		return err
	}
	proto.Merge(a.(proto.Message), answer.(proto.Message))
	return nil
}

// handlerOf finds the server's unary method by its full name; nil if there is none.
func handlerOf(method string) grpc.MethodHandler {
	for _, d := range []*grpc.ServiceDesc{&runtimeapi.RuntimeService_ServiceDesc, &runtimeapi.ImageService_ServiceDesc} {
		name, ours := strings.CutPrefix(method, "/"+d.ServiceName+"/")
		if !ours {
			continue
		}
		for i := range d.Methods {
			if d.Methods[i].MethodName == name {
				return d.Methods[i].Handler
			}
		}
	}
	return nil
}

// NewStream implements grpc.ClientConnInterface for GetContainerEvents and the streamed
// lists.
func (c *Conn) NewStream(ctx context.Context, _ *grpc.StreamDesc, method string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	if c.life.Err() != nil {
		return nil, errCut
	}
	switch name := path.Base(method); name {
	case "GetContainerEvents":
	case "StreamPodSandboxes", "StreamContainers":
		return &pieces{stream: stream{ctx: ctx}, rt: c.rt, method: method}, nil
	default:
		return nil, status.Errorf(codes.Unimplemented, "unknown method %s", method)
	}
	s, err := c.rt.subscribe()
	if status.Code(err) == codes.Unavailable {
		return nil, err
	}
	if err != nil { // over gRPC an error is the stream's first answer
		return &stream{ctx: ctx, refused: err}, nil
	}
	both, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(c.life, cancel)
	context.AfterFunc(both, func() {
		stop()
		c.rt.unsubscribe(s)
	})
	return &stream{ctx: both, cancel: cancel, rt: c.rt, sub: s, conn: c}, nil
}

// stream is the client's side of GetContainerEvents in process.
type stream struct {
	ctx     context.Context
	cancel  context.CancelFunc
	rt      *Runtime
	sub     *subscriber
	conn    *Conn
	refused error
}

func (s *stream) Context() context.Context     { return s.ctx }
func (s *stream) Header() (metadata.MD, error) { return nil, nil }
func (s *stream) Trailer() metadata.MD         { return nil }
func (s *stream) CloseSend() error             { return nil }
func (s *stream) SendMsg(any) error            { return nil }

// RecvMsg blocks until there is an event or the stream ends.
func (s *stream) RecvMsg(m any) error {
	if s.refused != nil {
		return s.refused
	}
	e, err := s.rt.next(s.ctx, s.sub)
	if err != nil {
		s.cancel()
		if s.conn.life.Err() != nil {
			return errCut
		}
		return err
	}
	into, ok := m.(proto.Message)
	if !ok {
		return io.ErrUnexpectedEOF
	}
	proto.Merge(into, e)
	return nil
}
