// Package logind delays a shutdown of the machine with an inhibitor of systemd-logind, so that
// pods can stop before (C-1.36.1).
//
// The package accepts a signal only if logind sent it, because any local user may send signals
// on the system bus.
package logind

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/nodectl/nodectl/pkg/atomicfile"
	"github.com/nodectl/nodectl/pkg/backoff"
)

const (
	service   = "org.freedesktop.login1"
	object    = dbus.ObjectPath("/org/freedesktop/login1")
	manager   = service + ".Manager"
	preparing = "PrepareForShutdown"
)

// dropIn raises logind's longest delay. It is below /run, so that the next boot removes it.
const dropIn = "/run/systemd/logind.conf.d/99-nodectl.conf"

// Config configures Watch.
type Config struct {
	Address string        // of the system bus; "" is the machine's
	DropIn  string        // the file that raises logind's longest delay; "" is the machine's
	Delay   time.Duration // the longest time that a shutdown has to wait
	// Begin is called when the machine begins to shut down. The shutdown continues when ended is
	// closed.
	Begin func(ctx context.Context) (ended <-chan struct{}, err error)
	// Idle is called when the machine does not shut down: at first, and when a shutdown was
	// cancelled.
	Idle func(ctx context.Context) error
	// Unavailable is called when logind does not answer. Until the next call of Begin or Idle, the
	// caller does not know whether the machine shuts down.
	Unavailable func()
	Log         *slog.Logger
}

// The delay before Watch connects again grows from retryFirst to retryMax.
const (
	retryFirst = time.Second // C-1.36.5
	retryMax   = time.Minute
)

// Watch delays shutdowns until ctx ends. It connects again when the connection is lost.
func Watch(ctx context.Context, cfg Config) {
	if cfg.DropIn == "" {
		cfg.DropIn = dropIn
	}
	for wait, logged := retryFirst, false; ctx.Err() == nil; wait = backoff.Next(wait, retryFirst, retryMax) {
		s := &session{Config: cfg}
		err := s.run(ctx)
		s.release()
		cfg.Unavailable()
		if ctx.Err() != nil {
			return
		}
		if s.watching {
			wait, logged = retryFirst, false
		}
		if !logged {
			cfg.Log.Warn("A shutdown of this machine does not wait for pods: systemd-logind does not answer", "error", err)
			logged = true
		}
		if !backoff.Sleep(ctx, wait) {
			return
		}
	}
}

// session is one connection to the system bus.
type session struct {
	Config
	conn     *dbus.Conn
	lock     *os.File // the inhibitor; nil: none is held
	ended    <-chan struct{}
	watching bool // the state of the machine was read, and signals are handled
}

// Preparing asks logind whether the machine shuts down. It returns an error if logind does not answer
// before ctx ends, and at once if there is no system bus. address is as in Config.
func Preparing(ctx context.Context, address string) (bool, error) {
	s := &session{Config: Config{Address: address}}
	if err := s.connect(ctx); err != nil {
		return false, err
	}
	defer func() { _ = s.conn.Close() }()
	return property[bool](ctx, s, "PreparingForShutdown")
}

// connect connects to the system bus until ctx ends.
func (s *session) connect(ctx context.Context) (err error) {
	if s.Address == "" {
		s.conn, err = dbus.ConnectSystemBus(dbus.WithContext(ctx))
	} else {
		s.conn, err = dbus.Connect(s.Address, dbus.WithContext(ctx))
	}
	return err
}

func (s *session) run(ctx context.Context) error {
	if err := s.connect(ctx); err != nil {
		return err
	}
	defer func() { _ = s.conn.Close() }()
	signals := make(chan *dbus.Signal, 16)
	s.conn.Signal(signals)
	if err := s.conn.AddMatchSignalContext(ctx, dbus.WithMatchSender(service), dbus.WithMatchObjectPath(object), dbus.WithMatchInterface(manager), dbus.WithMatchMember(preparing)); err != nil {
		return fmt.Errorf("watch for shutdowns: %w", err)
	}
	if err := s.allowDelay(ctx); err != nil {
		s.Log.Warn("A shutdown of this machine may not wait long enough for pods", "delay", s.Delay, "error", err)
	}
	now, err := property[bool](ctx, s, "PreparingForShutdown")
	if err != nil {
		return err
	}
	if err := s.handle(ctx, now); err != nil {
		return err
	}
	s.watching = true
	for {
		select {
		case signal, ok := <-signals:
			if !ok {
				return errors.New("the connection to the system bus is closed")
			}
			if now, ok := s.isPreparing(ctx, signal); ok {
				if err := s.handle(ctx, now); err != nil {
					return err
				}
			}
		case <-s.ended:
			s.ended = nil
			s.release()
			s.Log.Info("Letting the machine shut down")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// isPreparing reads a signal; ok is false if it is not a signal of logind about a shutdown. The
// bus applies match rules to broadcasts only: any local user may send a signal to this connection.
func (s *session) isPreparing(ctx context.Context, signal *dbus.Signal) (now, ok bool) {
	if signal.Path != object || signal.Name != manager+"."+preparing || len(signal.Body) != 1 {
		return false, false
	}
	var owner string
	err := s.conn.BusObject().CallWithContext(ctx, "org.freedesktop.DBus.GetNameOwner", 0, service).Store(&owner)
	if err != nil || signal.Sender != owner {
		s.Log.Warn("Ignoring a signal that is not of systemd-logind", "sender", signal.Sender, "error", err)
		return false, false
	}
	now, ok = signal.Body[0].(bool)
	return now, ok
}

// handle calls Begin if the machine shuts down. Otherwise it calls Idle and takes an inhibitor.
func (s *session) handle(ctx context.Context, shutdown bool) error {
	if shutdown {
		s.Log.Warn("The machine shuts down: stopping all pods")
		ended, err := s.Begin(ctx)
		if err != nil {
			return err
		}
		s.ended = ended
		return nil
	}
	s.ended = nil
	if err := s.Idle(ctx); err != nil {
		return err
	}
	if s.lock != nil {
		return nil
	}
	var fd dbus.UnixFD
	call := s.conn.Object(service, object).CallWithContext(ctx, manager+".Inhibit", 0, "shutdown", "nodectl", "Pods need time to stop", "delay")
	if err := call.Store(&fd); err != nil {
		return fmt.Errorf("take an inhibitor: %w", err)
	}
	s.lock = os.NewFile(uintptr(fd), "inhibitor")
	return nil
}

// release lets the machine shut down.
func (s *session) release() {
	if s.lock != nil {
		_ = s.lock.Close()
		s.lock = nil
	}
}

// allowDelay raises logind's longest delay to s.Delay, if it is shorter.
func (s *session) allowDelay(ctx context.Context) error {
	if is, err := s.longestDelay(ctx); err != nil || is >= s.Delay {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(s.DropIn), 0o755); err != nil {
		return err
	}
	text := fmt.Sprintf("# Written by nodectl: pods get this long to stop (--shutdown-grace-period).\n[Login]\nInhibitDelayMaxSec=%d\n", int64((s.Delay+time.Second-1)/time.Second))
	if err := atomicfile.Write(s.DropIn, []byte(text), atomicfile.Options{Mode: 0o644, Temp: ".tmp"}); err != nil {
		return err
	}
	const hangup = int32(1)
	err := s.conn.Object("org.freedesktop.systemd1", "/org/freedesktop/systemd1").
		CallWithContext(ctx, "org.freedesktop.systemd1.Manager.KillUnit", 0, "systemd-logind.service", "all", hangup).Err
	if err != nil {
		return fmt.Errorf("reload systemd-logind: %w", err)
	}
	var is time.Duration
	for wait := 100 * time.Millisecond; wait < 2*time.Second; wait *= 2 { // the reload is asynchronous
		if is, err = s.longestDelay(ctx); err != nil || is >= s.Delay {
			return err
		}
		if !backoff.Sleep(ctx, wait) {
			return ctx.Err()
		}
	}
	return fmt.Errorf("InhibitDelayMaxSec of systemd-logind is %s; another file overrides %s", is, s.DropIn)
}

func (s *session) longestDelay(ctx context.Context) (time.Duration, error) {
	us, err := property[uint64](ctx, s, "InhibitDelayMaxUSec")
	return time.Duration(min(us, uint64(1<<53))) * time.Microsecond, err
}

// property reads a property of logind.
func property[T any](ctx context.Context, s *session, name string) (value T, err error) {
	var v dbus.Variant
	call := s.conn.Object(service, object).CallWithContext(ctx, "org.freedesktop.DBus.Properties.Get", 0, manager, name)
	if err := call.Store(&v); err != nil {
		return value, fmt.Errorf("read %s of systemd-logind: %w", name, err)
	}
	value, ok := v.Value().(T)
	if !ok {
		return value, fmt.Errorf("%s of systemd-logind has the type %s", name, v.Signature())
	}
	return value, nil
}
