//go:build linux

package cmd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/source"
)

// superior is a service manager's end of NOTIFY_SOCKET.
type superior struct {
	t    *testing.T
	conn *net.UnixConn
}

// superiorOf makes this process a service with a watchdog of so long; 0 for none.
func superiorOf(t *testing.T, watchdog time.Duration) *superior {
	t.Helper()
	dir, err := os.MkdirTemp("", "notify") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	addr := &net.UnixAddr{Net: "unixgram", Name: filepath.Join(dir, "s")}
	conn, err := net.ListenUnixgram("unixgram", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	t.Setenv("NOTIFY_SOCKET", addr.Name)
	t.Setenv("WATCHDOG_USEC", "")
	t.Setenv("WATCHDOG_PID", "")
	if watchdog > 0 {
		t.Setenv("WATCHDOG_USEC", fmt.Sprint(watchdog.Microseconds()))
		t.Setenv("WATCHDOG_PID", fmt.Sprint(os.Getpid()))
	}
	return &superior{t, conn}
}

// hears returns what is said next within limit; "" for nothing.
func (s *superior) hears(limit time.Duration) string {
	s.t.Helper()
	if err := s.conn.SetReadDeadline(time.Now().Add(limit)); err != nil {
		s.t.Fatal(err)
	}
	var b [256]byte
	n, err := s.conn.Read(b[:])
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return ""
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return string(b[:n])
}

// expects reads words said one after the other.
func (s *superior) expects(words ...string) {
	s.t.Helper()
	for _, want := range words {
		if got := s.hears(patience); got != want {
			s.t.Fatalf("heard %q, want %q", got, want)
		}
	}
}

// until reads past all other words.
func (s *superior) until(want string) {
	s.t.Helper()
	for got := ""; got != want; {
		if got = s.hears(patience); got == "" {
			s.t.Fatalf("heard nothing more, want %q", want)
		}
	}
}

// silent fails when anything is said within limit.
func (s *superior) silent(limit time.Duration) {
	s.t.Helper()
	if got := s.hears(limit); got != "" {
		s.t.Errorf("heard %q, want nothing", got)
	}
}

// patience is how long anything may take on a busy machine.
const patience = 30 * time.Second

// supervised is a supervisor at work.
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

// TestF7_ReadyOnceItIsSpokenTo: READY is not said before the local socket answers.
func TestF7_ReadyOnceItIsSpokenTo(t *testing.T) {
	boss := superiorOf(t, time.Hour)
	answering := make(chan struct{})
	s := &supervisor{log: slog.New(slog.DiscardHandler), answering: answering}
	runUntilEnd(t, func(ctx context.Context) error { s.run(ctx); return nil })
	if word := boss.hears(100 * time.Millisecond); word != "" {
		t.Errorf("%s was said before anybody answers", word)
	}
	close(answering)
	boss.expects("READY=1")
}

// part is one part of an agent, whose life the test decides about.
type part struct {
	dead atomic.Bool
	asks atomic.Int32
}

// beat hangs while the part is dead, as one does that holds a lock for ever.
func (p *part) beat(ctx context.Context) error {
	p.asks.Add(1)
	if !p.dead.Load() {
		return nil
	}
	<-ctx.Done()
	return errors.New("a part hangs")
}

// TestF7_WatchdogIsFedByTheLivingAlone: every part has to live. One that hangs is
// named once, with all goroutines in a file; when it goes on, so does the feeding.
func TestF7_WatchdogIsFedByTheLivingAlone(t *testing.T) {
	const watchdog = 300 * time.Millisecond
	boss := superiorOf(t, watchdog)
	parts := []*part{{}, {}, {}}
	var checks []func(context.Context) error
	for _, p := range parts {
		checks = append(checks, p.beat)
	}
	s := superviseNow(t, checks...)
	boss.expects("READY=1", "WATCHDOG=1", "WATCHDOG=1")
	for i, p := range parts {
		p.dead.Store(true)
		told := i + 1
		await(t, func() bool {
			return strings.Count(s.log.String(), "not fed") == told
		}, "the watchdog is fed over a dead part")
		for boss.hears(20*time.Millisecond) != "" { // said before it died
		}
		if i > 0 {
			asked := parts[i-1].asks.Load()
			await(t, func() bool { return parts[i-1].asks.Load() > asked+3 }, "the others are not asked any more")
		}
		boss.silent(2 * watchdog)
		text, err := os.ReadFile(s.dump)
		if err != nil || !bytes.Contains(text, []byte("notify_test.go")) || !bytes.Contains(text, []byte("goroutine 1 [")) {
			t.Errorf("the dump: %v, %d bytes", err, len(text))
		}
		if info, err := os.Stat(s.dump); err == nil && info.Mode().Perm() != 0o600 {
			t.Errorf("the dump is %s", info.Mode())
		}
		if err := os.Remove(s.dump); err != nil {
			t.Error(err)
		}
		p.dead.Store(false)
		boss.expects("WATCHDOG=1")
	}
	if log := s.log.String(); strings.Count(log, "a part hangs") != len(parts) || strings.Count(log, s.dump) != len(parts) {
		t.Errorf("said:\n%s", log)
	}
	s.stop()
	boss.until("STOPPING=1")
	boss.silent(watchdog)
}

// TestF7_DumpThatCannotBeWritten: the log says so, and nothing is fed.
func TestF7_DumpThatCannotBeWritten(t *testing.T) {
	const watchdog = 300 * time.Millisecond
	boss := superiorOf(t, watchdog)
	p := &part{}
	s := superviseNow(t, p.beat)
	boss.expects("READY=1", "WATCHDOG=1")
	if err := os.RemoveAll(filepath.Dir(s.dump)); err != nil {
		t.Fatal(err)
	}
	p.dead.Store(true)
	await(t, func() bool { return strings.Contains(s.log.String(), "not written: ") }, "nothing is said of the dump")
	for boss.hears(20*time.Millisecond) != "" { // said before it died
	}
	boss.silent(2 * watchdog)
}

// TestF4_WithoutAWatchdog: READY and STOPPING are all that is said, and a part
// that is dead from the first is a warning; one that is told to leave before it
// was ready never was.
func TestF4_WithoutAWatchdog(t *testing.T) {
	boss := superiorOf(t, 0)
	s := superviseNow(t, (&part{}).beat)
	boss.expects("READY=1")
	boss.silent(50 * time.Millisecond)
	s.stop()
	boss.expects("STOPPING=1")

	s = superviseNow(t, func(context.Context) error { return errors.New("no pulse") })
	boss.expects("READY=1")
	if log := s.log.String(); !strings.Contains(log, "not alive yet") || !strings.Contains(log, "no pulse") {
		t.Errorf("said:\n%s", log)
	}
	s.stop()
	boss.expects("STOPPING=1")

	p := &part{}
	p.dead.Store(true)
	s = superviseNow(t, p.beat)
	s.stop()
	boss.expects("STOPPING=1")
	boss.silent(50 * time.Millisecond)
}

// TestF4_AServiceManagerThatDoesNotListen: its socket is full, and the agent
// leaves all the same.
func TestF4_AServiceManagerThatDoesNotListen(t *testing.T) {
	superiorOf(t, 3*time.Millisecond)
	s := superviseNow(t, (&part{}).beat)
	await(t, func() bool { return strings.Contains(s.log.String(), "Service manager not told") }, "its socket never was full")
	begun := time.Now()
	s.stop()
	if took := time.Since(begun); took > 10*time.Second {
		t.Errorf("took %s to leave", took)
	}
}

// TestF7_ALoopThatIsBlockedIsNotFed takes a whole engine whose sync loop stands
// still in the middle of a turn: no beat, and the dump shows where it stands.
// TestF7_ReadyIsSaidUntilItIsHeard: a service manager that did not listen for a moment
// does not wait for the rest of its patience.
func TestF7_ReadyIsSaidUntilItIsHeard(t *testing.T) {
	addr := filepath.Join(t.TempDir(), "s")
	t.Setenv("NOTIFY_SOCKET", addr)
	t.Setenv("WATCHDOG_USEC", "")
	s := superviseNow(t)
	await(t, func() bool { return strings.Contains(s.log.String(), "not told") }, "READY was not tried")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: addr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	(&superior{t, conn}).expects("READY=1")
}

func TestF7_ALoopThatIsBlockedIsNotFed(t *testing.T) {
	const watchdog = 3 * time.Second
	boss := superiorOf(t, watchdog)
	stuck := &jam{Handler: slog.DiscardHandler, free: make(chan struct{})}
	f, _, e, hints := fedEngine(t, slog.New(stuck))
	free := sync.OnceFunc(func() { close(stuck.free) })
	t.Cleanup(free)
	s := superviseNow(t, e.Beat, hints.Beat)
	boss.expects("READY=1", "WATCHDOG=1")
	stuck.on.Store(true)
	f.sets <- source.Snapshot{Revision: 1, Files: source.FilesOf(source.File{File: "/fed/x.yaml", Problems: []pod.Problem{{File: "/fed/x.yaml", Msg: "no pod"}}})}
	await(t, func() bool { return strings.Contains(s.log.String(), "the sync loop does not take its turn") }, "the loop is not missed")
	for boss.hears(20*time.Millisecond) != "" { // said before it stood still
	}
	boss.silent(2 * watchdog)
	if text, err := os.ReadFile(s.dump); err != nil || !bytes.Contains(text, []byte("(*jam).Handle")) || !bytes.Contains(text, []byte("(*loop).run")) {
		t.Errorf("the dump does not show where it stands: %v\n%s", err, text)
	}
	stuck.on.Store(false)
	free()
	boss.expects("WATCHDOG=1")
	s.stop()
	boss.until("STOPPING=1")
}

// jam is a log that blocks whoever writes to it, while it is on.
type jam struct {
	slog.Handler
	on   atomic.Bool
	free chan struct{}
}

func (*jam) Enabled(context.Context, slog.Level) bool { return true }

func (j *jam) Handle(context.Context, slog.Record) error {
	if j.on.Load() {
		<-j.free
	}
	return nil
}

func (j *jam) WithAttrs([]slog.Attr) slog.Handler { return j }

func await(t *testing.T, ok func() bool, otherwise string) {
	t.Helper()
	for begin := time.Now(); !ok(); <-time.After(5 * time.Millisecond) {
		if time.Since(begin) > patience {
			t.Fatal(otherwise)
		}
	}
}

// TestF7_UnitFile holds the unit file that ships to what the agent promises.
func TestF7_UnitFile(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "packaging", "nodectl.service"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(text), "\n")
	for line, why := range map[string]string{
		"Type=notify":                "READY=1 is when it serves",
		"NotifyAccess=main":          "a runtime it brings along says nothing for it",
		"WatchdogSec=30s":            "F7",
		"KillMode=process":           "F4: pods stay",
		"Delegate=yes":               "cgroups of pods are not systemd's",
		"Restart=always":             "crash-only",
		"StartLimitIntervalSec=0":    "it is never given up on",
		"OOMScoreAdjust=-999":        "F9",
		"WantedBy=multi-user.target": "it starts at boot",
	} {
		if !slices.Contains(lines, line) {
			t.Errorf("the unit lacks %s: %s", line, why)
		}
	}
	i := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, "ExecStart=") })
	if i < 0 {
		t.Fatal("the unit starts nothing")
	}
	words := strings.Fields(strings.TrimPrefix(lines[i], "ExecStart="))
	root := newProgram(os.Stdin, os.Stdout, os.Stderr, func(string) string { return "" }).root()
	cmd, rest, err := root.Find(words[1:])
	if err != nil || cmd.Name() != "serve" || cmd.ParseFlags(rest) != nil {
		t.Errorf("the unit starts %q: %v", lines[i], err)
	}
}
