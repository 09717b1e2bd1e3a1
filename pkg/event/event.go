// Package event keeps the events of pods and of the node: v1.Event objects, in memory for
// readers, and in a file for the next agent, or for a person without an agent.
//
// The engine and the node write events; `events` and `describe` list and follow them, with an API
// server or without one. Repeated events are one event with a count, like the kubelet's: an event
// describes a change of the pod, not a reading by the agent.
//
// A write of an event never blocks: it waits for no disk and no reader. On a full disk, only the
// file lacks the newest events.
package event

import (
	"cmp"
	"container/list"
	"context"
	"fmt"
	"hash/maphash"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/wakeup"
)

// Limits of the stored events: the oldest ones are dropped.
const (
	maxEvents = 1000
	maxBytes  = 1 << 20
	// maxMessage is the API's limit of a message.
	maxMessage = 1024
)

// component is the source of events: tools look for the kubelet's.
const component = "kubelet"

// Config is the configuration of a Store.
type Config struct {
	Path string       // of the file; "" keeps events only in memory
	Node string       // the node's name
	Log  *slog.Logger // nil discards
}

// Store holds the newest events, about a thousand. It is safe for concurrent use. Run
// writes its file; without Run, or with a full disk, the events are still in memory.
type Store struct {
	cfg  Config
	wake wakeup.Signal // Event sends, Run receives

	mu         sync.Mutex
	order      *list.List // of *kept, the one that happened longest ago first
	byIdentity map[identity]*list.Element
	kinds      map[kind]*similar
	seed       maphash.Seed // of the checksums in kinds
	names      map[string]bool
	bytes      int // of all lines
	dirty      map[*kept]bool
	readers    map[*reader]struct{}
}

// kept is one event with the size of its line.
type kept struct {
	event    v1.Event
	identity identity
	bytes    int
}

// Filter selects events; the zero value selects all.
type Filter struct {
	Namespace string // "" is any
	// Kind is the kind of the involved object, Pod or Node; "" is any.
	Kind string
	// Name and UID are the involved object's; "" is any.
	Name string
	UID  string
}

func (f Filter) matches(e *v1.Event) bool {
	about := func(asked, has string) bool { return asked == "" || asked == has }
	o := &e.InvolvedObject
	return about(f.Namespace, e.Namespace) && about(f.Kind, o.Kind) && about(f.Name, o.Name) && about(f.UID, string(o.UID))
}

// Open returns the Store of the file at cfg.Path with the events in it. If the file cannot
// be read, Open logs that and starts without its events.
func Open(cfg Config) *Store {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Store{
		cfg: cfg, wake: wakeup.New(), order: list.New(),
		byIdentity: make(map[identity]*list.Element), kinds: make(map[kind]*similar), names: make(map[string]bool), seed: maphash.MakeSeed(),
		dirty: make(map[*kept]bool), readers: make(map[*reader]struct{}),
	}
	if cfg.Path == "" {
		return s
	}
	events, err := Read(cfg.Path)
	if err != nil {
		cfg.Log.Warn("Failed to read stored events", "path", cfg.Path, "error", err)
	}
	for i := range events {
		s.add(events[i])
	}
	return s
}

// Event adds an event of a pod; it implements engine.Events. It never blocks.
func (s *Store) Event(e pod.Event) {
	at := cmp.Or(e.At, time.Now())
	s.take(v1.ObjectReference{
		Kind: "Pod", APIVersion: "v1", Namespace: e.Namespace, Name: e.Name,
		UID: types.UID(e.UID), FieldPath: e.Container,
	}, e.Type, e.Reason, e.Message, at, e.Annotations)
}

// NodeEvent adds an event of the node, such as Starting or NodeReady. It never blocks.
func (s *Store) NodeEvent(reason, kind, message string) {
	s.take(v1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: s.cfg.Node, UID: types.UID(s.cfg.Node)}, kind, reason, message, time.Now(), nil)
}

// ObjectEvent adds an event of an object that is neither a pod nor the node, such as a Deployment.
// It never blocks.
func (s *Store) ObjectEvent(about v1.ObjectReference, kind, reason, message string) {
	s.take(about, kind, reason, message, time.Now(), nil)
}

// take counts an event that exists already, or adds it.
func (s *Store) take(about v1.ObjectReference, kind, reason, message string, at time.Time, annotations map[string]string) {
	message = strings.ToValidUTF8(message, "\ufffd")
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage-3], "") + "..."
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	w := identity{about: about, kind: kind, reason: reason, message: message}
	w.message, message = s.combine(w, at)
	if el := s.byIdentity[w]; el != nil {
		s.repeat(el, message, at)
		return
	}
	added := s.object(w, message, at)
	added.Annotations = maps.Clone(annotations)
	s.add(added)
	s.changed(s.order.Back().Value.(*kept), Added)
}

// repeat counts an event that has happened again.
func (s *Store) repeat(el *list.Element, message string, at time.Time) {
	k := el.Value.(*kept)
	k.event.Count++
	k.event.Message = message
	if last := metav1.NewTime(at); k.event.LastTimestamp.Before(&last) {
		k.event.LastTimestamp = last
	}
	s.order.MoveToBack(el)
	s.changed(k, Modified)
}

// object is a new event.
func (s *Store) object(w identity, message string, at time.Time) v1.Event {
	namespace := cmp.Or(w.about.Namespace, metav1.NamespaceDefault)
	name := func(n int64) string { return fmt.Sprintf("%s.%x", w.about.Name, n) }
	nanos := at.UnixNano()
	for s.names[namespace+"/"+name(nanos)] {
		nanos++
	}
	e := v1.Event{
		InvolvedObject: w.about, Reason: w.reason, Message: message, Type: w.kind,
		Source:              v1.EventSource{Component: component, Host: s.cfg.Node},
		FirstTimestamp:      metav1.NewTime(at),
		LastTimestamp:       metav1.NewTime(at),
		Count:               1,
		ReportingController: component,
		ReportingInstance:   s.cfg.Node,
	}
	e.Kind, e.APIVersion = "Event", "v1"
	e.Namespace, e.Name = namespace, name(nanos)
	e.CreationTimestamp = metav1.NewTime(at)
	return e
}

// add appends an event, and drops the oldest ones over the limits.
func (s *Store) add(e v1.Event) {
	k := &kept{event: e, identity: identityOf(&e)}
	k.bytes = len(encode(&e))
	if el := s.byIdentity[k.identity]; el != nil {
		s.remove(el)
	}
	s.byIdentity[k.identity] = s.order.PushBack(k)
	s.names[e.Namespace+"/"+e.Name] = true
	s.bytes += k.bytes
	for s.order.Len() > maxEvents || s.bytes > maxBytes*3/4 && s.order.Len() > 1 {
		s.remove(s.order.Front())
	}
}

func (s *Store) remove(el *list.Element) {
	k := s.order.Remove(el).(*kept)
	delete(s.byIdentity, k.identity)
	delete(s.names, k.event.Namespace+"/"+k.event.Name)
	delete(s.dirty, k)
	s.bytes -= k.bytes
}

// changed wakes Run and the readers.
func (s *Store) changed(k *kept, how string) {
	s.dirty[k] = true
	s.wake.Send()
	for r := range s.readers {
		r.notify(k, how)
	}
}

// List returns the events that f selects, the one that happened last at the end.
func (s *Store) List(f Filter) []v1.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []v1.Event
	for el := s.order.Front(); el != nil; el = el.Next() {
		if e := &el.Value.(*kept).event; f.matches(e) {
			out = append(out, *e)
		}
	}
	return out
}

// The event types of Watch, as in a watch of an API server.
const (
	Added    = "ADDED"
	Modified = "MODIFIED"
)

// Watch yields the present events that f selects, as ADDED, then new ones as ADDED and
// repeated ones as MODIFIED, until ctx is done or the caller leaves the loop. A slow caller
// gets only the newest state of each event.
func (s *Store) Watch(ctx context.Context, f Filter) iter.Seq2[string, v1.Event] {
	return func(yield func(string, v1.Event) bool) {
		r := s.join(f)
		defer s.leave(r)
		for ctx.Err() == nil {
			for _, n := range s.news(r) {
				if ctx.Err() != nil || !yield(n.how, n.event) {
					return
				}
			}
			select {
			case <-r.wake:
			case <-ctx.Done():
			}
		}
	}
}

// reader is one Watch. The store's lock guards waiting.
type reader struct {
	filter  Filter
	waiting []news
	wake    wakeup.Signal // the store sends, Watch receives
}

type news struct {
	how   string
	event v1.Event
}

// notify queues an event, in place of an older state of it.
func (r *reader) notify(k *kept, how string) {
	if !r.filter.matches(&k.event) {
		return
	}
	same := func(n news) bool { return n.event.Name == k.event.Name && n.event.Namespace == k.event.Namespace }
	if i := slices.IndexFunc(r.waiting, same); i >= 0 {
		how = r.waiting[i].how
		r.waiting = slices.Delete(r.waiting, i, i+1)
	}
	r.waiting = append(r.waiting, news{how, k.event})
	r.wake.Send()
}

func (s *Store) join(f Filter) *reader {
	r := &reader{filter: f, wake: wakeup.New()}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readers[r] = struct{}{}
	for el := s.order.Front(); el != nil; el = el.Next() {
		if e := &el.Value.(*kept).event; f.matches(e) {
			r.waiting = append(r.waiting, news{Added, *e})
		}
	}
	return r
}

func (s *Store) leave(r *reader) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.readers, r)
}

func (s *Store) news(r *reader) []news {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := r.waiting
	r.waiting = nil
	return out
}
