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

// lateImageDelay is how long after a pull with an unknown outcome its image may still appear: the
// runtime may notice a cancellation only while it stores the image.
const lateImageDelay = 3 * time.Second

// flightKey identifies a pull by its image and its credentials.
type flightKey [sha256.Size]byte

// A flight is one pull that one or more pods wait for. Run starts its goroutine.
type flight struct {
	Pull  // Waiting is guarded by Puller.mu
	key   flightKey
	want  *pod.Spec // the pod that started the pull
	name  name
	creds []credential

	waiters int // guarded by Puller.mu; at 0 the flight is cancelled
	ctx     context.Context
	cancel  context.CancelFunc
	done    chan struct{} // closed when the fields below are set
	err     error
	took    time.Duration // of the pull, without the wait for the registry limit
	bytes   int64         // size of the image; 0 means unknown
	unknown bool          // the outcome of the pull is unknown, see records
}

// pendingAfter is how long a pull takes before the waiting pods report that it is pending.
const pendingAfter = time.Minute

// rateWait is how long a pull waits for its turn under the pull rate. The kubelet does not wait,
// and tries a pull that exceeds the rate again after this time (C-1.39.8).
const rateWait = 10 * time.Second

// registryLimit limits the concurrent pulls from one registry.
type registryLimit struct {
	running chan struct{} // one token for each running pull; its capacity is the limit
	flights int           // flights that run or wait for the limit; guarded by Puller.mu
}

// Run carries out the pulls of PullImage until ctx ends. It returns when the last pull has
// ended. PullImage then returns an error.
func (p *Puller) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		select {
		case <-p.wake:
			for _, f := range p.takeQueue(false) {
				wg.Go(func() { p.runFlight(ctx, f) })
			}
		case <-ctx.Done():
			for _, f := range p.takeQueue(true) {
				p.finish(f, errClosed)
			}
			return
		}
	}
}

// takeQueue removes all flights from the queue and returns them. With last, the queue accepts no
// more flights.
func (p *Puller) takeQueue(last bool) []*flight {
	p.mu.Lock()
	defer p.mu.Unlock()
	q := p.queue
	p.queue, p.closed = nil, last
	return q
}

// Pulls returns the pulls that run or wait for their registry limit, the oldest first.
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

// share waits for the flight that pulls n with creds. The first caller starts it; it is cancelled
// when the last caller's ctx has ended. It calls pending as await does.
func (p *Puller) share(ctx context.Context, want *pod.Spec, n name, creds []credential, pending func(queued bool)) (*flight, error) {
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
		p.wake.Send()
	}
	f.waiters++
	p.mu.Unlock()
	return p.await(ctx, f, pending)
}

// await waits for the end of a flight. It calls pending while the flight takes long: after
// pendingAfter, and then each time after twice the time before. queued says that the flight waits
// for other pulls.
func (p *Puller) await(ctx context.Context, f *flight, pending func(queued bool)) (*flight, error) {
	for pause := pendingAfter; ; pause *= 2 {
		select {
		case <-f.done:
			return f, f.err
		case <-ctx.Done():
			p.mu.Lock()
			defer p.mu.Unlock()
			if f.waiters--; f.waiters == 0 {
				p.removeFlight(f) // a later caller starts a new flight
				f.cancel()
			}
			return nil, ctx.Err()
		case <-time.After(pause):
			p.mu.Lock()
			queued := f.Waiting
			p.mu.Unlock()
			pending(queued)
		}
	}
}

// removeFlight removes f from the flights that callers can join. The caller holds the mutex.
func (p *Puller) removeFlight(f *flight) {
	if p.flights[f.key] == f {
		delete(p.flights, f.key)
	}
}

// runFlight carries out the pull of a flight and wakes the waiters.
func (p *Puller) runFlight(ctx context.Context, f *flight) {
	stop := context.AfterFunc(ctx, f.cancel)
	defer stop()
	if f.ctx.Err() != nil { // no pod waits any more
		p.finish(f, f.ctx.Err())
		return
	}
	p.cfg.Observe(Event{Pull: f.Pull})
	by, name := requester(f.want)
	p.cfg.Log.Info("Pulling image", "image", f.Image, by, name)
	err := p.pull(f)
	switch took := time.Since(f.Since).Round(time.Millisecond); {
	case f.ctx.Err() != nil:
		reason := "no pod or command needs the image any more"
		if ctx.Err() != nil {
			reason = "the agent is exiting"
		}
		p.cfg.Log.Info("Image pull canceled", "image", f.Image, "reason", reason, "took", took)
	case err == nil:
		p.cfg.Log.Info("Image pulled", "image", f.Image, "took", took)
	}
	p.mu.Lock()
	p.removeFlight(f) // first, so that Pulls no longer lists it when the event comes and the waiters return
	p.mu.Unlock()
	p.cfg.Observe(Event{Pull: f.Pull, Over: true, Err: err})
	p.finish(f, err)
	if f.unknown {
		p.recordUnknownLater(ctx, f)
	}
}

// requester returns the first pod that asked for a pull, as key and value for the log. A spec without
// a UID is that of the command "nodectl pull".
func requester(want *pod.Spec) (key, value string) {
	if want.UID() == "" {
		return "requested_by", "nodectl pull"
	}
	return "pod", want.Key.String()
}

// recordUnknownLater calls recordUnknownPulls when the image of a flight with an unknown outcome
// can no longer appear. If that fails, the intent stays, and the next pull or the next agent
// tries again.
func (p *Puller) recordUnknownLater(ctx context.Context, f *flight) {
	select {
	case <-time.After(lateImageDelay):
	case <-ctx.Done():
		return
	}
	if err := p.recordUnknownPulls(ctx, f.want); err != nil {
		p.cfg.Log.Warn("Failed to check an image pull with unknown outcome", "image", f.Image, "error", err)
	}
}

// finish ends a flight and wakes all its waiters.
func (p *Puller) finish(f *flight, err error) {
	p.mu.Lock()
	p.removeFlight(f)
	p.mu.Unlock()
	f.cancel()
	f.err = err
	close(f.done)
}

// pull waits for the registry limit, pulls, and records the credential that pulled the image. It
// writes the intent first, because every pod may use an image that has neither an intent nor a
// pulled record.
func (p *Puller) pull(f *flight) error {
	if err := p.acquire(f); err != nil {
		return err
	}
	defer p.release(f)
	if err := p.records.beginPull(f.name); err != nil {
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
			err = errors.New("image not found after its pull")
		}
		if err == nil {
			err = p.records.recordPulled(id, f.name, used)
		}
		if err != nil { // the intent stays: without it, every pod could use the image
			f.unknown = true
			p.records.endUnknown(f.name)
			p.cfg.Log.Warn("Failed to record image pull; the next pod asks the registry again", "image", f.Image, "error", err)
			return nil
		}
	}
	if f.unknown {
		p.records.endUnknown(f.name)
		return err
	}
	p.records.endPull(f.name)
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

// fetch tries the credentials in the kubelet's order (C-1.39.5), or pulls once without any, and
// returns the credential that pulled the image. If none did, f.unknown is whether the outcome of
// the pull is unknown.
func (p *Puller) fetch(f *flight) (used credential, err error) {
	creds := f.creds
	if len(creds) == 0 {
		creds = []credential{{}}
	}
	var texts []string
	var failed *pod.StartError
	unknown := false
	for _, c := range creds {
		_, err := p.cfg.Runtime.FetchImage(f.ctx, f.want, f.Image, c.user, c.password)
		if err == nil {
			return c, nil
		}
		// Without a pull secret the outcome does not matter: every pod may use the image.
		unknown = unknown || c.secret != nil && (f.ctx.Err() != nil || !runtimeAnswered(err))
		if !errors.As(err, &failed) || f.ctx.Err() != nil {
			f.unknown = unknown
			return c, err
		}
		if text := failed.Err.Error(); !slices.Contains(texts, text) {
			texts = append(texts, text)
		}
	}
	f.unknown = unknown
	if len(texts) == 1 {
		return credential{}, failed
	}
	return credential{}, &pod.StartError{Reason: failed.Reason, Err: errors.New(strings.Join(texts, "; ")), Final: failed.Final}
}

// runtimeAnswered reports whether an error of a Runtime is the runtime's answer about the image.
// After any other error, the call may still take effect.
func runtimeAnswered(err error) bool {
	var failed *pod.StartError
	return errors.As(err, &failed) && !errors.Is(failed.Err, pod.ErrTimeout)
}

// acquire waits until the registry limit and then the pull rate allow one more pull. Each
// successful call needs a release.
func (p *Puller) acquire(f *flight) error {
	p.mu.Lock()
	l := p.limits[f.name.registry]
	if l == nil {
		l = &registryLimit{running: make(chan struct{}, p.cfg.PerRegistry)}
		p.limits[f.name.registry] = l
	}
	l.flights++
	p.mu.Unlock()
	select {
	case l.running <- struct{}{}:
		if err := p.awaitRate(f.ctx); err != nil {
			p.release(f)
			return err
		}
		p.mu.Lock()
		f.Waiting = false
		p.mu.Unlock()
		return nil
	case <-f.ctx.Done():
		p.leaveLimit(f)
		return f.ctx.Err()
	}
}

// awaitRate waits until the pull rate allows one more pull. It fails at once if that would take
// longer than rateWait.
func (p *Puller) awaitRate(ctx context.Context) error {
	turn := p.rate.Reserve()
	if turn.Delay() > rateWait {
		turn.Cancel()
		return &pod.StartError{Reason: reasonPull, Err: errors.New("pull QPS exceeded")}
	}
	select {
	case <-time.After(turn.Delay()):
	case <-ctx.Done():
		turn.Cancel()
	}
	return ctx.Err()
}

// release lets the next flight of the registry pull.
func (p *Puller) release(f *flight) {
	p.mu.Lock()
	l := p.limits[f.name.registry]
	p.mu.Unlock()
	<-l.running
	p.leaveLimit(f)
}

// leaveLimit removes f from the flights of its registry limit, and the limit with the last one.
func (p *Puller) leaveLimit(f *flight) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.limits[f.name.registry]
	if l.flights--; l.flights == 0 {
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
