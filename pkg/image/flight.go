package image

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
)

// errClosed is the error of a pull that was not finished when Run ended.
var errClosed = errors.New("image pulls have stopped")

// settleDelay is how long after a cancelled pull its image may still appear: the runtime may see
// the cancellation only while it writes.
const settleDelay = 3 * time.Second

// flightKey identifies a pull by its image and its credentials.
type flightKey [sha256.Size]byte

// A flight is one pull that any number of pods wait for. Run starts its goroutine.
type flight struct {
	Pull  // Waiting is guarded by Puller.mu
	key   flightKey
	want  *pod.Spec // of the first pod that asked
	name  name
	creds []credential

	waiters int // guarded by Puller.mu; at 0 the flight is cancelled
	ctx     context.Context
	cancel  context.CancelFunc
	done    chan struct{} // closed when the fields below are set
	err     error
	took    time.Duration // of the pull itself
	bytes   int64         // of the image; 0 means unknown
	unseen  bool          // it may have left an image that needs credentials
}

// registryLimit limits the concurrent pulls from one registry.
type registryLimit struct {
	free  chan struct{} // one token for each turn that is taken
	users int           // flights that have one or wait for one; guarded by Puller.mu
}

// Run pulls what PullImage asks for until ctx ends. It returns when the last pull
// has ended; PullImage then fails.
func (p *Puller) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		select {
		case <-p.wake:
			for _, f := range p.queued(false) {
				wg.Go(func() { p.runFlight(ctx, f) })
			}
		case <-ctx.Done():
			for _, f := range p.queued(true) {
				p.finish(f, errClosed)
			}
			return
		}
	}
}

// queued takes all flights off the queue; last closes the queue for new ones.
func (p *Puller) queued(last bool) []*flight {
	p.mu.Lock()
	defer p.mu.Unlock()
	q := p.queue
	p.queue, p.closed = nil, last
	return q
}

// Pulls returns the pulls under way, the oldest first.
func (p *Puller) Pulls() []Pull {
	p.mu.Lock()
	var all []Pull
	for _, f := range p.flights {
		all = append(all, f.Pull)
	}
	p.mu.Unlock()
	slices.SortFunc(all, func(a, b Pull) int {
		if c := a.Since.Compare(b.Since); c != 0 {
			return c
		}
		return strings.Compare(a.Image, b.Image)
	})
	return all
}

// share waits for the flight that pulls n with creds; the first caller starts it.
func (p *Puller) share(ctx context.Context, want *pod.Spec, n name, creds []credential) (*flight, error) {
	if err := ctx.Err(); err != nil {
		return nil, err // the list of credentials may be incomplete
	}
	key := keyOf(n, creds)
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, errClosed
	}
	f := p.flights[key]
	if f == nil {
		f = &flight{
			Pull: Pull{Image: n.image, Since: time.Now(), Waiting: true},
			key:  key, want: want, name: n, creds: creds, done: make(chan struct{}),
		}
		f.ctx, f.cancel = context.WithCancel(context.Background()) // it outlives its first caller; Run ends it
		p.flights[key] = f
		p.queue = append(p.queue, f)
		select {
		case p.wake <- struct{}{}:
		default:
		}
	}
	f.waiters++
	p.mu.Unlock()
	select {
	case <-f.done:
		return f, f.err
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if f.waiters--; f.waiters == 0 {
		p.forget(f) // a later caller starts a new flight
		f.cancel()
	}
	return nil, ctx.Err()
}

// forget removes f from the flights that callers can join. The caller holds the mutex.
func (p *Puller) forget(f *flight) {
	if p.flights[f.key] == f {
		delete(p.flights, f.key)
	}
}

// runFlight runs a flight from its turn at the registry to its end.
func (p *Puller) runFlight(ctx context.Context, f *flight) {
	stop := context.AfterFunc(ctx, f.cancel)
	defer stop()
	if f.ctx.Err() != nil { // all waiters left before it began
		p.finish(f, f.ctx.Err())
		return
	}
	p.cfg.Observe(Event{Pull: f.Pull})
	p.cfg.Log.Info("Pulling image", "image", f.Image)
	err := p.pull(f)
	switch took := time.Since(f.Since).Round(time.Millisecond); {
	case f.ctx.Err() != nil:
		p.cfg.Log.Info("Image pull canceled", "image", f.Image, "took", took)
	case err == nil:
		p.cfg.Log.Info("Image pulled", "image", f.Image, "took", took)
	}
	p.mu.Lock()
	p.forget(f) // before the event and the waiters' return: Pulls no longer lists it then
	p.mu.Unlock()
	p.cfg.Observe(Event{Pull: f.Pull, Over: true, Err: err})
	p.finish(f, err)
	if f.unseen {
		p.recordOutcome(ctx, f)
	}
}

// recordOutcome records the outcome of a flight whose pull was cancelled or timed out. If that
// fails the intent stays, and the next pull or the next agent tries again.
func (p *Puller) recordOutcome(ctx context.Context, f *flight) {
	select {
	case <-time.After(settleDelay):
	case <-ctx.Done():
		return
	}
	if err := p.settle(ctx, f.want); err != nil {
		p.cfg.Log.Warn("Failed to find out whether an image was pulled", "image", f.Image, "error", err)
	}
}

// finish ends a flight and wakes all its waiters.
func (p *Puller) finish(f *flight, err error) {
	p.mu.Lock()
	p.forget(f)
	p.mu.Unlock()
	f.cancel()
	f.err = err
	close(f.done)
}

// pull waits for a turn at the registry, pulls, and records which credential served. It
// records the intent first, because every pod may use an image without a record.
func (p *Puller) pull(f *flight) error {
	if err := p.acquire(f); err != nil {
		return err
	}
	defer p.release(f)
	if err := p.records.intend(f.name); err != nil {
		return &pod.StartError{Reason: reasonPull, Err: fmt.Errorf("pull image %s: %w", f.Image, err)}
	}
	began := time.Now()
	used, err := p.fetch(f)
	f.took = time.Since(began)
	if err == nil {
		f.bytes = p.size(f)
		// Record the ID that FindImage returns: a runtime may answer a pull with a digest.
		var id string
		if id, err = p.cfg.Runtime.FindImage(f.ctx, f.want, f.Image); err == nil && id == "" {
			err = errors.New("the image is not there after its pull")
		}
		if err == nil {
			err = p.records.pulled(id, f.name, used)
		}
		if err != nil { // the intent stays, so that the image is not open to every pod
			f.unseen = true
			p.records.unsure(f.name)
			p.cfg.Log.Warn("Failed to record image pull; the next pod asks the registry again", "image", f.Image, "error", err)
			return nil
		}
	}
	if f.unseen {
		p.records.unsure(f.name)
		return err
	}
	p.records.done(f.name)
	return err
}

// size returns the size of the pulled image, 0 if the runtime does not report it.
func (p *Puller) size(f *flight) int64 {
	rt, ok := p.cfg.Runtime.(interface {
		ImageBytes(ctx context.Context, want *pod.Spec, name string) (int64, error)
	})
	if !ok {
		return 0
	}
	n, err := rt.ImageBytes(f.ctx, f.want, f.Image)
	if err != nil {
		p.cfg.Log.Debug("Failed to read the size of an image", "image", f.Image, "error", err)
	}
	return n
}

// fetch tries the credentials in the kubelet's order (C-1.39.5), or pulls once without any,
// and returns the credential that served.
func (p *Puller) fetch(f *flight) (used credential, err error) {
	creds := f.creds
	if len(creds) == 0 {
		creds = []credential{{}}
	}
	var texts []string
	var failed *pod.StartError
	unseen := false
	for _, c := range creds {
		_, err := p.cfg.Runtime.FetchImage(f.ctx, f.want, f.Image, c.user, c.password)
		if err == nil {
			return c, nil
		}
		// Every pod may use an image that was pulled without a secret, or that was there
		// before.
		unseen = unseen || c.secret != nil && (f.ctx.Err() != nil || !isAnswer(err))
		if !errors.As(err, &failed) || f.ctx.Err() != nil {
			f.unseen = unseen
			return c, err
		}
		if text := failed.Err.Error(); !slices.Contains(texts, text) {
			texts = append(texts, text)
		}
	}
	f.unseen = unseen
	if len(texts) == 1 {
		return credential{}, failed
	}
	return credential{}, &pod.StartError{Reason: failed.Reason, Err: errors.New(strings.Join(texts, "; ")), Final: failed.Final}
}

// isAnswer reports whether an error is the runtime's answer about the image. A timeout is
// not, though it comes as a StartError.
func isAnswer(err error) bool {
	var failed *pod.StartError
	return errors.As(err, &failed) && !errors.Is(failed.Err, pod.ErrTimeout)
}

// acquire waits until one more image may be pulled from the registry.
func (p *Puller) acquire(f *flight) error {
	p.mu.Lock()
	t := p.limits[f.name.registry]
	if t == nil {
		t = &registryLimit{free: make(chan struct{}, p.cfg.PerRegistry)}
		p.limits[f.name.registry] = t
	}
	t.users++
	p.mu.Unlock()
	select {
	case t.free <- struct{}{}:
		if err := f.ctx.Err(); err != nil { // both channels were ready
			p.release(f)
			return err
		}
		p.mu.Lock()
		f.Waiting = false
		p.mu.Unlock()
		return nil
	case <-f.ctx.Done():
		p.leave(f)
		return f.ctx.Err()
	}
}

// release frees the turn of f for the next flight.
func (p *Puller) release(f *flight) {
	p.mu.Lock()
	t := p.limits[f.name.registry]
	p.mu.Unlock()
	<-t.free
	p.leave(f)
}

func (p *Puller) leave(f *flight) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.limits[f.name.registry]
	if t.users--; t.users == 0 {
		delete(p.limits, f.name.registry)
	}
}

func keyOf(n name, creds []credential) flightKey {
	sum := sha256.New()
	fmt.Fprintf(sum, "%q", n.image)
	for _, c := range creds {
		fmt.Fprintf(sum, "%q%q%t", c.user, c.password, c.secret != nil)
	}
	return flightKey(sum.Sum(nil))
}
