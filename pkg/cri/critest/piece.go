package critest

import (
	"context"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// StreamPodSandboxes implements CRI, one sandbox a message.
func (rt *Runtime) StreamPodSandboxes(q *runtimeapi.StreamPodSandboxesRequest, s grpc.ServerStreamingServer[runtimeapi.StreamPodSandboxesResponse]) error {
	return each(rt.sandboxPieces(s.Context(), q), s.Send)
}

// StreamContainers implements CRI, one container a message.
func (rt *Runtime) StreamContainers(q *runtimeapi.StreamContainersRequest, s grpc.ServerStreamingServer[runtimeapi.StreamContainersResponse]) error {
	return each(rt.containerPieces(s.Context(), q), s.Send)
}

func each[A any](all []*A, send func(*A) error) error {
	for _, a := range all {
		if err := send(a); err != nil {
			return err
		}
	}
	return nil
}

func (rt *Runtime) sandboxPieces(ctx context.Context, q *runtimeapi.StreamPodSandboxesRequest) (all []*runtimeapi.StreamPodSandboxesResponse) {
	a, _ := rt.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{Filter: q.GetFilter()}) // no errors
	for _, b := range a.GetItems() {
		all = append(all, &runtimeapi.StreamPodSandboxesResponse{PodSandboxes: []*runtimeapi.PodSandbox{b}})
	}
	return all
}

func (rt *Runtime) containerPieces(ctx context.Context, q *runtimeapi.StreamContainersRequest) (all []*runtimeapi.StreamContainersResponse) {
	a, _ := rt.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: q.GetFilter()}) // no errors
	for _, c := range a.GetContainers() {
		all = append(all, &runtimeapi.StreamContainersResponse{Containers: []*runtimeapi.Container{c}})
	}
	return all
}

// pieces is the client's side of a streamed list, in process. Faults apply to the whole
// list.
type pieces struct {
	stream
	rt     *Runtime
	method string
	left   []proto.Message
}

// SendMsg takes the request and reads the whole list.
func (p *pieces) SendMsg(q any) error {
	_, err := p.rt.intercept(p.ctx, q, &grpc.UnaryServerInfo{FullMethod: p.method}, func(ctx context.Context, q any) (any, error) {
		switch q := q.(type) {
		case *runtimeapi.StreamPodSandboxesRequest:
			for _, a := range p.rt.sandboxPieces(ctx, q) {
				p.left = append(p.left, a)
			}
		case *runtimeapi.StreamContainersRequest:
			for _, a := range p.rt.containerPieces(ctx, q) {
				p.left = append(p.left, a)
			}
		}
		return nil, nil
	})
	p.refused = err
	return nil
}

// RecvMsg returns the next entry, then the error or the end.
func (p *pieces) RecvMsg(m any) error {
	switch {
	case len(p.left) > 0:
	case p.refused != nil:
		return p.refused
	default:
		return io.EOF
	}
	proto.Merge(m.(proto.Message), p.left[0])
	p.left = p.left[1:]
	return nil
}
