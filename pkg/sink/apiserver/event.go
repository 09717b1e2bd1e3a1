package apiserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/nodectl/nodectl/pkg/backoff"
	"github.com/nodectl/nodectl/pkg/pod"
)

const (
	// maxQueued is how many events wait while the server does not accept them. The oldest
	// are dropped first.
	maxQueued = 1000
	// maxTries is the number of attempts per event, and eventPause the time between
	// them, as with client-go's recorder.
	maxTries   = 12
	eventPause = 10 * time.Second
	// Normal events are held until no status has arrived for eventCalm, and at most for
	// eventYield. So the sink sends statuses first when many pods start at once. A warning
	// is sent at once, and so are the events before it.
	eventCalm  = 500 * time.Millisecond
	eventYield = 10 * time.Second
	// component is the reporting component that tools look for.
	component = "kubelet"
	// maxMessage is the longest message that an API server accepts.
	maxMessage = 1024
)

// queue holds the events to send.
type queue struct {
	events  []*v1.Event
	dropped int   // since the server last accepted an event
	stamp   int64 // in the name of the newest event
}

// Event queues an event of a pod. It never blocks: while the server accepts none, the
// oldest events are dropped. An event of a static pod names the hash by which kubectl
// finds the events of its mirror.
func (s *Sink) Event(e pod.Event) {
	uid := types.UID(e.UID)
	s.mu.Lock()
	if is, ok := s.hashes[e.Key]; ok && (uid == is.uid || uid == "") {
		uid = is.hash
	}
	s.mu.Unlock()
	of := s.event(v1.ObjectReference{
		Kind: "Pod", APIVersion: "v1", Namespace: e.Namespace, Name: e.Name, UID: uid, FieldPath: e.Container,
	}, e.Namespace, e.Type, e.Reason, e.Message, e.At)
	of.Annotations = maps.Clone(e.Annotations)
	s.queueEvent(of)
}

// NodeEvent queues an event of the node (appendix D). Like Event, it never blocks.
func (s *Sink) NodeEvent(kind, reason, message string) {
	// kubectl finds the events of a node by its name in the place of a UID.
	s.queueEvent(s.event(v1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: s.cfg.Node, UID: types.UID(s.cfg.Node)},
		metav1.NamespaceDefault, kind, reason, message, time.Time{}))
}

func (s *Sink) event(of v1.ObjectReference, namespace, kind, reason, message string, at time.Time) *v1.Event {
	if at.IsZero() {
		at = time.Now()
	}
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage-3], "") + "..."
	}
	return &v1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("%s.%x", of.Name, s.stamp())},
		InvolvedObject: of,
		Reason:         reason, Message: message, Type: kind, Count: 1,
		FirstTimestamp: seconds(at), LastTimestamp: seconds(at),
		Source:              v1.EventSource{Component: component, Host: s.cfg.Node},
		ReportingController: component, ReportingInstance: s.cfg.Node,
	}
}

// stamp returns the time in nanoseconds, but never the same twice: event names contain
// it.
func (s *Sink) stamp() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue.stamp = max(s.queue.stamp+1, time.Now().UnixNano())
	return s.queue.stamp
}

func (s *Sink) queueEvent(e *v1.Event) {
	s.mu.Lock()
	if len(s.queue.events) >= maxQueued {
		s.queue.events = append(s.queue.events[:0:0], s.queue.events[1:]...)
		s.queue.dropped++
	}
	s.queue.events = append(s.queue.events, e)
	s.mu.Unlock()
	s.eventQueued.Send()
}

// nextEvent takes the oldest event out of the queue; nil if there is none.
func (s *Sink) nextEvent() *v1.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := &s.queue
	if len(q.events) == 0 {
		q.events = nil
		return nil
	}
	e := q.events[0]
	q.events[0] = nil
	q.events = q.events[1:]
	return e
}

// lost counts n more events as lost, and returns the number of lost events since the server last
// accepted one. accepted resets the count.
func (s *Sink) lost(n int, accepted bool) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue.dropped += n
	all := s.queue.dropped
	if accepted {
		s.queue.dropped = 0
	}
	return all
}

// newCorrelator returns a correlator that counts, aggregates and rate-limits events with
// client-go's limits, as in the kubelet.
func newCorrelator() *record.EventCorrelator {
	return record.NewEventCorrelatorWithOptions(record.CorrelatorOptions{})
}

// runEvents sends events in their order until ctx ends.
func (s *Sink) runEvents(ctx context.Context, c *record.EventCorrelator) {
	limit := newBucket(s.cfg.EventQPS, s.cfg.EventBurst, time.Now())
	for ctx.Err() == nil {
		e := s.nextEvent()
		if e == nil {
			select {
			case <-s.eventQueued:
			case <-ctx.Done():
			}
			continue
		}
		s.holdBack(ctx, e)
		result, err := c.EventCorrelate(e)
		if err != nil {
			s.log.Debug("Failed to correlate event", "error", err)
		}
		if result == nil || result.Skip {
			continue
		}
		s.sendEvent(ctx, c, limit, result)
	}
}

// holdBack holds a Normal event while statuses arrive.
func (s *Sink) holdBack(ctx context.Context, e *v1.Event) {
	for late := e.LastTimestamp.Add(eventYield); e.Type == v1.EventTypeNormal; {
		s.mu.Lock()
		calm := s.reported.Add(eventCalm)
		urgent := slices.ContainsFunc(s.queue.events, func(o *v1.Event) bool { return o.Type != v1.EventTypeNormal })
		s.mu.Unlock()
		until := calm
		if late.Before(calm) {
			until = late
		}
		wait := time.Until(until)
		if urgent || wait <= 0 {
			return
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-s.eventQueued: // perhaps by a warning
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// sendEvent sends one event, and retries while that may help.
func (s *Sink) sendEvent(ctx context.Context, c *record.EventCorrelator, limit *bucket, result *record.EventCorrelateResult) {
	for try := range maxTries {
		for wait := limit.take(time.Now()); wait > 0; wait = limit.take(time.Now()) {
			if !backoff.Sleep(ctx, wait) {
				return
			}
		}
		done, err := s.send(ctx, result)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			c.UpdateState(done)
			if n := s.lost(0, true); n > 0 {
				s.log.Warn("Dropped events that the API server did not accept in time", "events", n)
			}
			return
		case isPermanent(err):
			s.log.Debug("API server rejected event", "namespace", result.Event.Namespace, "reason", result.Event.Reason, "error", explain(err))
			return
		}
		pause := eventPause
		if try == 0 {
			pause = rand.N(pause) // so that many nodes do not retry at the same moment
		}
		if !backoff.Sleep(ctx, pause) {
			return
		}
	}
	s.lost(1, false)
}

// send creates an event, or patches the event at the server that it repeats.
func (s *Sink) send(ctx context.Context, r *record.EventCorrelateResult) (*v1.Event, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	done := &v1.Event{}
	if r.Event.Count > 1 {
		err := s.pods.Patch(types.StrategicMergePatchType).Namespace(r.Event.Namespace).Resource("events").Name(r.Event.Name).
			Body(r.Patch).MaxRetries(0).Do(ctx).Into(done)
		if !apierrors.IsNotFound(err) {
			return done, err
		}
	}
	fresh := *r.Event
	fresh.ResourceVersion = "" // the server no longer has the repeated event
	err := s.pods.Post().Namespace(fresh.Namespace).Resource("events").Body(&fresh).MaxRetries(0).Do(ctx).Into(done)
	return done, err
}

// isPermanent reports whether a retry would get the same answer.
func isPermanent(err error) bool {
	var answered apierrors.APIStatus
	if !errors.As(err, &answered) {
		return false
	}
	code := answered.Status().Code
	return code < 500 && code != http.StatusUnauthorized && code != http.StatusTooManyRequests && code != http.StatusRequestTimeout
}
