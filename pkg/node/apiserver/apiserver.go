// Package apiserver keeps this node's Node object and lease at an API server: its
// registration, status and heartbeat.
//
// A Heartbeat registers the node, again when its object is deleted, sends status changes
// in rounds, renews the lease, and watches the object. The status comes from a
// node.Observer, which never waits for the runtime: a runtime that hangs makes the node
// not ready, but delays nothing. Two channels, of one slot each, start work at once:
// one the rounds, one the lease.
//
// The node writes only its own fields of the Node object. It never changes those of
// other writers: taints, pod networks, spec.unschedulable, labels, and conditions and
// resources that are not the node's.
package apiserver

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/nodectl/nodectl/pkg/apiclient"
	"github.com/nodectl/nodectl/pkg/backoff"
	"github.com/nodectl/nodectl/pkg/node"
	"github.com/nodectl/nodectl/pkg/wakeup"
)

// LeaseNamespace is where nodes' leases are.
const LeaseNamespace = v1.NamespaceNodeLease

// Config configures a Heartbeat.
type Config struct {
	// REST configures the connection to the API server; it must not limit the rate of
	// requests.
	REST     *rest.Config
	Observer *node.Observer
	// Labels are those of --node-labels alone; New refuses labels that a node may not
	// set.
	Labels map[string]string
	// Register creates the object; without it another client does
	// (--register-node=false).
	Register        bool
	UpdateFrequency time.Duration // of rounds; default 10 s
	ReportFrequency time.Duration // of status without change; default 5 min
	LeaseDuration   time.Duration // default 40 s; the lease is renewed every quarter of it
	// RequestTimeout bounds a request for the Node; default is the shorter of
	// UpdateFrequency and LeaseDuration.
	RequestTimeout time.Duration
	// Event receives events of the node; may be nil. It must not block.
	Event func(reason, eventType, message string)
	// OnNode receives each change of the Node at the API server, in order; nil when it is
	// gone. It must not block, nor write to the Node. May be nil.
	OnNode func(*v1.Node)
	// Await returns when there are credentials for the API server; the error is that of
	// its context. nil does not wait.
	Await func(context.Context) error
	// Epoch returns a context that is done when the API server's data were restored
	// from a backup: then the Node is listed again. nil is never.
	Epoch func() context.Context
	Log   *slog.Logger
}

// Heartbeat keeps this node registered at an API server.
type Heartbeat struct {
	cfg     Config
	nodes   *apiclient.Nodes // with a deadline for every request
	watches *apiclient.Nodes // without
	leases  *apiclient.Leases

	roundDue wakeup.Signal // a round is due
	created  wakeup.Signal // the object was created again; the lease is due

	seenMu     sync.Mutex // held while seen changes and Seen is called
	seen       atomic.Pointer[v1.Node]
	deletedUID types.UID // of the last deleted object: late answers still show it
	changes    uint64    // how often seen has changed; guarded by seenMu
	// settled says that the server has accepted a status of this agent: extended resources beside those
	// of its plugins are other writers' since then.
	settled atomic.Bool

	noteMu sync.Mutex
	logged map[string]string

	// Of the goroutine of Run alone.
	reported      time.Time // last sent
	delay         time.Duration
	unschedulable bool
	last          exchange
}

// exchange is the last status sent and the server's result.
type exchange struct {
	sent, kept *v1.Node // nil: nothing was sent
	// again: the attempt before had the same result, so the server drops a part of it.
	again bool
}

// New returns a Heartbeat. It sends no request yet.
func New(cfg Config) (*Heartbeat, error) {
	if err := node.CheckLabels(cfg.Labels); cfg.Register && err != nil {
		return nil, err
	}
	for _, d := range []struct {
		of  *time.Duration
		def time.Duration
	}{{&cfg.UpdateFrequency, 10 * time.Second}, {&cfg.ReportFrequency, 5 * time.Minute}, {&cfg.LeaseDuration, 40 * time.Second}} {
		if *d.of <= 0 {
			*d.of = d.def
		}
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Epoch == nil {
		cfg.Epoch = context.Background
	}
	if cfg.REST == nil || cfg.Observer == nil {
		return nil, errors.New("REST and Observer are required")
	}
	h := &Heartbeat{cfg: cfg, roundDue: wakeup.New(), created: wakeup.New(), logged: map[string]string{}}
	config := rest.CopyConfig(cfg.REST)
	config.QPS = -1 // heartbeats are not rate-limited
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	var err error
	if h.watches, err = apiclient.NewNodes(config); err != nil {
		return nil, err
	}
	config = rest.CopyConfig(config)
	if config.Timeout = cfg.RequestTimeout; config.Timeout <= 0 {
		config.Timeout = min(cfg.UpdateFrequency, cfg.LeaseDuration)
	}
	if h.nodes, err = apiclient.NewNodes(config); err != nil {
		return nil, err
	}
	config = rest.CopyConfig(config)
	config.Timeout = min(config.Timeout, cfg.LeaseDuration/4)
	if h.leases, err = apiclient.NewLeases(config, LeaseNamespace); err != nil {
		return nil, err
	}
	return h, nil
}

// Run keeps the node at the API server until ctx ends (C-1.25). It runs the Observer
// too.
func (h *Heartbeat) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	h.event(node.Event{Reason: "Starting", Type: v1.EventTypeNormal, Message: "Starting kubelet."})
	wg.Go(func() { h.cfg.Observer.Run(ctx) })
	if h.cfg.Await != nil && h.cfg.Await(ctx) != nil {
		return
	}
	wg.Go(func() { h.follow(ctx) })
	wg.Go(func() { h.keepLease(ctx) })
	h.rounds(ctx)
}

// Report has the status sent soon. It does not block.
func (h *Heartbeat) Report() { h.roundDue.Send() }

// Node returns the object as the API server showed it last, nil while it is not known
// to exist. It is shared: callers must not write to it.
func (h *Heartbeat) Node() *v1.Node { return h.seen.Load() }

// Settled reports whether the object has a status of this agent.
func (h *Heartbeat) Settled() bool { return h.settled.Load() }

// UID returns the object's UID, "" while it is not known to exist: a mirror pod needs
// it for its owner.
func (h *Heartbeat) UID() types.UID {
	if n := h.seen.Load(); n != nil {
		return n.UID
	}
	return ""
}

// update takes the object as the server shows it, and ignores one that is older than the
// known one.
func (h *Heartbeat) update(n *v1.Node) {
	h.seenMu.Lock()
	defer h.seenMu.Unlock()
	h.store(n, false)
}

// changeCount returns how often the object was received.
func (h *Heartbeat) changeCount() uint64 {
	h.seenMu.Lock()
	defer h.seenMu.Unlock()
	return h.changes
}

// updateListed takes the object of a list; changes is the result of changeCount before the
// request. The list has the newest object, however old it looks (F71), unless another
// answer came during the request: then updateListed returns false where another object,
// or a newer one, is known.
func (h *Heartbeat) updateListed(n *v1.Node, changes uint64) bool {
	h.seenMu.Lock()
	defer h.seenMu.Unlock()
	h.store(n, h.changes == changes)
	is := h.seen.Load()
	return is != nil && is.UID == n.UID && is.ResourceVersion == n.ResourceVersion
}

// updateNoneListed takes that a list has no object; see updateListed. It returns false if
// the object was received during the request.
func (h *Heartbeat) updateNoneListed(changes uint64) bool {
	h.seenMu.Lock()
	defer h.seenMu.Unlock()
	was := h.seen.Load()
	if was != nil && h.changes == changes {
		h.drop(was.UID)
	}
	return h.seen.Load() == nil
}

// store is update for an object that the server may have given as the newest; seenMu
// is held.
func (h *Heartbeat) store(n *v1.Node, newest bool) {
	was := h.seen.Load()
	if !newest && n.UID == h.deletedUID {
		return
	}
	if was != nil && (was.ResourceVersion == n.ResourceVersion || !newest && apiclient.Older(n.ResourceVersion, was.ResourceVersion)) {
		return
	}
	h.seen.Store(n)
	h.changes++
	if was == nil || was.UID != n.UID {
		h.created.Send()
	}
	if h.cfg.OnNode != nil {
		h.cfg.OnNode(n)
	}
}

// deleted notes that the object of that UID no longer exists.
func (h *Heartbeat) deleted(uid types.UID) {
	h.seenMu.Lock()
	defer h.seenMu.Unlock()
	if was := h.seen.Load(); was != nil && was.UID == uid {
		h.drop(uid)
	}
}

// drop is deleted for the known object; seenMu is held.
func (h *Heartbeat) drop(uid types.UID) {
	h.cfg.Log.Warn("Node object was deleted from the API server", "node", h.cfg.Observer.Name())
	h.seen.Store(nil)
	h.changes++
	h.deletedUID = uid
	if h.cfg.OnNode != nil {
		h.cfg.OnNode(nil)
	}
	h.roundDue.Send()
}

// jitter lengthens d by up to 4 %, so that nodes do not send at the same moment.
func jitter(d time.Duration) time.Duration {
	return backoff.Jitter(d, 1, 1.04)
}

func (h *Heartbeat) event(e node.Event) {
	if h.cfg.Event != nil {
		h.cfg.Event(e.Reason, e.Type, e.Message)
	}
}

// note logs a failure once, until it changes or is over.
func (h *Heartbeat) note(what string, err error) {
	var request *url.Error
	if errors.As(err, &request) {
		err = request.Err // a watch's address has its timeout, which differs each time
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	h.noteMu.Lock()
	was := h.logged[what]
	h.logged[what] = text
	h.noteMu.Unlock()
	switch {
	case text == was:
	case text != "":
		h.cfg.Log.Warn("Failed to update node at the API server", "what", what, "error", err)
	default:
		h.cfg.Log.Info("Updating node at the API server again", "what", what)
	}
}
