package arm

import (
	"context"
	"fmt"
	"sync"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Seen is one container event and when it came.
type Seen struct {
	*cri.ContainerEventResponse
	At time.Time
}

// Events holds the container events of the run. Both arms learn from them that something
// happened: polling would cost both of them, and not the same.
type Events struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu    sync.Mutex
	all   []Seen
	err   error
	newer chan struct{} // closed and replaced when there is more
}

// Subscribe returns when containerd has accepted the subscription.
func Subscribe(ctx context.Context, rt cri.RuntimeServiceClient) (*Events, error) {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := rt.GetContainerEvents(ctx, &cri.GetEventsRequest{})
	if err != nil {
		cancel()
		return nil, err
	}
	e := &Events{cancel: cancel, newer: make(chan struct{})}
	e.wg.Go(func() {
		for {
			r, err := stream.Recv()
			e.mu.Lock()
			if err != nil {
				e.err = err
			} else {
				e.all = append(e.all, Seen{r, time.Now()})
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

// Close ends the subscription.
func (e *Events) Close() {
	e.cancel()
	e.wg.Wait()
}

// Mark returns the current end of the events: Await searches from there on.
func (e *Events) Mark() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.all)
}

// Await returns the first event from mark on that match accepts; it waits 30
// seconds.
func (e *Events) Await(ctx context.Context, mark int, what string, match func(Seen) bool) (Seen, error) {
	return e.AwaitFor(ctx, 30*time.Second, mark, what, match)
}

// AwaitFor is Await with a limit.
func (e *Events) AwaitFor(ctx context.Context, limit time.Duration, mark int, what string, match func(Seen) bool) (Seen, error) {
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
			return Seen{}, fmt.Errorf("container events: %w", err)
		}
		select {
		case <-newer:
		case <-late:
			return Seen{}, fmt.Errorf("%s: not seen within %s", what, limit)
		case <-ctx.Done():
			return Seen{}, ctx.Err()
		}
	}
}

// Started accepts the start of a container (not of the sandbox) of a pod.
func Started(pod string) func(Seen) bool {
	return func(e Seen) bool {
		s := e.GetPodSandboxStatus()
		return e.GetContainerEventType() == cri.ContainerEventType_CONTAINER_STARTED_EVENT &&
			s.GetMetadata().GetName() == pod && e.GetContainerId() != s.GetId()
	}
}

// Stopped accepts the end of one container.
func Stopped(id string) func(Seen) bool {
	return func(e Seen) bool {
		return e.GetContainerEventType() == cri.ContainerEventType_CONTAINER_STOPPED_EVENT && e.GetContainerId() == id
	}
}

// Deleted accepts the removal of a container or of a sandbox.
func Deleted(id string) func(Seen) bool {
	return func(e Seen) bool {
		return e.GetContainerEventType() == cri.ContainerEventType_CONTAINER_DELETED_EVENT && e.GetContainerId() == id
	}
}
