package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/source"
	"github.com/nodectl/nodectl/test/wait"
)

// serviceManager is the service manager at the other end of NOTIFY_SOCKET. It reads without blocking: a
// goroutine that waits for a socket would stop synctest's fake time.
type serviceManager struct {
	t  *testing.T
	fd int
}

// newServiceManager makes this process a service with a watchdog interval; 0 means no watchdog.
func newServiceManager(t *testing.T, watchdog time.Duration) *serviceManager {
	t.Helper()
	dir, err := os.MkdirTemp("", "notify") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	t.Setenv("NOTIFY_SOCKET", filepath.Join(dir, "s"))
	t.Setenv("WATCHDOG_USEC", "")
	t.Setenv("WATCHDOG_PID", "")
	if watchdog > 0 {
		t.Setenv("WATCHDOG_USEC", fmt.Sprint(watchdog.Microseconds()))
		t.Setenv("WATCHDOG_PID", fmt.Sprint(os.Getpid()))
	}
	return listens(t)
}

// listens makes a socket and sets NOTIFY_SOCKET to it.
func listens(t *testing.T) *serviceManager {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: os.Getenv("NOTIFY_SOCKET")}); err != nil {
		t.Fatal(err)
	}
	return &serviceManager{t, fd}
}

// expects lets d of fake time pass and compares all messages.
func expects(s *serviceManager, d time.Duration, want ...string) {
	s.t.Helper()
	if got := received(s, d); !slices.Equal(got, want) {
		s.t.Fatalf("received %q within %s, want %q", got, d, want)
	}
}

// received returns all messages of the next d of fake time.
func received(s *serviceManager, d time.Duration) (words []string) {
	s.t.Helper()
	time.Sleep(d)
	synctest.Wait()
	for {
		var b [256]byte
		n, err := unix.Read(s.fd, b[:])
		if errors.Is(err, unix.EAGAIN) {
			return words
		}
		if err != nil {
			s.t.Fatal(err)
		}
		words = append(words, string(b[:n]))
	}
}

// supervised is a running supervisor.
type supervised struct {
	*supervisor
	log  *logged
	stop context.CancelFunc // and waits
}

// logged is a log that may be read while it is written.
type logged struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func superviseNow(t *testing.T, checks ...func(context.Context) error) *supervised {
	t.Helper()
	s := &supervised{log: &logged{}}
	s.supervisor = &supervisor{log: slog.New(slog.NewTextHandler(s.log, nil)), checks: checks, dump: filepath.Join(t.TempDir(), "goroutines.txt")}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { s.run(ctx) })
	s.stop = func() { cancel(); wg.Wait() }
	t.Cleanup(s.stop)
	return s
}

// TestReady_SocketAnswers_IsSent: the agent does not send READY before its socket answers.
//
// Shows: F7
func TestReady_SocketAnswers_IsSent(t *testing.T) {
	manager := newServiceManager(t, time.Hour)
	synctest.Test(t, func(t *testing.T) {
		answering := make(chan struct{})
		s := &supervisor{log: slog.New(slog.DiscardHandler), answering: answering}
		runUntilEnd(t, func(ctx context.Context) error { s.run(ctx); return nil })
		expects(manager, readyTimeout-time.Second)
		close(answering)
		expects(manager, 0, "READY=1")
	})
}

// part is one part of an agent that a test can make hang.
type part struct {
	dead atomic.Bool
	asks atomic.Int32
}

// beat blocks while the part is dead, like a part that never releases a lock.
func (p *part) beat(ctx context.Context) error {
	p.asks.Add(1)
	if !p.dead.Load() {
		return nil
	}
	<-ctx.Done()
	return errors.New("a part hangs")
}

// TestWatchdog_PartHangs_IsNotReset: the watchdog is reset only while all parts answer. A
// hanging part is logged once, with all goroutines in a file. When the part answers again, the
// watchdog is reset again.
//
// Shows: F7
func TestWatchdog_PartHangs_IsNotReset(t *testing.T) {
	const watchdog = 3 * time.Second
	manager := newServiceManager(t, watchdog)
	synctest.Test(t, func(t *testing.T) {
		parts := []*part{{}, {}, {}}
		var checks []func(context.Context) error
		for _, p := range parts {
			checks = append(checks, p.beat)
		}
		s := superviseNow(t, checks...)
		expects(manager, 0, "READY=1")
		time.Sleep(watchdog / checksPerInterval / 2) // between two checks
		expects(manager, 2*watchdog/checksPerInterval, "WATCHDOG=1", "WATCHDOG=1")
		for i, p := range parts {
			p.dead.Store(true)
			asked := parts[0].asks.Load()
			expects(manager, 2*watchdog)
			if n := strings.Count(s.log.String(), "not resetting the watchdog"); n != i+1 {
				t.Errorf("named %d times, want %d:\n%s", n, i+1, s.log)
			}
			if i > 0 && parts[0].asks.Load() < asked+checksPerInterval {
				t.Error("the others are not asked any more")
			}
			text, err := os.ReadFile(s.dump)
			if err != nil || !bytes.Contains(text, []byte("notify_linux_test.go")) || !bytes.Contains(text, []byte("goroutine 1 [")) {
				t.Errorf("the dump: %v, %d bytes", err, len(text))
			}
			if info, err := os.Stat(s.dump); err == nil && info.Mode().Perm() != 0o600 {
				t.Errorf("the dump is %s", info.Mode())
			}
			if err := os.Remove(s.dump); err != nil {
				t.Error(err)
			}
			p.dead.Store(false)
			expects(manager, watchdog/checksPerInterval, "WATCHDOG=1")
		}
		if log := s.log.String(); strings.Count(log, "a part hangs") != len(parts) || strings.Count(log, s.dump) != len(parts) {
			t.Errorf("said:\n%s", log)
		}
		s.stop()
		expects(manager, watchdog, "STOPPING=1")
	})
}

// TestWatchdog_DumpFails_IsLogged: the log says so, and the watchdog is not reset.
//
// Shows: F7
func TestWatchdog_DumpFails_IsLogged(t *testing.T) {
	const watchdog = 3 * time.Second
	manager := newServiceManager(t, watchdog)
	synctest.Test(t, func(t *testing.T) {
		p := &part{}
		s := superviseNow(t, p.beat)
		expects(manager, watchdog/checksPerInterval, "READY=1", "WATCHDOG=1")
		if err := os.RemoveAll(filepath.Dir(s.dump)); err != nil {
			t.Fatal(err)
		}
		p.dead.Store(true)
		expects(manager, 2*watchdog)
		if !strings.Contains(s.log.String(), "not written: ") {
			t.Errorf("nothing is said of the dump:\n%s", s.log)
		}
	})
}

// TestNotify_NoWatchdog_SendsReadyAndStopping: the agent sends only READY and STOPPING, and warns
// about a part that never answers. An agent that is stopped before it is ready sends no READY.
//
// Shows: F4
func TestNotify_NoWatchdog_SendsReadyAndStopping(t *testing.T) {
	manager := newServiceManager(t, 0)
	synctest.Test(t, func(t *testing.T) {
		s := superviseNow(t, (&part{}).beat)
		expects(manager, time.Hour, "READY=1")
		s.stop()
		expects(manager, 0, "STOPPING=1")

		s = superviseNow(t, func(context.Context) error { return errors.New("no pulse") })
		expects(manager, 0, "READY=1")
		if log := s.log.String(); !strings.Contains(log, "a health check still fails") || !strings.Contains(log, "no pulse") {
			t.Errorf("said:\n%s", log)
		}
		s.stop()
		expects(manager, 0, "STOPPING=1")

		p := &part{}
		p.dead.Store(true)
		s = superviseNow(t, p.beat)
		s.stop()
		expects(manager, time.Hour, "STOPPING=1")
	})
}

// TestNotify_SocketIsFull_AgentStops: its socket is full, and the agent stops
// nevertheless.
//
// Shows: F4
func TestNotify_SocketIsFull_AgentStops(t *testing.T) {
	newServiceManager(t, 3*time.Millisecond)
	s := superviseNow(t, (&part{}).beat)
	wait.Until(t, "its socket is full", func() (string, bool) {
		log := s.log.String()
		return log, strings.Contains(log, "Failed to notify the service manager")
	})
	left := make(chan struct{})
	go func() { s.stop(); close(left) }()
	wait.Receive(t, "the supervisor's end", left)
}

// TestReady_SendFails_IsSentAgain: the agent sends READY again after a failure, so that a
// service manager that was away briefly does not wait until its timeout.
//
// Shows: F7
func TestReady_SendFails_IsSentAgain(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "s"))
	t.Setenv("WATCHDOG_USEC", "")
	synctest.Test(t, func(t *testing.T) {
		s := superviseNow(t)
		synctest.Wait()
		if !strings.Contains(s.log.String(), "Failed to notify the service manager") {
			t.Fatalf("READY was not tried:\n%s", s.log)
		}
		manager := listens(t)
		expects(manager, firstNotifyRetry-time.Millisecond)
		expects(manager, time.Millisecond, "READY=1")
	})
}

// TestWatchdog_SyncLoopBlocked_IsNotReset: the sync loop of a whole engine blocks in an
// iteration; the watchdog is not reset, and the dump shows the stack.
//
// Shows: F7
func TestWatchdog_SyncLoopBlocked_IsNotReset(t *testing.T) {
	const watchdog = 3 * time.Second
	manager := newServiceManager(t, watchdog)
	synctest.Test(t, func(t *testing.T) {
		stuck := &blockingLog{Handler: slog.DiscardHandler, free: make(chan struct{})}
		f, _, e, hints := fedEngine(t, slog.New(stuck))
		free := sync.OnceFunc(func() { close(stuck.free) })
		t.Cleanup(free)
		s := superviseNow(t, e.Healthy, hints.Healthy)
		expects(manager, 0, "READY=1")
		time.Sleep(watchdog / checksPerInterval / 2) // between two checks
		expects(manager, watchdog/checksPerInterval, "WATCHDOG=1")
		stuck.on.Store(true)
		f.sets <- source.Snapshot{Revision: 1, Files: source.FilesOf(source.File{File: "/fed/x.yaml", Problems: []pod.Problem{{File: "/fed/x.yaml", Msg: "no pod"}}})}
		expects(manager, 2*watchdog)
		if !strings.Contains(s.log.String(), "the sync loop is not responding") {
			t.Errorf("the loop is not missed:\n%s", s.log)
		}
		if text, err := os.ReadFile(s.dump); err != nil || !bytes.Contains(text, []byte("(*blockingLog).Handle")) || !bytes.Contains(text, []byte("(*loop).run")) {
			t.Errorf("the dump does not show where it stands: %v\n%s", err, text)
		}
		stuck.on.Store(false)
		free()
		expects(manager, watchdog/checksPerInterval, "WATCHDOG=1")
		s.stop()
		expects(manager, 0, "STOPPING=1")
	})
}

// blockingLog is a log whose writes block while it is on.
type blockingLog struct {
	slog.Handler
	on   atomic.Bool
	free chan struct{}
}

func (*blockingLog) Enabled(context.Context, slog.Level) bool { return true }

func (j *blockingLog) Handle(context.Context, slog.Record) error {
	if j.on.Load() {
		<-j.free
	}
	return nil
}

func (j *blockingLog) WithAttrs([]slog.Attr) slog.Handler { return j }
