package e2e

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/test/criproxy"
	"github.com/nodectl/nodectl/test/wait"
)

// superior is the service manager's end of NOTIFY_SOCKET: it always listens.
type superior struct {
	*stage
	path string

	said chan notice // capacity: more than the messages of any scenario
}

type notice struct {
	text string
	pid  int // of the sender
}

func (s *stage) superior() *superior {
	s.Helper()
	b := &superior{stage: s, path: filepath.Join(s.scratch, "notify"), said: make(chan notice, 10000)}
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: b.path})
	if err != nil {
		s.Fatal(err)
	}
	raw, err := conn.SyscallConn()
	if err == nil {
		err = errors.Join(raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSCRED, 1)
		}), err)
	}
	if err != nil {
		s.Fatal(err)
	}
	var listening sync.WaitGroup
	listening.Go(func() { b.listen(conn) })
	s.Cleanup(func() {
		_ = conn.Close()
		listening.Wait()
	})
	return b
}

func (b *superior) listen(conn *net.UnixConn) {
	var text, about [256]byte
	for {
		n, m, _, _, err := conn.ReadMsgUnix(text[:], about[:])
		if errors.Is(err, net.ErrClosed) {
			return
		}
		word := notice{text: string(text[:n])}
		if control, err := unix.ParseSocketControlMessage(about[:m]); err == nil && len(control) == 1 {
			if who, err := unix.ParseUnixCredentials(&control[0]); err == nil {
				word.pid = int(who.Pid)
			}
		}
		b.said <- word
	}
}

// employ makes a command a service of this service manager.
func (b *superior) employ(cmd *exec.Cmd, watchdog time.Duration) *exec.Cmd {
	cmd.Env = append(cmd.Env, "NOTIFY_SOCKET="+b.path, fmt.Sprint("WATCHDOG_USEC=", watchdog.Microseconds()))
	return cmd
}

// receive returns the next message.
func (b *superior) receive() notice {
	b.Helper()
	return wait.Receive(b.T, "a word of the service", b.said)
}

// forget discards the messages until now.
func (b *superior) forget() {
	for len(b.said) > 0 {
		<-b.said
	}
}

// expects fails unless this is the next message of a.
func (b *superior) expects(a *agent, want string) {
	b.Helper()
	if got, want := b.receive(), (notice{want, a.cmd.Process.Pid}); got != want {
		b.Fatalf("received %+v, want %+v", got, want)
	}
}

// TestF7_WatchdogOfAServiceManager: as a service of Type=notify the agent reports when it
// serves, and feeds the watchdog while it runs, also with a hanging runtime. On SIGTERM it
// sends STOPPING and exits, whatever hangs (F4). TestF7_ABlockedLoopHasNoPulse shows that a
// blocked agent does not feed the watchdog.
//
// Shows: F7, F4
func TestF7_WatchdogOfAServiceManager(t *testing.T) {
	const watchdog = 600 * time.Millisecond
	s := parallelStage(t)
	var hangs atomic.Bool
	release := make(chan struct{})
	free := sync.OnceFunc(func() { hangs.Store(false); close(release) })
	s.through(criproxy.Hooks{Before: func(criproxy.Call) {
		if hangs.Load() {
			<-release
		}
	}})
	t.Cleanup(free)
	boss := s.superior()
	s.write("web.yaml", simple("web"))
	a := s.start(boss.employ(s.command("serve", "-f", s.manifests), watchdog))
	boss.expects(a, "READY=1")
	boss.expects(a, "WATCHDOG=1")
	kept := s.keep()
	s.awaitReady("web", true)

	hangs.Store(true)
	s.write("new.yaml", simple("new"))
	boss.forget()
	for range 4 { // a whole interval, and more
		boss.expects(a, "WATCHDOG=1")
	}
	a.asked.Store(true)
	if err := a.cmd.Process.Signal(syscall.SIGTERM); err != nil { // leave would wait for the runtime
		t.Fatal(err)
	}
	last := boss.receive()
	for last.text == "WATCHDOG=1" {
		last = boss.receive()
	}
	if last.text != "STOPPING=1" {
		t.Errorf("the last word was %+v", last)
	}
	if code := a.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	free()
	s.untouched("keep", kept)
}

// TestF7_BlockedLoop_IsDumpedAndGoesOn: a log without a reader stops the sync loop. The
// agent writes the stacks of all goroutines to a file. When the log is read again, it
// feeds the watchdog again and starts the next pod. TestF7_ABlockedLoopHasNoPulse shows
// that a blocked loop does not feed it.
//
// Shows: F7
func TestF7_BlockedLoop_IsDumpedAndGoesOn(t *testing.T) {
	const watchdog = 600 * time.Millisecond
	s := parallelStage(t)
	boss := s.superior()
	log := filepath.Join(s.scratch, "log")
	if err := unix.Mkfifo(log, 0o600); err != nil {
		t.Fatal(err)
	}
	end, err := os.OpenFile(log, os.O_RDWR|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = end.Close() })
	raw, err := end.SyscallConn()
	if err == nil {
		err = errors.Join(raw.Control(func(fd uintptr) { _, err = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, 4096) }), err)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.write("web.yaml", simple("web"))
	cmd := boss.employ(s.command("serve", "-f", s.manifests), watchdog)
	cmd.Path, cmd.Args = "/bin/sh", append([]string{"sh", "-c", `exec "$@" 2>` + log, "sh", cmd.Path}, cmd.Args[1:]...)
	a := s.start(cmd)
	boss.expects(a, "READY=1")
	was := s.awaitRunning("web", "main")
	s.awaitReady("web", true)

	for i := range 60 { // a line each
		s.write(fmt.Sprintf("bad%02d.yaml", i), "apiVersion: v1\nkind: Pod\nmetadata: {name: bad}\nspec: {"+strings.Repeat("x", 40)+": 1}\n")
	}
	dump := filepath.Join(s.root, "goroutines.txt")
	s.eventually(func() error {
		text, err := os.ReadFile(dump)
		if err == nil && !strings.Contains(string(text), "(*loop).run") {
			err = fmt.Errorf("the dump does not show the sync loop: %d bytes", len(text))
		}
		return err
	})
	s.untouched("web", was)

	boss.forget()
	drained := make(chan error, 1)
	go func() { drained <- drain(end) }()
	boss.expects(a, "WATCHDOG=1")
	s.write("next.yaml", simple("next"))
	s.awaitReady("next", true)
	a.leave()
	if err := end.SetReadDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := <-drained; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error(err)
	}
	s.untouched("web", was)
}

// drain reads until it fails.
func drain(f *os.File) error {
	var b [4096]byte
	for {
		if _, err := f.Read(b[:]); err != nil {
			return err
		}
	}
}
