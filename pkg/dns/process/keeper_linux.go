package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nodectl/nodectl/pkg/dns/server"
)

// Config is the configuration of a Keeper.
type Config struct {
	// Dir is the directory of the control socket and of the record. Only its owner may enter it.
	Dir string
	// LogFile gets the output of a process that ends by a panic.
	LogFile string
	// Address is the address of the server, which listens on port 53. Range is the range of
	// Services that contains the address.
	Address netip.Addr
	Range   netip.Prefix
	// Program is the executable of the process; "" is the executable of the agent.
	Program string
	Log     *slog.Logger
}

// Times of a Keeper.
const (
	callLimit  = 3 * time.Second  // for an answer of the process, and more for a long request
	startLimit = 10 * time.Second // for its start
	endLimit   = 5 * time.Second  // for its end
	checkEvery = 10 * time.Second
	retryFirst = time.Second // first wait after a failure; it doubles
	retryMost  = 30 * time.Second
)

// Keeper keeps the process running. The process outlives it.
type Keeper struct {
	cfg Config

	wanted  atomic.Bool
	state   atomic.Pointer[server.State] // nil until SetState
	first   atomic.Pointer[server.State] // for a process without names, until SetState
	changed chan struct{}
	counts  atomic.Pointer[server.Counts]

	serving atomic.Bool // the process ran when the lock was last released

	held    chan struct{} // a lock whose waiters can give up; it guards the fields below
	child   *conn         // nil while the process does not run
	failure error         // of the last attempt
	retry   time.Time     // no attempt before this time
	wait    time.Duration // the wait after the next failure
}

// New returns a Keeper that does nothing until Want.
func New(cfg Config) *Keeper {
	return &Keeper{cfg: cfg, changed: make(chan struct{}, 1), held: make(chan struct{}, 1)}
}

// lock waits until no other goroutine uses the process.
func (k *Keeper) lock() { k.held <- struct{}{} }

// unlock releases the lock.
func (k *Keeper) unlock() {
	k.serving.Store(k.child != nil)
	<-k.held
}

// Want makes the server run from now on. It does not wait for its start.
func (k *Keeper) Want() {
	if !k.wanted.Swap(true) {
		k.kick()
	}
}

// Ensure waits until the server runs, has failed to start, or ctx ends. It does nothing before Want.
func (k *Keeper) Ensure(ctx context.Context) error {
	if !k.wanted.Load() {
		return nil
	}
	select {
	case k.held <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer k.unlock()
	return k.ensure(ctx, time.Now())
}

// Used reports whether an earlier agent of this boot ran the server: running pods may have its
// address in their resolv.conf.
func (k *Keeper) Used() bool {
	_, ok := load(k.cfg.Dir)
	return ok
}

// Moved reports whether an earlier agent of this boot ran the server with another address.
func (k *Keeper) Moved() bool {
	r, ok := load(k.cfg.Dir)
	return ok && !slices.Contains(r.Addresses, k.cfg.Address)
}

// Servers returns the address of the server, or nothing if it does not run. It does not wait.
func (k *Keeper) Servers() []string {
	if !k.serving.Load() {
		return nil
	}
	return []string{k.cfg.Address.String()}
}

// SetState replaces the state of the server. It does not wait for the process. Until the first
// call, a process of an earlier agent keeps its state.
func (k *Keeper) SetState(s server.State) {
	k.state.Store(&s)
	k.kick()
}

// SetFirst sets the state of a process without names until SetState is called: from its start, the
// process resolves names outside the cluster. A process of an earlier agent that has names keeps
// them. It does not wait for the process.
func (k *Keeper) SetFirst(s server.State) {
	s.Known, s.Services = false, nil
	k.first.Store(&s)
	k.kick()
}

// kick wakes up Run.
func (k *Keeper) kick() {
	select {
	case k.changed <- struct{}{}:
	default:
	}
}

// Counts returns the last reported counters of the process.
func (k *Keeper) Counts() server.Counts {
	if c := k.counts.Load(); c != nil {
		return *c
	}
	return server.Counts{}
}

// Run keeps the process running and its state current until ctx ends. The process then continues.
func (k *Keeper) Run(ctx context.Context) {
	check := time.NewTicker(checkEvery)
	defer check.Stop()
	for {
		again := k.keep(ctx)
		var ended <-chan struct{}
		k.lock()
		if k.child != nil {
			ended = k.child.ended
		}
		k.unlock()
		select {
		case <-ctx.Done():
			k.lock()
			defer k.unlock()
			k.release()
			return
		case <-k.changed:
		case <-ended:
		case <-check.C:
			k.check()
		case <-again:
		}
	}
}

// keep starts the process if it does not run, and sends it the newest state. again receives when it
// is time for another attempt.
func (k *Keeper) keep(ctx context.Context) (again <-chan time.Time) {
	if !k.wanted.Load() {
		return nil
	}
	k.lock()
	defer k.unlock()
	now := time.Now()
	err := k.ensure(ctx, now)
	if err == nil {
		if err = k.replace(ctx); err != nil {
			k.fail()
			k.failed(now, fmt.Errorf("replace it: %w", err))
		} else if err = k.send(); err != nil {
			k.later(now, err) // miss has logged it
		} else {
			k.wait, k.retry = 0, time.Time{}
		}
	}
	if err != nil {
		return time.After(max(k.retry.Sub(now), 0))
	}
	return nil
}

// send sends the newest state. The lock is held.
func (k *Keeper) send() error {
	if k.child == nil {
		return nil
	}
	newest := k.state.Load()
	switch {
	case newest == nil && k.child.bare:
		newest = k.first.Load()
	case k.child.outdated: // the process that replaces it gets the state
		return nil
	}
	if newest == nil || k.child.sent == newest {
		return nil
	}
	if _, err := k.child.call(request{Op: opState, State: newest}); err != nil {
		err = fmt.Errorf("give it the Services: %w", err)
		k.miss(err)
		return err
	}
	k.child.sent = newest
	return nil
}

// maxMissed is the number of consecutive missing answers after which the agent kills the process.
// On a machine that is busy or short of memory, a healthy process may answer late.
const maxMissed = 3

// miss counts a missing answer, and kills the process after maxMissed of them. The lock is held.
func (k *Keeper) miss(err error) {
	select {
	case <-k.child.ended: // ensure starts another one
		return
	default:
	}
	if errors.Is(err, errTooLong) { // the process is not the cause
		k.report(err)
		return
	}
	k.child.missed++
	k.cfg.Log.Warn("DNS server does not answer", "pid", k.child.pid, "times", k.child.missed, "error", err)
	if k.child.missed >= maxMissed {
		k.cfg.Log.Warn("Killing DNS server, to start it again", "pid", k.child.pid)
		k.fail()
	}
}

// check asks the process for its status, and adds its address again if another program has removed
// it.
func (k *Keeper) check() {
	k.lock()
	defer k.unlock()
	if k.child == nil {
		return
	}
	now, err := k.child.status()
	if err != nil {
		k.miss(err)
		return
	}
	k.counts.Store(&now.Counts)
	if err := k.address(); err != nil {
		k.report(err)
	}
}

// fail kills the process. The lock is held.
func (k *Keeper) fail() {
	if k.child != nil {
		k.child.kill()
		k.release()
	}
}

// release closes the connection to the process. The lock is held.
func (k *Keeper) release() {
	if k.child != nil {
		k.child.close()
		k.child = nil
	}
}

// ensure starts the process if it does not run. For some time after a failure, it does nothing but
// return that failure. The lock is held.
func (k *Keeper) ensure(ctx context.Context, now time.Time) error {
	if k.child != nil {
		select {
		case <-k.child.ended:
			k.cfg.Log.Warn("DNS server has ended, starting it again", "pid", k.child.pid, "log", k.cfg.LogFile)
			k.child.collect()
			k.release()
		default:
			return nil
		}
	}
	if now.Before(k.retry) {
		return k.failure
	}
	err := k.open(ctx)
	if err == nil {
		k.wait, k.failure, k.retry = 0, nil, time.Time{}
		err = k.send()
	}
	if err != nil {
		k.failed(now, err)
	}
	return err
}

// failed reports an error, and delays the next attempt. The lock is held.
func (k *Keeper) failed(now time.Time, err error) {
	k.report(err)
	k.later(now, err)
}

// later delays the next attempt, and stores the reason. The lock is held.
func (k *Keeper) later(now time.Time, err error) {
	k.failure = err
	k.wait = min(max(2*k.wait, retryFirst), retryMost)
	k.retry = now.Add(k.wait)
}

// report logs a failure once. The lock is held.
func (k *Keeper) report(err error) {
	if k.failure == nil || k.failure.Error() != err.Error() {
		k.cfg.Log.Error("Failed to run the DNS server, new pods get the name servers of the node", "error", err)
	}
	k.failure = err
}

// open adds the address, and adopts or starts the process. The lock is held.
func (k *Keeper) open(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return errors.New("only root can run a DNS server for pods")
	}
	if err := os.MkdirAll(k.cfg.Dir, 0o700); err != nil {
		return err
	}
	if err := os.Chmod(k.cfg.Dir, 0o700); err != nil {
		return err
	}
	if k.Moved() {
		if err := Stop(k.cfg); err != nil { // the range of Services has changed
			return err
		}
	}
	if err := k.address(); err != nil {
		return err
	}
	old, err := adopt(k.cfg.Dir)
	if err != nil {
		return err
	}
	if old != nil {
		k.child, old.outdated, old.bare = old, !old.isProgram(k.cfg.program()), !old.known
		k.cfg.Log.Info("Adopted DNS server", "pid", old.pid, "address", k.cfg.Address)
		return nil
	}
	sockets, err := bind(netip.AddrPortFrom(k.cfg.Address, 53))
	if err != nil {
		return err
	}
	defer closeAll(sockets)
	if k.child, err = k.start(ctx, sockets, nil); err != nil {
		return err
	}
	k.child.bare = true
	k.cfg.Log.Info("Started DNS server", "pid", k.child.pid, "address", k.cfg.Address)
	return nil
}

// replace replaces a process of another version by a new one. It waits until the agent has a state,
// because until then only the old process has the names. The new process gets the sockets and the
// state before the old one stops. The lock is held.
func (k *Keeper) replace(ctx context.Context) error {
	old := k.child
	if old == nil || !old.outdated || k.state.Load() == nil {
		return nil
	}
	k.child = nil
	defer old.close()
	sockets, err := old.sockets(k.cfg.Address)
	if err != nil {
		old.kill()
		return fmt.Errorf("take the sockets of the DNS server over: %w", err)
	}
	defer closeAll(sockets)
	next, err := k.start(ctx, sockets, old)
	if err != nil {
		old.kill() // its control socket has been replaced
		return err
	}
	k.child = next
	err = k.send()
	if err == nil {
		_, err = old.call(request{Op: opStop})
	}
	if err != nil || !old.waitEnd(endLimit) {
		old.kill()
	}
	k.cfg.Log.Info("Replaced DNS server", "pid", next.pid, "before", old.pid, "address", k.cfg.Address)
	return save(k.cfg, next.pid)
}

func (c Config) program() string {
	if c.Program != "" {
		return c.Program
	}
	return "/proc/self/exe"
}

// address adds the address of the server to the loopback interface, and records it.
func (k *Keeper) address() error {
	had, err := present(k.cfg.Address)
	if err != nil {
		return err
	}
	if had.ours {
		return nil
	}
	if err := had.conflict(k.cfg.Address, k.cfg.Range); err != nil {
		return err
	}
	if wider := had.wider(k.cfg.Address); wider != "" {
		k.cfg.Log.Warn("The address of the DNS server hides one of a network that this machine has a route to", "address", k.cfg.Address, "route", wider)
	}
	if _, recorded := load(k.cfg.Dir); !recorded {
		if err := save(k.cfg); err != nil { // before the address is added, so that it is always removed later
			return err
		}
	}
	return changeAddress(k.cfg.Address, true)
}

// Stop stops the process of a directory, and removes its address.
func Stop(cfg Config) error {
	r, recorded := load(cfg.Dir)
	c, err := adopt(cfg.Dir)
	if err != nil {
		return err
	}
	if c == nil && !recorded {
		return nil
	}
	if c != nil {
		if _, err := c.call(request{Op: opStop}); err != nil || !c.waitEnd(endLimit) {
			c.kill()
		}
		c.close()
	}
	var errs []error
	for _, a := range r.Addresses {
		if had, err := present(a); err != nil {
			errs = append(errs, err)
		} else if had.ours {
			errs = append(errs, changeAddress(a, false))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove the address of the DNS server: %w", err)
	}
	return forget(cfg.Dir)
}
