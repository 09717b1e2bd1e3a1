package cri

import (
	"context"
	"iter"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// EventType is the kind of an Event.
type EventType int

const (
	// EventSubscribed comes first in every stream: later events are delivered, earlier ones
	// may have been missed.
	EventSubscribed EventType = iota
	EventCreated
	EventStarted
	EventStopped
	EventDeleted
)

func (t EventType) String() string {
	return [...]string{"subscribed", "created", "started", "stopped", "deleted"}[t]
}

// Event says that something about one pod may have changed. It is a hint: it
// may be repeated, late by minutes, or wrong about the present.
type Event struct {
	Type EventType
	// Key is the pod; the zero Key if the runtime did not name it (the sandbox was gone
	// when the event was sent).
	Key pod.Key
	// ID is the container's, or the sandbox's for a sandbox event.
	ID        string
	CreatedAt time.Time // of the event
}

// Events subscribes to the runtime's events and yields those of pods that carry our node's
// label, and those whose pod is unknown. It ends after its first error:
// errors.ErrUnsupported from a runtime without events, ErrUnavailable if the connection
// broke or was never made. It ends without an error when ctx does.
//
// The caller must read without delay: a subscriber that does not read blocks containerd for
// the whole node (F6).
func (r *Runtime) Events(ctx context.Context) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		if r.cfg.OnCall != nil {
			r.cfg.OnCall("GetContainerEvents")
		}
		stream, err := r.rt.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
		for first := true; ; first = false {
			if first && err == nil && !yield(Event{Type: EventSubscribed}, nil) {
				return
			}
			var e *runtimeapi.ContainerEventResponse
			if err == nil {
				e, err = stream.Recv()
			}
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				yield(Event{}, r.translate("GetContainerEvents", err))
				return
			}
			if ev, ours := r.eventOf(e); ours && !yield(ev, nil) {
				return
			}
		}
	}
}

func (r *Runtime) eventOf(e *runtimeapi.ContainerEventResponse) (ev Event, ours bool) {
	ev = Event{ID: e.GetContainerId(), CreatedAt: timeOf(e.GetCreatedAt())}
	switch e.GetContainerEventType() {
	case runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT:
		ev.Type = EventCreated
	case runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT:
		ev.Type = EventStarted
	case runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT:
		ev.Type = EventStopped
	case runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT:
		ev.Type = EventDeleted
	}
	box := e.GetPodSandboxStatus()
	if box == nil {
		return ev, true
	}
	ev.Key = keyOfLabels(box.GetLabels())
	return ev, box.GetLabels()[pod.LabelNode] == r.cfg.Node
}
