package apiclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nodectl/nodectl/pkg/backoff"
)

const (
	// fetchTimeout bounds a request for one object, and fetchLimit its answer, in bytes.
	fetchTimeout = 10 * time.Second
	fetchLimit   = 1 << 20
)

// MaxFirstRequests is how many lists of Reflect and reviews of permissions a Reader has under
// way at once. Pods may name thousands of objects, all in one list.
const MaxFirstRequests = 64

// MaxNamespaceRequests is how many of them are for objects of one namespace, so that the
// requests of other namespaces do not wait for them.
const MaxNamespaceRequests = MaxFirstRequests / 4

// ReaderConfig is the configuration of a Reader.
type ReaderConfig struct {
	// Client sends the requests.
	Client *Client
	// Shared says that others use Client's connections too: Release leaves them open.
	Shared bool
	// ServicesOptional lets Services return none while the server has not answered.
	ServicesOptional bool
	// Log gets debug messages; nil for none.
	Log *slog.Logger
}

// Reader reads objects from an API server for one node. It lists and watches collections,
// and caches tokens, runtime classes and services. Its methods may be called by many
// goroutines.
type Reader struct {
	cfg    ReaderConfig
	client *Client
	// Tuning may be changed before the Reader is used.
	Tuning Tuning

	limit limiter

	permissions permissions
	tokens      tokens
	classes     classes
	services    services
}

// Tuning holds the times and sizes of a Reader.
type Tuning struct {
	// A failed request is repeated after about FirstRetry, then more and more rarely, after
	// about LastRetry at most.
	FirstRetry, LastRetry time.Duration
	// MinRetry is about the least time before another try, also when the server has returned.
	MinRetry time.Duration
	// Confirm lies between two lists that must agree on which objects are gone.
	Confirm time.Duration
	// A watch is asked for this long, and as long again at most.
	Watch time.Duration
	// WatchGrace is how much longer a watch may last than it was asked for. After that its
	// connection counts as dead.
	WatchGrace time.Duration
	// MaxSilence is how long after the server's last message a watch may still continue another.
	MaxSilence time.Duration
	// Permission is how long to wait until the server permits a read.
	Permission time.Duration
	// PageSize is how many objects one page of a list has.
	PageSize int
}

// NewReader returns a Reader. It sends nothing.
func NewReader(cfg ReaderConfig) *Reader {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Reader{cfg: cfg, client: cfg.Client, limit: newLimiter(), Tuning: Tuning{
		FirstRetry: 800 * time.Millisecond, LastRetry: 30 * time.Second, MinRetry: 800 * time.Millisecond, Confirm: 2 * time.Second,
		Watch: 5 * time.Minute, WatchGrace: 15 * time.Second, MaxSilence: 2 * time.Minute,
		Permission: 5 * time.Second, PageSize: 500,
	}}
}

// Transport returns the transport to the server, brought up to date with the kubeconfig.
func (r *Reader) Transport() (*Transport, error) { return r.client.Transport() }

// Release closes idle connections, unless they are shared.
func (r *Reader) Release() {
	if !r.cfg.Shared {
		r.client.CloseIdleConnections()
	}
}

// Delay returns how long to wait before the next try: longer and longer, and jittered
// so that nodes do not retry at the same moment. pause is the one before; its first
// value is first. err says why the last try failed: a server may ask for a longer wait.
func (r *Reader) Delay(pause *time.Duration, first time.Duration, err error) time.Duration {
	*pause = backoff.Next(*pause, first, r.Tuning.LastRetry)
	d := backoff.Jitter(*pause, 0.5, 1.5)
	if refused := (*statusError)(nil); errors.As(err, &refused) {
		d = max(d, min(refused.retryAfter, r.Tuning.LastRetry))
	}
	return d
}

// Recovered is Client.Recovered.
func (r *Reader) Recovered() <-chan struct{} { return r.client.Recovered() }

// Wait lets sleep wait for d, and returns its answer. The wait is shorter if returned, which
// is Returned from before the try that failed, is closed: so an outage ends for all that the
// client reads when it ends for one request. sleep waits for d or until or is closed.
func (r *Reader) Wait(d time.Duration, returned <-chan struct{}, sleep func(d time.Duration, or <-chan struct{}) bool) bool {
	least := min(d, backoff.Jitter(r.Tuning.MinRetry, 0.5, 1.5))
	return sleep(least, nil) && (least == d || sleep(d-least, returned))
}

// fetch reads one JSON document; ctx and fetchTimeout bound it.
func (r *Reader) fetch(ctx context.Context, q request, into any) error {
	ctx, stop := context.WithTimeout(ctx, fetchTimeout)
	defer stop()
	transport, err := r.Transport()
	if err != nil {
		return err
	}
	q.accept = jsonType
	response, err := transport.do(ctx, q) //nolint:bodyclose // body closes it
	if err != nil {
		return err
	}
	body, err := transport.body(response, fetchLimit)
	switch {
	case err != nil:
		return err
	case mediaType(response) != jsonType:
		return fmt.Errorf("%s: %w", transport.host, errNotAPI)
	case json.Unmarshal(body, into) != nil: // its error would repeat a part of the answer
		return fmt.Errorf("%s: %w", transport.host, errPartial)
	}
	return nil
}
