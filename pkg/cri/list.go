package cri

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// lists reads sandboxes and containers. Sandboxes first: a sandbox that came
// between the calls is then known by its containers alone, and asked for; the
// other way round it would look empty.
func (r *Runtime) lists(ctx context.Context, sel map[string]string) ([]*runtimeapi.PodSandbox, []*runtimeapi.Container, error) {
	boxFilter := &runtimeapi.PodSandboxFilter{LabelSelector: sel}
	a, err := read(ctx, r, "ListPodSandbox", r.rt.ListPodSandbox, &runtimeapi.ListPodSandboxRequest{Filter: boxFilter})
	boxes := a.GetItems()
	if tooLong(err) {
		boxes, err = pieces(ctx, r, "StreamPodSandboxes", err, r.rt.StreamPodSandboxes,
			&runtimeapi.StreamPodSandboxesRequest{Filter: boxFilter}, (*runtimeapi.StreamPodSandboxesResponse).GetPodSandboxes)
	}
	if err != nil {
		return nil, nil, err
	}
	filter := &runtimeapi.ContainerFilter{LabelSelector: sel}
	b, err := read(ctx, r, "ListContainers", r.rt.ListContainers, &runtimeapi.ListContainersRequest{Filter: filter})
	containers := b.GetContainers()
	if tooLong(err) {
		containers, err = pieces(ctx, r, "StreamContainers", err, r.rt.StreamContainers,
			&runtimeapi.StreamContainersRequest{Filter: filter}, (*runtimeapi.StreamContainersResponse).GetContainers)
	}
	if err != nil {
		return nil, nil, err
	}
	return boxes, containers, nil
}

// tooLong reports whether a list did not fit in one message: ResourceExhausted,
// which runtimes say from 16 MiB on (F24).
func tooLong(err error) bool {
	var call *CallError
	return errors.As(err, &call) && call.code == codes.ResourceExhausted
}

// pieces reads a list that is too long for one message in many; where the
// runtime cannot do that either, the error is the one that made it necessary.
func pieces[Q, A, E any](ctx context.Context, r *Runtime, name string, why error,
	f func(context.Context, *Q, ...grpc.CallOption) (grpc.ServerStreamingClient[A], error), q *Q, of func(*A) []E,
) ([]E, error) {
	all, err := read(ctx, r, name, func(ctx context.Context, q *Q, _ ...grpc.CallOption) (*[]E, error) {
		stream, err := f(ctx, q)
		if err != nil {
			return nil, err
		}
		var all []E
		for {
			a, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return &all, nil
			}
			if err != nil {
				return nil, err // part of a list is none
			}
			all = append(all, of(a)...)
		}
	}, q)
	if errors.Is(err, errors.ErrUnsupported) {
		return nil, fmt.Errorf("%w (and the runtime has no %s)", why, name)
	}
	if err != nil {
		return nil, err
	}
	return *all, nil
}
