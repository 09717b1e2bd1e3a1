// Package apiserver tells an API server how the pods of this node are: their
// statuses, the mirrors of static pods, the end of pods that are being deleted, and
// events.
//
// Report, Seen, Event and the others only leave word, under a lock that is held for
// moments. Run owns the rest. Its loop decides what every pod needs next, one request
// per pod and a few pods at once, and requests come back to it on answers (cap 0: the
// loop receives until the last one is in). wake and woken (cap 1) say that word was
// left, the one for pods and the other for events. Nothing waits in a queue but the
// newest status of each pod and a bounded number of events, so an outage of any
// length costs no more memory than a moment.
//
// The one rule: a request is made from what is known when it is sent, never from what
// was known when something happened. What was overtaken is never sent, and what the
// server holds already is not sent again.
package apiserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/nodectl/nodectl/pkg/apiclient"
	"github.com/nodectl/nodectl/pkg/pod"
)

const (
	// atOnce is how many pods have a request under way at the same time.
	atOnce = 8
	// requestPatience is how long an answer is waited for.
	requestPatience = 15 * time.Second
	// reconcileEvery is how often every pod is compared with the server's copy
	// (C-1.27.5).
	reconcileEvery = 10 * time.Second
)

// Config is what a sink needs.
type Config struct {
	// REST says how the API server is reached; its rate limits are not used.
	REST *rest.Config
	// Node is the name of this node, in any case; an API server knows it in lower
	// case.
	Node string
	// NodeUID returns the UID of the Node object, "" while there is none: mirrors
	// belong to it, and wait for it. It must not block. nil makes no mirrors.
	NodeUID func() types.UID
	// QPS and Burst limit the requests for pods; a QPS of 0 or less is no limit.
	QPS   float64
	Burst int
	// EventQPS and EventBurst limit the requests for events, in the same way.
	EventQPS   float64
	EventBurst int
	// Synced is told how long a status took from when it was so until the API server had
	// it; nil is nobody. It must not block.
	Synced func(took time.Duration)
	// Log hears what goes wrong, once; nil is silence.
	Log *slog.Logger
}

// Sink is an engine.Sink and an engine.Events of one API server.
type Sink struct {
	cfg  Config
	log  *slog.Logger
	pods *rest.RESTClient

	wake  chan struct{} // there is word for the loop
	woken chan struct{} // there is an event

	mu    sync.Mutex
	inbox inbox
	queue queue
	// reported is when a status was heard last.
	reported time.Time
	// hashes holds config.hash by static pod: events name it (see Event).
	hashes map[pod.Key]staticHash
}

// staticHash is a static pod's hash, and its UID.
type staticHash struct{ uid, hash types.UID }

// New returns the sink of the server that cfg.REST reaches. Nothing is sent before
// Run.
func New(cfg Config) (*Sink, error) {
	switch {
	case cfg.REST == nil:
		return nil, errors.New("no API server")
	case cfg.Node == "":
		return nil, errors.New("no node name")
	}
	cfg.Node = strings.ToLower(cfg.Node)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	r := apiclient.ForGroup(cfg.REST, v1.SchemeGroupVersion)
	r.ContentType, r.AcceptContentTypes = "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf,application/json"
	r.QPS, r.Burst, r.RateLimiter = -1, 0, nil // the loops have their own
	r.Wrap(func(next http.RoundTripper) http.RoundTripper { return patient{next} })
	client, err := rest.RESTClientFor(r)
	if err != nil {
		return nil, fmt.Errorf("use the API server: %w", err)
	}
	return &Sink{
		cfg: cfg, log: cfg.Log, pods: client,
		wake: make(chan struct{}, 1), woken: make(chan struct{}, 1),
		inbox:  newInbox(),
		hashes: make(map[pod.Key]staticHash),
	}, nil
}

// Report takes a pod's newest status; what it said of the pod before is replaced
// (C-1.27.1). It never blocks on the network, and the error is always nil.
func (s *Sink) Report(r pod.StatusReport) error {
	key := pod.KeyOf(r.Pod)
	s.mu.Lock()
	s.inbox.reports[key], s.reported = r, time.Now()
	if hash := r.Pod.Annotations[pod.AnnotationConfigHash]; hash != "" && static(r) && !r.Gone {
		s.hashes[key] = staticHash{r.Pod.UID, types.UID(hash)}
	} else {
		delete(s.hashes, key)
	}
	s.mu.Unlock()
	poke(s.wake)
	return nil
}

// Seen takes a pod of this node as the server shows it, mirrors included; gone says
// that the server has it no more. p is kept and not written to. It never blocks.
func (s *Sink) Seen(p *v1.Pod, gone bool) {
	s.mu.Lock()
	s.inbox.see(p, gone)
	s.mu.Unlock()
	poke(s.wake)
}

// Synced says that every source was heard: mirrors of static pods that nobody
// reported until now, or reported as gone, are orphans and go (C-1.12.5, C-1.13.6).
// It is called when the engine says "All pods reported", after the last of these
// reports; again is no harm.
func (s *Sink) Synced() {
	s.mu.Lock()
	s.inbox.synced = true
	s.mu.Unlock()
	poke(s.wake)
}

// Run sends what the server is to know until ctx ends. What is under way then is
// given up; a next Run begins with what the server has. It is called once.
func (s *Sink) Run(ctx context.Context) error {
	var events sync.WaitGroup
	defer events.Wait()
	events.Go(func() { s.runEvents(ctx, newCorrelator()) })
	newLoop(s).run(ctx)
	return nil
}

// static reports whether a report is of a pod that no API server wants.
func static(r pod.StatusReport) bool { return !r.Origin.FromAPI() }

// poke says that something was left; once is enough.
func poke(bell chan<- struct{}) {
	select {
	case bell <- struct{}{}:
	default:
	}
}
