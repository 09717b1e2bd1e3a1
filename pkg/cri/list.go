package cri

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// lists reads sandboxes and containers, sandboxes first. A sandbox created between the
// calls is then named by its containers, and read by its ID. In the other order it would
// readPods empty.
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
	containers, err := r.listContainers(ctx, sel)
	if err != nil {
		return nil, nil, err
	}
	return boxes, containers, nil
}

func (r *Runtime) listContainers(ctx context.Context, sel map[string]string) ([]*runtimeapi.Container, error) {
	filter := &runtimeapi.ContainerFilter{LabelSelector: sel}
	a, err := read(ctx, r, "ListContainers", r.rt.ListContainers, &runtimeapi.ListContainersRequest{Filter: filter})
	if tooLong(err) {
		return pieces(ctx, r, "StreamContainers", err, r.rt.StreamContainers,
			&runtimeapi.StreamContainersRequest{Filter: filter}, (*runtimeapi.StreamContainersResponse).GetContainers)
	}
	return a.GetContainers(), err
}

// Allocations returns the devices, and the CPUs and memory of its own, of the newest container of
// each name, by UID of the pod and name, read now by one call. It leaves out containers without any.
func (r *Runtime) Allocations(ctx context.Context) (map[string]map[string]pod.Allocation, error) {
	list, err := r.listContainers(ctx, r.selector())
	if err != nil {
		return nil, err
	}
	slices.SortFunc(list, func(x, y *runtimeapi.Container) int {
		return newest(x.GetMetadata().GetAttempt(), y.GetMetadata().GetAttempt(), timeOf(x.GetCreatedAt()), timeOf(y.GetCreatedAt()), x.GetId(), y.GetId())
	})
	all, seen := make(map[string]map[string]pod.Allocation), make(map[[2]string]bool)
	for _, c := range list {
		uid, name := c.GetLabels()[pod.LabelPodUID], c.GetLabels()[pod.LabelContainerName]
		a := pod.Allocation{
			Placement: noted[pod.Placement](c.GetAnnotations(), pod.AnnotationPlacement),
			Devices:   noted[[]pod.DeviceAllocation](c.GetAnnotations(), pod.AnnotationDevices),
			Claims:    noted[[]pod.ClaimAllocation](c.GetAnnotations(), pod.AnnotationClaims),
		}
		older := seen[[2]string{uid, name}]
		seen[[2]string{uid, name}] = true
		if older || a.CPUs == "" && len(a.Memory) == 0 && len(a.Devices) == 0 && len(a.Claims) == 0 {
			continue
		}
		if all[uid] == nil {
			all[uid] = make(map[string]pod.Allocation)
		}
		all[uid][name] = a
	}
	return all, nil
}

// tooLong reports whether a list did not fit in one message: runtimes return
// ResourceExhausted from 16 MiB on (F24).
func tooLong(err error) bool {
	var call *CallError
	return errors.As(err, &call) && call.code == codes.ResourceExhausted
}

// pieces reads a list that is too long for one message as a stream. If the runtime does not
// support that, pieces returns why, the error of the call for one message.
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
				return nil, err // part of a list would be taken for the whole
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
