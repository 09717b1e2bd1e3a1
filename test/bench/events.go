package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// seen is one container event and when it came.
type seen struct {
	*cri.ContainerEventResponse
	at time.Time
}

// events holds the container events of the run. It is how the bench learns that
// something happened, in both arms alike: polling would cost both of them, and
// not the same.
type events struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu    sync.Mutex
	all   []seen
	err   error
	newer chan struct{} // closed and replaced when there is more
}

// subscribe returns when containerd has accepted the subscription.
func subscribe(ctx context.Context, rt cri.RuntimeServiceClient) (*events, error) {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := rt.GetContainerEvents(ctx, &cri.GetEventsRequest{})
	if err != nil {
		cancel()
		return nil, err
	}
	e := &events{cancel: cancel, newer: make(chan struct{})}
	e.wg.Go(func() {
		for {
			r, err := stream.Recv()
			e.mu.Lock()
			if err != nil {
				e.err = err
			} else {
				e.all = append(e.all, seen{r, time.Now()})
			}
			close(e.newer)
			e.newer = make(chan struct{})
			e.mu.Unlock()
			if err != nil {
				return
			}
		}
	})
	return e, nil
}

func (e *events) close() {
	e.cancel()
	e.wg.Wait()
}

// mark returns the present end of the events: await looks from there on.
func (e *events) mark() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.all)
}

// await returns the first event from mark on that match accepts.
func (e *events) await(ctx context.Context, mark int, what string, match func(seen) bool) (seen, error) {
	const limit = 30 * time.Second
	late := time.After(limit)
	for {
		e.mu.Lock()
		all, err, newer := e.all, e.err, e.newer
		e.mu.Unlock()
		for ; mark < len(all); mark++ {
			if match(all[mark]) {
				return all[mark], nil
			}
		}
		if err != nil {
			return seen{}, fmt.Errorf("container events: %w", err)
		}
		select {
		case <-newer:
		case <-late:
			return seen{}, fmt.Errorf("%s: not seen within %s", what, limit)
		case <-ctx.Done():
			return seen{}, ctx.Err()
		}
	}
}

// started accepts the start of a container (not of the sandbox) of a pod.
func started(pod string) func(seen) bool {
	return func(e seen) bool {
		s := e.GetPodSandboxStatus()
		return e.GetContainerEventType() == cri.ContainerEventType_CONTAINER_STARTED_EVENT &&
			s.GetMetadata().GetName() == pod && e.GetContainerId() != s.GetId()
	}
}

// stopped accepts the end of one container.
func stopped(id string) func(seen) bool {
	return func(e seen) bool {
		return e.GetContainerEventType() == cri.ContainerEventType_CONTAINER_STOPPED_EVENT && e.GetContainerId() == id
	}
}
