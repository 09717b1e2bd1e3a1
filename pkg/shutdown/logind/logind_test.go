//go:build linux

package logind

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"
)

// bus is a system bus with a systemd-logind, as far as package logind uses them.
type bus struct {
	t       *testing.T
	address string
	calls   chan string // the name of each call, but of Hello and Get

	mu        sync.Mutex
	conn      *net.UnixConn
	delay     uint64 // InhibitDelayMaxUSec
	preparing bool
	silent    bool     // no call is answered
	lock      *os.File // the end of logind; it is readable when the inhibitor is closed
}

const owner = ":1.7" // of logind's name

func newBus(t *testing.T) *bus {
	path := filepath.Join(t.TempDir(), "bus")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	b := &bus{t: t, address: "unix:path=" + path, calls: make(chan string, 64), delay: 5e6}
	var wg sync.WaitGroup
	t.Cleanup(func() { l.Close(); b.cut(); wg.Wait() })
	wg.Go(func() {
		for {
			conn, err := l.AcceptUnix()
			if err != nil {
				return
			}
			b.mu.Lock()
			b.conn = conn
			b.mu.Unlock()
			b.serve(conn)
		}
	})
	return b
}

// cut ends the connection of the client.
func (b *bus) cut() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conn != nil {
		b.conn.Close()
	}
}

func (b *bus) serve(conn *net.UnixConn) {
	in := bufio.NewReader(conn)
	if zero, err := in.ReadByte(); err != nil || zero != 0 {
		return
	}
	answers := map[string]string{"AUTH": "REJECTED EXTERNAL", "AUTH EXTERNAL": "DATA", "DATA": "OK 0123456789abcdef0123456789abcdef", "NEGOTIATE_UNIX_FD": "AGREE_UNIX_FD"}
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		line = strings.TrimSpace(line)
		if line == "BEGIN" {
			break
		}
		if strings.HasPrefix(line, "DATA") {
			line = "DATA"
		}
		answer, ok := answers[line]
		if !ok && strings.HasPrefix(line, "AUTH EXTERNAL ") {
			answer = answers["DATA"]
		}
		if _, err := conn.Write([]byte(answer + "\r\n")); err != nil {
			return
		}
	}
	for {
		m, err := dbus.DecodeMessage(in)
		if err != nil {
			return
		}
		b.mu.Lock()
		silent := b.silent
		b.mu.Unlock()
		if m.Type == dbus.TypeMethodCall && !silent {
			b.answer(m)
		}
	}
}

func (b *bus) answer(m *dbus.Message) {
	member := m.Headers[dbus.FieldMember].Value().(string)
	var body []any
	switch member {
	case "Hello":
		body = []any{":1.9"}
	case "GetNameOwner":
		body = []any{owner}
	case "Get":
		b.mu.Lock()
		value := map[string]any{"InhibitDelayMaxUSec": b.delay, "PreparingForShutdown": b.preparing}[m.Body[1].(string)]
		b.mu.Unlock()
		body = []any{dbus.MakeVariant(value)}
	case "KillUnit":
		b.mu.Lock()
		b.delay = 60e6
		b.mu.Unlock()
	case "Inhibit":
		var fds [2]int
		if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
			b.t.Error(err)
		}
		b.mu.Lock()
		b.lock = os.NewFile(uintptr(fds[0]), "lock")
		b.mu.Unlock()
		defer unix.Close(fds[1])
		body = []any{dbus.UnixFD(fds[1])}
	}
	reply := &dbus.Message{Type: dbus.TypeMethodReply, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldReplySerial: dbus.MakeVariant(m.Serial()), dbus.FieldSender: dbus.MakeVariant(owner), dbus.FieldDestination: dbus.MakeVariant(":1.9"),
	}}
	b.send(reply, body...)
	if member != "Hello" && member != "Get" {
		b.calls <- member
	}
}

func (b *bus) send(m *dbus.Message, body ...any) {
	if m.Body = body; len(body) > 0 {
		m.Headers[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(body...))
	}
	if len(body) == 1 {
		if _, is := body[0].(dbus.UnixFD); is {
			m.Headers[dbus.FieldUnixFDs] = dbus.MakeVariant(uint32(1))
		}
	}
	var out bytes.Buffer
	fds, err := m.EncodeToWithFDs(&out, binary.LittleEndian)
	if err != nil {
		b.t.Errorf("encode: %v", err)
		return
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	_, _, _ = b.conn.WriteMsgUnix(out.Bytes(), oob, nil)
}

// signal sends PrepareForShutdown.
func (b *bus) signal(sender string, begins bool) {
	b.send(&dbus.Message{Type: dbus.TypeSignal, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldPath: dbus.MakeVariant(object), dbus.FieldInterface: dbus.MakeVariant(manager), dbus.FieldMember: dbus.MakeVariant(preparing), dbus.FieldSender: dbus.MakeVariant(sender),
	}}, begins)
}

// want waits for calls, in order.
func (b *bus) want(calls ...string) {
	b.t.Helper()
	for _, want := range calls {
		if got := <-b.calls; got != want {
			b.t.Fatalf("call %s, want %s", got, want)
		}
	}
}

// held reports whether the inhibitor is held.
func (b *bus) held() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	var one [1]byte
	n, err := unix.Read(int(b.lock.Fd()), one[:])
	return n < 0 && err == unix.EAGAIN
}

// released waits until the inhibitor is closed.
func (b *bus) released() {
	b.mu.Lock()
	fd := int32(b.lock.Fd())
	b.mu.Unlock()
	if _, err := unix.Poll([]unix.PollFd{{Fd: fd}}, int(time.Minute/time.Millisecond)); err != nil && err != unix.EINTR {
		b.t.Error(err)
	}
	if b.held() {
		b.t.Error("the inhibitor is still held")
	}
}

// watched is a run of Watch, and its calls.
type watched struct {
	begun chan chan struct{} // for each call of Begin, the channel ended
	idle  chan struct{}
	lost  chan struct{}
	drop  string
}

func watch(t *testing.T, b *bus, delay time.Duration) watched {
	w := watched{make(chan chan struct{}, 8), make(chan struct{}, 8), make(chan struct{}, 64), filepath.Join(t.TempDir(), "conf.d", "99-nodectl.conf")}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait() })
	wg.Go(func() {
		Watch(ctx, Config{
			Address: b.address, DropIn: w.drop, Delay: delay, Log: slog.New(slog.DiscardHandler),
			Begin: func(context.Context) (<-chan struct{}, error) {
				ended := make(chan struct{})
				w.begun <- ended
				return ended, nil
			},
			Idle: func(context.Context) error { w.idle <- struct{}{}; return nil },
			Unavailable: func() {
				select {
				case w.lost <- struct{}{}:
				default: // the buffer is full; no test waits for so many calls
				}
			},
		})
	})
	return w
}

// TestWatch_Shutdown_WaitsForThePods: the inhibitor is held until the pods have ended. A
// cancelled shutdown takes it again. A signal of another sender has no effect.
//
// Shows: C-1.36.1, C-1.36.5
func TestWatch_Shutdown_WaitsForThePods(t *testing.T) {
	t.Parallel()
	b := newBus(t)
	w := watch(t, b, 5*time.Second)
	<-w.idle
	b.want("AddMatch", "Inhibit")
	b.signal(":1.66", true)
	b.want("GetNameOwner")
	b.signal(owner, true)
	b.want("GetNameOwner")
	end := <-w.begun
	if len(w.begun) > 0 || !b.held() {
		t.Errorf("%d more shutdowns; the inhibitor is held: %t", len(w.begun), b.held())
	}
	close(end)
	b.released()
	b.signal(owner, false)
	<-w.idle
	b.want("GetNameOwner", "Inhibit")
	if !b.held() {
		t.Error("the inhibitor is not taken again")
	}
	if _, err := os.Stat(w.drop); err == nil {
		t.Error("a drop-in was written although the delay is long enough")
	}
}

// TestWatch_DelayTooShort_IsRaised: a drop-in raises logind's longest delay.
//
// Shows: C-1.36.1
func TestWatch_DelayTooShort_IsRaised(t *testing.T) {
	t.Parallel()
	b := newBus(t)
	w := watch(t, b, 30500*time.Millisecond)
	b.want("AddMatch", "KillUnit", "Inhibit")
	if text, err := os.ReadFile(w.drop); err != nil || !strings.HasSuffix(string(text), "\n[Login]\nInhibitDelayMaxSec=31\n") {
		t.Errorf("drop-in: %v\n%s", err, text)
	}
}

// TestPreparing_LogindIsAsked_AnswersInTime: the state of the machine as logind gives it, or an error
// when logind does not answer in time.
//
// Shows: C-1.36.5
func TestPreparing_LogindIsAsked_AnswersInTime(t *testing.T) {
	t.Parallel()
	b := newBus(t)
	for _, want := range []bool{true, false} {
		b.mu.Lock()
		b.preparing = want
		b.mu.Unlock()
		if got, err := Preparing(t.Context(), b.address); got != want || err != nil {
			t.Errorf("preparing: %t, want %t: %v", got, want, err)
		}
	}
	b.mu.Lock()
	b.silent = true
	b.mu.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := Preparing(ctx, b.address); err == nil || ctx.Err() == nil {
		t.Errorf("a silent logind: %v", err)
	}
	if _, err := Preparing(t.Context(), "unix:path="+t.TempDir()+"/none"); err == nil {
		t.Error("no error without a bus")
	}
}

// TestWatch_AgentStartsDuringShutdown_BeginsAtOnce: an agent that starts while the machine shuts
// down learns it from logind, which gives out no inhibitor any more. After a lost connection it
// asks again.
//
// Shows: C-1.36.5
func TestWatch_AgentStartsDuringShutdown_BeginsAtOnce(t *testing.T) {
	t.Parallel()
	b := newBus(t)
	b.preparing = true
	w := watch(t, b, 5*time.Second)
	<-w.begun
	b.want("AddMatch")
	b.mu.Lock()
	b.preparing = false
	b.mu.Unlock()
	if len(w.lost) > 0 {
		t.Error("it says that logind does not answer")
	}
	b.cut()
	<-w.lost
	<-w.idle
	b.want("AddMatch", "Inhibit")
	if len(w.begun) > 0 {
		t.Error("a shutdown began twice")
	}
}
