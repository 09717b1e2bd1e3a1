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
	"github.com/nodectl/nodectl/pkg/wakeup"
)

// Config is the configuration of a Supervisor.
type Config struct {
	// Dir is the directory of the control socket and of the record. Only its owner may enter it.
	Dir string
	// LogFile gets the standard error of the process: its log, and the stack of a panic.
	LogFile string
	// Address is the address of the server, which listens on port 53. Range is the range of
	// Services that contains the address.
	Address netip.Addr
	Range   netip.Prefix
	// Program is the executable of the process; "" is the executable of the agent.
	Program string
	Log     *slog.Logger
}

// Times of a Supervisor.
const (
	callLimit  = 3 * time.Second  // for an answer of the process; a long request gets more
	startLimit = 10 * time.Second // for the start of the process
	endLimit   = 5 * time.Second  // for the end of the process
	checkEvery = 10 * time.Second
	retryFirst = time.Second // the wait after the first failure; it doubles up to retryMost
	retryMost  = 30 * time.Second
)

// Supervisor starts the process, and restarts it when it ends. The process continues after the Supervisor.
type Supervisor struct {
	cfg Config

	wanted  atomic.Bool
	state   atomic.Pointer[server.State] // nil until SetState
	first   atomic.Pointer[server.State] // for a process without names, until SetState
	changed wakeup.Signal                // for Run
	counts  atomic.Pointer[server.Counts]

	serving atomic.Bool // the process ran when the lock was last released

	locked  chan struct{} // a lock for which a goroutine can stop waiting; it guards the fields below
	child   *conn         // nil while the process does not run
	failure error         // of the last attempt
	retry   time.Time     // no attempt before this time
	wait    time.Duration // the wait after the next failure
}

// New returns a Supervisor that does nothing until Enable.
func New(cfg Config) *Supervisor {
	return &Supervisor{cfg: cfg, changed: wakeup.New(), locked: make(chan struct{}, 1)}
}

// lock waits until no other goroutine uses the process.
func (s *Supervisor) lock() { s.locked <- struct{}{} }

// unlock releases the lock.
func (s *Supervisor) unlock() {
	s.serving.Store(s.child != nil)
	<-s.locked
}

// Enable makes Run start the server and keep it running. It does not wait for the start.
func (s *Supervisor) Enable() {
	if !s.wanted.Swap(true) {
		s.changed.Send()
	}
}

// Ensure waits until the server runs, has failed to start, or ctx ends. It does nothing before Enable.
func (s *Supervisor) Ensure(ctx context.Context) error {
	if !s.wanted.Load() {
		return nil
	}
	select {
	case s.locked <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer s.unlock()
	return s.ensure(ctx, time.Now())
}

// HasRun reports whether an earlier agent of this boot ran the server: running pods may have its
// address in their resolv.conf.
func (s *Supervisor) HasRun() bool {
	_, ok := load(s.cfg.Dir)
	return ok
}

// HasMoved reports whether an earlier agent of this boot ran the server with another address.
func (s *Supervisor) HasMoved() bool {
	r, ok := load(s.cfg.Dir)
	return ok && !slices.Contains(r.Addresses, s.cfg.Address)
}

// Servers returns the address of the server, or nothing if it does not run. It does not wait.
func (s *Supervisor) Servers() []string {
	if !s.serving.Load() {
		return nil
	}
	return []string{s.cfg.Address.String()}
}

// SetState replaces the state of the server. It does not wait for the process. Until the first
// call, a process of an earlier agent keeps its state. The process gets only the records that have
// changed since the last state, if it has that state.
func (s *Supervisor) SetState(to server.State) {
	s.state.Store(&to)
	s.changed.Send()
}

// SetFirst sets the state that a process without names has until SetState is called. With it, the
// process resolves names outside the cluster from its start. A process of an earlier agent that has
// names keeps them. SetFirst does not wait for the process.
func (s *Supervisor) SetFirst(to server.State) {
	to.Known, to.Services = false, nil
	s.first.Store(&to)
	s.changed.Send()
}

// Counts returns the last reported counters of the process.
func (s *Supervisor) Counts() server.Counts {
	if c := s.counts.Load(); c != nil {
		return *c
	}
	return server.Counts{}
}

// Run keeps the process running and its state current until ctx ends. The process then continues.
func (s *Supervisor) Run(ctx context.Context) {
	check := time.NewTicker(checkEvery)
	defer check.Stop()
	for {
		again := s.step(ctx)
		var ended <-chan struct{}
		s.lock()
		if s.child != nil {
			ended = s.child.ended
		}
		s.unlock()
		select {
		case <-ctx.Done():
			s.lock()
			defer s.unlock()
			s.release()
			return
		case <-s.changed:
		case <-ended:
		case <-check.C:
			s.check()
		case <-again:
		}
	}
}

// step starts the process if it does not run, and sends it the newest state. again receives a value
// when it is time for another attempt.
func (s *Supervisor) step(ctx context.Context) (again <-chan time.Time) {
	if !s.wanted.Load() {
		return nil
	}
	s.lock()
	defer s.unlock()
	now := time.Now()
	err := s.ensure(ctx, now)
	if err == nil {
		if err = s.replace(ctx); err != nil {
			s.kill()
			s.failed(now, fmt.Errorf("replace it: %w", err))
		} else if err = s.send(); err != nil {
			s.delay(now, err) // noteMissed has logged it
		} else {
			s.wait, s.retry = 0, time.Time{}
		}
	}
	if err != nil {
		return time.After(max(s.retry.Sub(now), 0))
	}
	return nil
}

// send sends the newest state. The lock is held.
func (s *Supervisor) send() error {
	if s.child == nil {
		return nil
	}
	newest := s.state.Load()
	switch {
	case newest == nil && s.child.nameless:
		newest = s.first.Load()
	case s.child.outdated: // the process that replaces it gets the state
		return nil
	}
	if newest == nil || s.child.sent == newest {
		return nil
	}
	if err := s.child.send(newest, s.cfg.Log); err != nil {
		err = fmt.Errorf("send it the Services: %w", err)
		s.noteMissed(err)
		return err
	}
	return nil
}

// maxMissed is the number of consecutive missing answers after which the agent kills the process.
// On a machine that is busy or short of memory, a healthy process may answer late.
const maxMissed = 3

// noteMissed counts a missing answer, and kills the process after maxMissed of them. The lock is held.
func (s *Supervisor) noteMissed(err error) {
	select {
	case <-s.child.ended: // ensure starts another one
		return
	default:
	}
	if errors.Is(err, errTooLong) { // the process is not the cause
		s.report(err)
		return
	}
	s.child.missed++
	s.cfg.Log.Warn("DNS server does not answer", "pid", s.child.pid, "times", s.child.missed, "error", err)
	if s.child.missed >= maxMissed {
		s.cfg.Log.Warn("Killing DNS server, to start it again", "pid", s.child.pid)
		s.kill()
	}
}

// check asks the process for its status. It adds the address again if another program has removed it.
// If the process has the state of another agent, the next step sends the newest state again.
func (s *Supervisor) check() {
	s.lock()
	defer s.unlock()
	if s.child == nil {
		return
	}
	now, err := s.child.status()
	if err != nil {
		s.noteMissed(err)
		return
	}
	s.counts.Store(&now.Counts)
	if s.child.checkNumber(now) {
		s.cfg.Log.Warn("DNS server has other Services than those sent last; sending them again", "pid", s.child.pid)
	}
	if err := s.address(); err != nil {
		s.report(err)
	}
}

// kill kills the process. The lock is held.
func (s *Supervisor) kill() {
	if s.child != nil {
		s.child.kill()
		s.release()
	}
}

// release closes the connection to the process. The lock is held.
func (s *Supervisor) release() {
	if s.child != nil {
		s.child.close()
		s.child = nil
	}
}

// ensure starts the process if it does not run. For some time after a failure, it only returns that
// failure. The lock is held.
func (s *Supervisor) ensure(ctx context.Context, now time.Time) error {
	if s.child != nil {
		select {
		case <-s.child.ended:
			s.cfg.Log.Warn("DNS server has ended; starting it again", "pid", s.child.pid, "log", s.cfg.LogFile)
			s.child.collect()
			s.release()
		default:
			return nil
		}
	}
	if now.Before(s.retry) {
		return s.failure
	}
	err := s.open(ctx)
	if err == nil {
		s.wait, s.failure, s.retry = 0, nil, time.Time{}
		err = s.send()
	}
	if err != nil {
		s.failed(now, err)
	}
	return err
}

// failed reports an error, and delays the next attempt. The lock is held.
func (s *Supervisor) failed(now time.Time, err error) {
	s.report(err)
	s.delay(now, err)
}

// delay delays the next attempt, and stores the reason. The lock is held.
func (s *Supervisor) delay(now time.Time, err error) {
	s.failure = err
	s.wait = min(max(2*s.wait, retryFirst), retryMost)
	s.retry = now.Add(s.wait)
}

// report logs a failure, unless it is the last one again. The lock is held.
func (s *Supervisor) report(err error) {
	if s.failure == nil || s.failure.Error() != err.Error() {
		s.cfg.Log.Error("Failed to run the DNS server; new pods get the name servers of the node", "error", err)
	}
	s.failure = err
}

// open adds the address, and adopts or starts the process. The lock is held.
func (s *Supervisor) open(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return errors.New("only root can run a DNS server for pods")
	}
	if err := os.MkdirAll(s.cfg.Dir, 0o700); err != nil {
		return err
	}
	if err := os.Chmod(s.cfg.Dir, 0o700); err != nil {
		return err
	}
	if s.HasMoved() {
		if err := Stop(s.cfg); err != nil { // the range of Services has changed
			return err
		}
	}
	if err := s.address(); err != nil {
		return err
	}
	old, err := adopt(s.cfg.Dir)
	if err != nil {
		return err
	}
	if old != nil {
		s.child, old.outdated, old.nameless = old, !old.isProgram(s.cfg.program()), !old.known
		s.cfg.Log.Info("Adopted DNS server", "pid", old.pid, "address", s.cfg.Address)
		return nil
	}
	sockets, err := bind(netip.AddrPortFrom(s.cfg.Address, 53))
	if err != nil {
		return err
	}
	defer closeAll(sockets)
	if s.child, err = s.start(ctx, sockets, nil); err != nil {
		return err
	}
	s.child.nameless = true
	s.cfg.Log.Info("Started DNS server", "pid", s.child.pid, "address", s.cfg.Address)
	return nil
}

// replace replaces a process of another version by a new one. It waits until the agent has a state,
// because until then only the old process has the names. The new process gets the sockets and the
// state before the old one stops. The lock is held.
func (s *Supervisor) replace(ctx context.Context) error {
	old := s.child
	if old == nil || !old.outdated || s.state.Load() == nil {
		return nil
	}
	s.child = nil
	defer old.close()
	sockets, err := old.sockets(s.cfg.Address)
	if err != nil {
		old.kill()
		return fmt.Errorf("take over the sockets of the DNS server: %w", err)
	}
	defer closeAll(sockets)
	next, err := s.start(ctx, sockets, old)
	if err != nil {
		old.kill() // start has replaced its control socket
		return err
	}
	s.child = next
	err = s.send()
	if err == nil {
		_, err = old.call(request{Op: opStop})
	}
	if err != nil || !old.waitEnd(endLimit) {
		old.kill()
	}
	s.cfg.Log.Info("Replaced DNS server", "pid", next.pid, "before", old.pid, "address", s.cfg.Address)
	return save(s.cfg, next.pid)
}

func (c Config) program() string {
	if c.Program != "" {
		return c.Program
	}
	return "/proc/self/exe"
}

// address adds the address of the server to the loopback interface, and records it.
func (s *Supervisor) address() error {
	had, err := usageOf(s.cfg.Address)
	if err != nil {
		return err
	}
	if had.ours {
		return nil
	}
	if err := had.conflict(s.cfg.Address, s.cfg.Range); err != nil {
		return err
	}
	if wider := had.widerRoute(s.cfg.Address); wider != "" {
		s.cfg.Log.Warn("The address of the DNS server hides an address of a network to which this machine has a route", "address", s.cfg.Address, "route", wider)
	}
	if _, recorded := load(s.cfg.Dir); !recorded {
		if err := save(s.cfg); err != nil { // before the address is added, so that it is always removed later
			return err
		}
	}
	return changeAddress(s.cfg.Address, true)
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
		if had, err := usageOf(a); err != nil {
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
