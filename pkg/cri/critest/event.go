package critest

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/wakeup"
)

const (
	slots   = 100             // events a subscriber may leave unread before calls stall, as in containerd
	heldFor = 5 * time.Minute // how long events wait for a first subscriber
)

type heldEvent struct {
	at time.Time
	*runtimeapi.ContainerEventResponse
}

// subscriber is one open GetContainerEvents call.
type subscriber struct {
	queue []*runtimeapi.ContainerEventResponse // guarded by Runtime.mu
	wake  wakeup.Signal                        // publishers send, the stream receives
}

// publish sends an event to every subscriber, or holds it for the first one to come. The
// caller holds the mutex.
func (rt *Runtime) publish(kind runtimeapi.ContainerEventType, id, sandboxID string) {
	e := &runtimeapi.ContainerEventResponse{ContainerId: id, ContainerEventType: kind, CreatedAt: time.Now().UnixNano()}
	call := call{method: "Events"}
	if b := rt.sandboxes[sandboxID]; b != nil {
		e.PodSandboxStatus = b.status()
		call.key = keyOf(b.config)
	}
	if c := rt.containers[id]; c != nil {
		e.ContainersStatuses = append(e.ContainersStatuses, rt.containerStatus(c))
		call.container = c.config.GetMetadata().GetName()
	}
	times := 1
	if f := rt.fault(call); f != nil {
		switch {
		case f.Drop:
			return
		case f.Repeat:
			times = 2
		case f.NoSandbox:
			e.PodSandboxStatus = nil
		}
	}
	for range times {
		if len(rt.subs) == 0 {
			rt.held = append(rt.held, heldEvent{time.Now(), e})
		}
		for s := range rt.subs {
			s.add(e)
		}
	}
}

func (s *subscriber) add(e *runtimeapi.ContainerEventResponse) {
	s.queue = append(s.queue, e)
	s.wake.Send()
}

// subscribe opens a stream; held events are replayed to it, even stale ones.
func (rt *Runtime) subscribe() (*subscriber, error) {
	const name = "GetContainerEvents"
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if rt.life.Err() != nil {
		return nil, errDown
	}
	rt.record(name, "")
	if f := rt.fault(call{method: name}); f != nil && f.Err != nil {
		return nil, f.Err
	}
	if rt.noEvents {
		return nil, status.Error(codes.Unimplemented, "unknown method GetContainerEvents for service runtime.v1.RuntimeService")
	}
	s := &subscriber{wake: wakeup.New()}
	for _, h := range rt.held {
		if time.Since(h.at) < heldFor {
			s.add(h.ContainerEventResponse)
		}
	}
	rt.held = nil
	rt.subs[s] = true
	return s, nil
}

func (rt *Runtime) unsubscribe(s *subscriber) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	delete(rt.subs, s)
	rt.moved()
}

// moved wakes stalled calls to check again. The caller holds the mutex.
func (rt *Runtime) moved() {
	close(rt.room)
	rt.room = make(chan struct{})
}

// next returns the subscriber's next event.
func (rt *Runtime) next(ctx context.Context, s *subscriber) (*runtimeapi.ContainerEventResponse, error) {
	for {
		rt.mu.Lock()
		life := rt.life
		if len(s.queue) > 0 && life.Err() == nil {
			e := s.queue[0]
			s.queue = s.queue[1:]
			rt.moved()
			rt.mu.Unlock()
			return e, nil
		}
		rt.mu.Unlock()
		select {
		case <-s.wake:
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		case <-life.Done():
			return nil, errDown
		}
	}
}

// stall waits while a subscriber has too many unread events: containerd then stalls every
// call that would publish (F6).
func (rt *Runtime) stall(ctx context.Context) {
	for {
		rt.mu.Lock()
		full, room := false, rt.room
		for s := range rt.subs {
			full = full || len(s.queue) > slots
		}
		rt.mu.Unlock()
		if !full {
			return
		}
		select {
		case <-room:
		case <-ctx.Done():
			return
		}
	}
}

// GetContainerEvents implements CRI.
func (rt *Runtime) GetContainerEvents(_ *runtimeapi.GetEventsRequest, stream grpc.ServerStreamingServer[runtimeapi.ContainerEventResponse]) error {
	s, err := rt.subscribe()
	if err != nil {
		return err
	}
	defer rt.unsubscribe(s)
	for {
		e, err := rt.next(stream.Context(), s)
		if err != nil {
			return err
		}
		if err := stream.Send(e); err != nil {
			return err
		}
	}
}
