// Package apiserver reports the pods of this node to an API server. It patches
// statuses, creates mirror pods of static pods, completes deletions, and sends events.
//
// Report, Seen, Event and the other methods only store their input, under a lock that is held
// briefly. Run owns the rest. Its loop decides the next request of every pod. A pod has one request
// in flight, and a few pods have one at the same time. Requests send their results to the loop on
// answers (cap 0: the loop receives until the last one is in). inputQueued and eventQueued (cap 1)
// signal new input. Only the newest status of each pod and a bounded number of events are queued.
// So a long outage needs no more memory than a short one.
//
// The loop builds a request from the state at the time it sends it, never from the state at the
// time of an event. It never sends an outdated status, nor one that the server already holds.
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
	"github.com/nodectl/nodectl/pkg/wakeup"
)

const (
	// maxInFlight limits the number of pods with a request in flight.
	maxInFlight = 8
	// requestTimeout is the timeout of a request.
	requestTimeout = 15 * time.Second
	// reconcileEvery is how often the loop compares every pod with the server's copy
	// (C-1.27.5).
	reconcileEvery = 10 * time.Second
)

// Config configures a sink.
type Config struct {
	// REST configures the connection to the API server; its rate limits are not used.
	REST *rest.Config
	// Node is the name of this node, in any case; an API server knows it in lower
	// case.
	Node string
	// NodeUID returns the UID of the Node object, which owns the mirrors. While it returns "", the
	// sink creates no mirror. It must not block. With nil, the sink never creates mirrors.
	NodeUID func() types.UID
	// QPS and Burst limit the requests for pods; a QPS of 0 or less is no limit.
	QPS   float64
	Burst int
	// EventQPS and EventBurst limit the requests for events, in the same way.
	EventQPS   float64
	EventBurst int
	// Synced receives the time from a status change until the API server accepted it. It may
	// be nil. It must not block.
	Synced func(took time.Duration)
	// Log receives each failure once; nil discards them.
	Log *slog.Logger
}

// Sink is an engine.Sink and an engine.Events of one API server.
type Sink struct {
	cfg  Config
	log  *slog.Logger
	pods *rest.RESTClient

	inputQueued wakeup.Signal // the inbox has input for the loop
	eventQueued wakeup.Signal // an event is queued

	mu    sync.Mutex
	inbox inbox
	queue queue
	// reported is the time of the last Report.
	reported time.Time
	// hashes holds the hash of each static pod, which its events have as the pod's UID.
	hashes map[pod.Key]staticHash
}

// staticHash has the UID of a static pod, and the hash in its annotation config.hash.
type staticHash struct{ uid, hash types.UID }

// New returns the sink of the server of cfg.REST. It sends nothing before Run.
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
	r.QPS, r.Burst, r.RateLimiter = -1, 0, nil // the loops have their own limits
	r.Wrap(func(next http.RoundTripper) http.RoundTripper { return retryAfterTransport{next} })
	client, err := rest.RESTClientFor(r)
	if err != nil {
		return nil, fmt.Errorf("use the API server: %w", err)
	}
	return &Sink{
		cfg: cfg, log: cfg.Log, pods: client,
		inputQueued: wakeup.New(), eventQueued: wakeup.New(),
		inbox:  newInbox(),
		hashes: make(map[pod.Key]staticHash),
	}, nil
}

// Report stores a pod's newest status, which replaces the one before (C-1.27.1). It
// never blocks on the network, and the error is always nil.
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
	s.inputQueued.Send()
	return nil
}

// Seen stores a pod of this node as the server shows it, mirrors included; gone means
// that the server no longer has it. The sink keeps p and never writes to it. It never
// blocks.
func (s *Sink) ObservePod(p *v1.Pod, gone bool) {
	s.mu.Lock()
	s.inbox.see(p, gone)
	s.mu.Unlock()
	s.inputQueued.Send()
}

// Synced means that every source is ready and that every pod was reported. A mirror whose static
// pod has no report, or is reported as gone, is an orphan, and the loop deletes it (C-1.12.5,
// C-1.13.6). The engine may call Synced more than once.
func (s *Sink) Synced() {
	s.mu.Lock()
	s.inbox.synced = true
	s.mu.Unlock()
	s.inputQueued.Send()
}

// Run sends statuses, mirrors and events until ctx ends, and then cancels requests in flight. The
// next process begins with the server's state. Run is called once.
func (s *Sink) Run(ctx context.Context) error {
	var events sync.WaitGroup
	defer events.Wait()
	events.Go(func() { s.runEvents(ctx, newCorrelator()) })
	newLoop(s).run(ctx)
	return nil
}

// static reports whether a report is of a pod that does not come from an API server.
func static(r pod.StatusReport) bool { return !r.Origin.FromAPI() }
