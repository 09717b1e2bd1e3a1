package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime/pprof"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/nodectl/nodectl/pkg/backoff"
)

// supervisor notifies the service manager that started this agent (systemd's
// Type=notify); without one it does nothing.
type supervisor struct {
	log *slog.Logger
	// checks must all succeed before the supervisor resets the watchdog.
	checks []func(context.Context) error
	// answering is closed once the local socket answers. If it is nil, run does not wait for it.
	answering <-chan struct{}
	// dump is the file that receives the stacks of all goroutines when a check fails.
	dump string
}

// checksPerInterval is how often the checks run in one watchdog interval.
const checksPerInterval = 3

// readyTimeout is how long run waits for the socket, and then for the first success of all checks.
const readyTimeout = 10 * time.Second

// run sends READY, resets the watchdog while all checks succeed, and sends STOPPING at the end of
// ctx.
func (s *supervisor) run(ctx context.Context) {
	defer s.notify(daemon.SdNotifyStopping)
	if s.answering != nil {
		select {
		case <-s.answering:
		case <-time.After(readyTimeout):
		case <-ctx.Done():
			return
		}
	}
	err := s.check(ctx, readyTimeout)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		s.log.Warn("Agent serves, but a health check still fails", "reason", err)
	}
	for wait := firstNotifyRetry; !s.notify(daemon.SdNotifyReady); wait = backoff.Next(wait, firstNotifyRetry, lastNotifyRetry) { // without READY, systemd does not consider the service started
		if !backoff.Sleep(ctx, wait) {
			return
		}
	}
	interval, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		s.log.Warn("Failed to read the watchdog interval of the service manager", "error", err)
	}
	if interval <= 0 {
		<-ctx.Done()
		return
	}
	tick := time.NewTicker(interval / checksPerInterval)
	defer tick.Stop()
	for healthy := true; ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		err := s.check(ctx, interval/checksPerInterval)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			healthy = true
			s.notify(daemon.SdNotifyWatchdog)
		case healthy:
			healthy = false
			s.log.Error("Health check failed; not resetting the watchdog", "reason", err, "goroutines", s.writeDump())
		}
	}
}

// check runs all checks, each with its own timeout.
func (s *supervisor) check(ctx context.Context, limit time.Duration) error {
	for _, check := range s.checks {
		ctx, cancel := context.WithTimeout(ctx, limit/time.Duration(2*len(s.checks)))
		err := check(ctx)
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

// writeDump writes the stacks of all goroutines to a file, and returns the path of the file for the
// log.
func (s *supervisor) writeDump() string {
	f, err := os.OpenFile(s.dump, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err == nil {
		err = pprof.Lookup("goroutine").WriteTo(f, 2)
		if failed := f.Close(); err == nil {
			err = failed
		}
	}
	if err != nil {
		return fmt.Sprintf("not written: %v", err)
	}
	return s.dump
}

// notifyTimeout is the timeout of a message to the service manager: a message must not keep the agent
// from stopping (F4).
const notifyTimeout = 500 * time.Millisecond

// After a failed message, the supervisor waits for firstNotifyRetry; the delay grows to
// lastNotifyRetry while messages fail.
const (
	firstNotifyRetry = 2 * time.Second
	lastNotifyRetry  = 5 * time.Minute
)

// notify sends a state to the service manager, and reports success. Without a service manager, it
// succeeds.
func (s *supervisor) notify(state string) bool {
	socket := os.Getenv("NOTIFY_SOCKET")
	if socket == "" {
		return true
	}
	conn, err := net.DialTimeout("unixgram", socket, notifyTimeout)
	if err == nil {
		defer conn.Close()
		if err = conn.SetDeadline(time.Now().Add(notifyTimeout)); err == nil {
			_, err = conn.Write([]byte(state))
		}
	}
	if err != nil {
		s.log.Warn("Failed to notify the service manager", "state", state, "error", err)
	}
	return err == nil
}
