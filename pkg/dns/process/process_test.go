//go:build linux

package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/pkg/dns"
	"github.com/nodectl/nodectl/pkg/dns/server"
	"github.com/nodectl/nodectl/test/wait"
)

// init makes this test's program the process that it starts.
func init() {
	if len(os.Args) > 2 && os.Args[0] == "nodectl" && os.Args[1] == "dns" {
		os.Exit(Child(os.Args[2:]))
	}
}

var (
	address  = netip.MustParseAddr("10.97.0.10")
	services = netip.MustParsePrefix("10.97.0.0/16")
)

// agent is the agent's side for one test.
type agent struct {
	Config
	log *lines
}

// lines is a log.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func newAgent(t *testing.T) agent {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("the test needs root, to bind port 53")
	}
	a := agent{log: &lines{}}
	dir := t.TempDir()
	a.Config = Config{
		Dir: filepath.Join(dir, "run", strings.Repeat("long", 40)), LogFile: filepath.Join(dir, "dns.log"), Address: address, Range: services,
		Log: slog.New(slog.NewTextHandler(a.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	t.Cleanup(func() {
		if t.Failed() {
			text, _ := os.ReadFile(a.LogFile)
			t.Logf("the agents said:\n%s\nthe process said:\n%s", a.log, text)
		}
		if err := Stop(a.Config); err != nil {
			t.Error(err)
		}
		if had, err := usageOf(address); err != nil || had.ours {
			t.Errorf("the address is left: %+v, %v", had, err)
		}
	})
	return a
}

// run makes a Supervisor that runs until the returned function is called.
func (a agent) run(t *testing.T) (k *Supervisor, leave func()) {
	t.Helper()
	k = New(a.Config)
	if err := k.begin(t); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { k.Run(ctx) })
	leave = sync.OnceFunc(func() {
		stop()
		wg.Wait()
	})
	t.Cleanup(leave)
	return k, leave
}

// begin makes the server run, and waits for it.
func (s *Supervisor) begin(t *testing.T) error {
	s.Enable()
	return s.Ensure(t.Context())
}

func (s *Supervisor) pid() int {
	s.lock()
	defer s.unlock()
	if s.child == nil {
		return 0
	}
	return s.child.pid
}

// state has one Service with this name.
func state(name string) server.State {
	return server.State{
		Config: dns.Config{Domain: "cluster.local", Servers: []netip.Addr{address}, Ranges: []netip.Prefix{services}, Serial: 1}, Known: true,
		Services: []*dns.Service{{Namespace: "default", Name: name, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.97.1.1")}}},
	}
}

// resolve asks the server for a Service, and returns the code of the answer and its addresses.
func resolve(name, network string) (string, error) {
	return resolveName(name+".default.svc.cluster.local.", network)
}

// resolveName asks the server for a whole name.
func resolveName(name, network string) (string, error) { return resolveAt(address, name, network) }

func resolveAt(server netip.Addr, name, network string) (string, error) {
	conn, err := net.Dial(network, netip.AddrPortFrom(server, 53).String())
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(wait.Limit))
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: 7}, Questions: []dnsmessage.Question{{
		Name: dnsmessage.MustNewName(name), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET,
	}}}
	msg, err := m.Pack()
	if err != nil {
		return "", err
	}
	buf, n := make([]byte, 4096), 0
	if network == "tcp" {
		_, err = conn.Write(append([]byte{0, byte(len(msg))}, msg...))
		if err == nil {
			_, err = io.ReadFull(conn, buf[:2])
		}
	} else {
		_, err = conn.Write(msg)
	}
	if err == nil {
		n, err = conn.Read(buf)
	}
	if err != nil {
		return "", err
	}
	if err := m.Unpack(buf[:n]); err != nil {
		return "", err
	}
	return fmt.Sprint(m.RCode.String(), " ", len(m.Answers)), nil
}

const (
	found   = "RCodeSuccess 1"
	absent  = "RCodeNameError 0"
	unknown = "RCodeServerFailure 0"
)

func wantAnswer(t *testing.T, name, want string) {
	t.Helper()
	for _, network := range []string{"udp", "tcp"} {
		if got, err := resolve(name, network); err != nil || got != want {
			t.Errorf("%s over %s: %q, %v, want %q", name, network, got, err, want)
		}
	}
}

// waitFor waits until the server has a Service.
func waitFor(t *testing.T, name string) {
	t.Helper()
	wait.Until(t, "the server has the Service "+name, func() (string, bool) {
		got, err := resolve(name, "tcp") // a query over UDP to a process that is killed would be lost
		return fmt.Sprint(got, err), got == found
	})
}

// The process outlives its agent with its names, and the next agent adopts it.
//
// Shows: F1
func TestSupervisor_AgentRestarts_ProcessIsAdopted(t *testing.T) {
	a := newAgent(t)
	k, leave := a.run(t)
	wantAnswer(t, "web", unknown) // no Services are known yet
	k.SetState(state("web"))
	waitFor(t, "web")
	wantAnswer(t, "other", absent)
	pid := k.pid()
	leave()
	if len(k.Servers()) != 0 {
		t.Error("an agent that has left still names a server")
	}
	wantAnswer(t, "web", found)
	if !New(a.Config).HasRun() {
		t.Error("the next agent does not know that the server was used")
	}

	next, _ := a.run(t)
	if got := next.pid(); got != pid {
		t.Errorf("process %d was replaced by %d", pid, got)
	}
	wantAnswer(t, "web", found) // the next agent has sent nothing
	entries, err := os.ReadDir(a.Dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if got := strings.Join(names, " "); got != "dns.json dns.sock" { // the table of package test/growth has these
		t.Errorf("files of the process: %s", got)
	}
	next.SetState(state("other"))
	waitFor(t, "other")
	wantAnswer(t, "web", absent)
}

// upstream is a name server on another address of loopback. It answers with one address.
func upstream(t *testing.T) netip.AddrPort {
	t.Helper()
	conn, err := net.ListenPacket("udp4", "127.0.0.53:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	go func() {
		buf := make([]byte, 4096)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) != nil {
				continue
			}
			m.Response, m.Additionals = true, nil
			m.Answers = []dnsmessage.Resource{{
				Header: dnsmessage.ResourceHeader{Name: m.Questions[0].Name, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET, TTL: 5},
				Body:   &dnsmessage.AResource{A: [4]byte{192, 0, 2, 1}},
			}}
			if out, err := m.Pack(); err == nil {
				_, _ = conn.WriteTo(out, from)
			}
		}
	}()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort()
}

// A process that is started before the Services are known, as by runonce, which has no Run, answers
// other names at once. One that has names keeps them.
func TestSupervisor_ServicesUnknown_OtherNamesAreAnswered(t *testing.T) {
	a := newAgent(t)
	first := state("web")
	first.Upstreams = []netip.AddrPort{upstream(t)}
	k := New(a.Config)
	k.SetFirst(first)
	if err := k.begin(t); err != nil {
		t.Fatal(err)
	}
	if got, err := resolveName("example.com.", "udp"); err != nil || got != found {
		t.Errorf("another name: %q, %v", got, err)
	}
	wantAnswer(t, "web", unknown)
	k.letGo()

	next, _ := a.run(t)
	next.SetState(state("web"))
	waitFor(t, "web")
	last := New(a.Config)
	last.SetFirst(first)
	if err := last.begin(t); err != nil {
		t.Fatal(err)
	}
	wantAnswer(t, "web", found)
	last.letGo()
}

// letGo closes the connections to the process, as the end of an agent does.
func (s *Supervisor) letGo() {
	s.lock()
	defer s.unlock()
	s.release()
}

// The process has only the rights that answering needs.
func TestChild_Running_HasNoRights(t *testing.T) {
	a := newAgent(t)
	k, _ := a.run(t)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", k.pid()))
	if err != nil {
		t.Fatal(err)
	}
	field := func(name string) string {
		_, rest, _ := strings.Cut(string(status), "\n"+name+":")
		value, _, _ := strings.Cut(rest, "\n")
		return strings.Join(strings.Fields(value), " ")
	}
	user := fmt.Sprintf("%[1]d %[1]d %[1]d %[1]d", UserID)
	for name, want := range map[string]string{"Uid": user, "Gid": user, "Groups": "", "CapEff": "0000000000000000", "CapPrm": "0000000000000000"} {
		if got := field(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if withCgo {
		return // a program with cgo cannot do the rest to all its threads
	}
	for name, want := range map[string]string{"NoNewPrivs": "1", "Seccomp": "2"} {
		if got := field(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}

// When memory runs out, the kernel kills the process before a protected agent. The memory of the
// process is limited.
func TestChild_ProtectedAgent_ProcessIsNot(t *testing.T) {
	const file = "/proc/self/oom_score_adj"
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("-500"), 0); err != nil && !errors.Is(err, fs.ErrPermission) {
		t.Fatal(err) // without CAP_SYS_RESOURCE the score stays, and the process must not lower it
	}
	defer func() {
		if err := os.WriteFile(file, before, 0); err != nil {
			t.Error(err)
		}
	}()
	a := newAgent(t)
	k, _ := a.run(t)
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", k.pid()))
	want := "0"
	if old := strings.TrimSpace(string(before)); !strings.HasPrefix(old, "-") {
		want = old
	}
	if got := strings.TrimSpace(string(text)); err != nil || got != want && got != "0" {
		t.Errorf("the score is %q, %v, want %s", got, err, want)
	}
	limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", k.pid()))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(limits), "Max data size")
	if f := strings.Fields(rest); !ok || len(f) < 2 || f[0] == "unlimited" || f[0] != f[1] {
		t.Errorf("the memory has no limit: %s", limits)
	}
}

// An agent of another version takes the sockets over: the old process or the new one answers
// queries all the time.
func TestSupervisor_OtherProgram_NoQueryIsLost(t *testing.T) {
	a := newAgent(t)
	k, leave := a.run(t)
	k.SetState(state("web"))
	waitFor(t, "web")
	pid := k.pid()
	leave()

	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	a.Program = filepath.Join(t.TempDir(), "next")
	if err := os.WriteFile(a.Program, program, 0o700); err != nil {
		t.Fatal(err)
	}
	done, asked := make(chan struct{}), 0
	var asking sync.WaitGroup
	asking.Go(func() {
		for ; ; asked++ {
			select {
			case <-done:
				return
			default:
			}
			if got, err := resolve("web", "udp"); err != nil || got != found {
				t.Errorf("query %d: %q, %v", asked, got, err)
				return
			}
		}
	})
	next, _ := a.run(t)
	wantAnswer(t, "web", found)
	if got := next.pid(); got != pid { // it has the names, which the agent does not know yet
		t.Errorf("process %d was replaced by %d before there are names", pid, got)
	}
	next.SetState(state("web"))
	wait.Until(t, "another process runs", func() (int, bool) {
		got := next.pid()
		return got, got != 0 && got != pid
	})
	close(done)
	asking.Wait()
	if asked == 0 {
		t.Error("nothing was asked meanwhile")
	}
	wantAnswer(t, "web", found)
	wantGone(t, pid)
}

// hang stops a process, and waits until the kernel has stopped each of its threads.
func hang(t *testing.T, pid int) {
	t.Helper()
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "all threads have stopped", func() (running int, done bool) {
		all, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		if err != nil || len(all) == 0 {
			return -1, false
		}
		for _, file := range all {
			stat, err := os.ReadFile(file)
			if _, after, ok := strings.Cut(string(stat), ") "); err != nil || !ok || !strings.HasPrefix(after, "T") {
				running++
			}
		}
		return running, running == 0
	})
}

// wantGone fails if a process with this ID runs.
func wantGone(t *testing.T, pid int) {
	t.Helper()
	if err := unix.Kill(pid, 0); err == nil && !isZombie(pid) {
		t.Errorf("process %d runs", pid)
	}
}

// A process that was killed is started again with the newest state. If a process hangs, the next
// agent finds it by its record and kills it.
//
// Shows: F1
func TestSupervisor_ProcessKilledOrHangs_AnotherIsStarted(t *testing.T) {
	a := newAgent(t)
	k, leave := a.run(t)
	k.SetState(state("web"))
	pid := k.pid()
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	again := wait.Until(t, "another process runs", func() (int, bool) {
		got := k.pid()
		return got, got != 0 && got != pid
	})
	waitFor(t, "web")
	leave()
	hang(t, again)
	next, _ := a.run(t)
	if got := next.pid(); got == again {
		t.Errorf("a process that hangs was adopted")
	}
	wantGone(t, again)
	next.SetState(state("web"))
	waitFor(t, "web")
}

// With another range of Services, the next agent ends the process and removes its address, and
// another process answers on the new one.
func TestSupervisor_RangeChanged_AddressMoves(t *testing.T) {
	moved := netip.MustParseAddr("10.98.0.10")
	a := newAgent(t)
	k, leave := a.run(t)
	pid := k.pid()
	leave()
	a.Address, a.Range = moved, netip.MustParsePrefix("10.98.0.0/16")
	if !New(a.Config).HasMoved() {
		t.Error("the next agent does not know that the address has moved")
	}
	next, leave := a.run(t)
	if got := next.pid(); got == pid || got == 0 {
		t.Errorf("process %d follows %d", got, pid)
	}
	wantGone(t, pid)
	if had, err := usageOf(address); err != nil || had.ours {
		t.Errorf("the old address is left: %+v, %v", had, err)
	}
	if got, err := resolveAt(moved, "web.default.svc.cluster.local.", "udp"); err != nil || got != unknown {
		t.Errorf("the new address: %q, %v", got, err)
	}
	leave()
	if err := Stop(a.Config); err != nil {
		t.Error(err)
	}
	if had, err := usageOf(moved); err != nil || had.ours {
		t.Errorf("the new address is left: %+v, %v", had, err)
	}
}

// A process that answers late is not killed, and serves the next request. A process that misses
// three consecutive answers is killed.
func TestSupervisor_SlowAnswers_OnlyTheThirdInARowEndsIt(t *testing.T) {
	a := newAgent(t)
	k := New(a.Config)
	if err := k.begin(t); err != nil {
		t.Fatal(err)
	}
	defer k.letGo()
	pid := k.pid()
	k.lock()
	k.child.limit = 20 * time.Millisecond
	k.unlock()
	for range 2 { // the answer between them starts the count again
		hang(t, pid)
		k.check()
		k.check()
		if err := unix.Kill(pid, unix.SIGCONT); err != nil {
			t.Fatal(err)
		}
		wait.Until(t, "the process answers again", func() (int, bool) {
			k.lock()
			defer k.unlock()
			k.child.limit = wait.Limit
			_, err := k.child.status()
			k.child.limit = 20 * time.Millisecond
			return k.child.missed, err == nil && k.child.missed == 0
		})
	}
	if got := k.pid(); got != pid {
		t.Fatalf("process %d was replaced by %d", pid, got)
	}
	hang(t, pid)
	for range maxMissed {
		k.check()
	}
	if got := k.pid(); got != 0 {
		t.Errorf("process %d has missed %d answers and runs", got, maxMissed)
	}
	wantGone(t, pid)
}

// A longer state has a longer limit.
func TestConn_LongRequest_HasMoreTime(t *testing.T) {
	c := &conn{limit: callLimit}
	for size, want := range map[int]time.Duration{0: callLimit, 1 << 19: callLimit + time.Second/2, maxFrame: callLimit + 64*time.Second} {
		if got := c.limitOf(size); got != want {
			t.Errorf("%d bytes: %s, want %s", size, got, want)
		}
	}
}

// A caller whose context ends does not wait for the agent's own use of the process.
func TestSupervisor_ProcessIsBusy_EnsureEndsWithItsContext(t *testing.T) {
	k := New(Config{Log: slog.New(slog.DiscardHandler)})
	k.Enable()
	k.lock()
	defer k.unlock()
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := k.Ensure(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if got := k.Servers(); len(got) != 0 {
		t.Errorf("%v", got)
	}
}

// Stop leaves no process, address or file. It succeeds if there is none of them.
func TestStop_ProcessRuns_LeavesNothing(t *testing.T) {
	a := newAgent(t)
	k, leave := a.run(t)
	pid := k.pid()
	leave()
	for range 2 {
		if err := Stop(a.Config); err != nil {
			t.Fatal(err)
		}
	}
	wantGone(t, pid)
	if had, err := usageOf(address); err != nil || had.ours {
		t.Errorf("%+v, %v", had, err)
	}
	if left, err := os.ReadDir(a.Dir); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// now makes the next attempt due at once.
func (s *Supervisor) now() {
	s.lock()
	defer s.unlock()
	s.retry = time.Time{}
}

// If another program has the port, the failure is logged once, and the server does not run until
// the port is free.
func TestSupervisor_PortOfOthers_IsReported(t *testing.T) {
	a := newAgent(t)
	other, err := net.ListenPacket("udp4", "0.0.0.0:53")
	if err != nil {
		t.Fatal(err)
	}
	k := New(a.Config)
	for range 3 {
		k.now()
		if err := k.begin(t); !errors.Is(err, unix.EADDRINUSE) {
			t.Errorf("the port is in use: %v", err)
		}
	}
	if len(k.Servers()) != 0 {
		t.Error("a server that does not run is named")
	}
	if n := strings.Count(a.log.String(), "Failed to run the DNS server"); n != 1 {
		t.Errorf("reported %d times: %s", n, a.log)
	}
	_ = other.Close()
	k.now()
	if err := k.begin(t); err != nil {
		t.Errorf("the port is free: %v", err)
	}
	wantAnswer(t, "web", unknown)
	k.letGo()
}

// Only addresses and routes that this machine needs for others are conflicts.
func TestUse_AddressOfOthers_IsAConflict(t *testing.T) {
	prefix := netip.MustParsePrefix
	const of = "10.97.0.10, the address of the DNS server, is "
	for name, c := range map[string]struct {
		use         usage
		want, wider string
	}{
		"nothing":              {usage{}, "", ""},
		"other networks":       {usage{addresses: []assigned{{prefix("192.168.1.7/24"), "eth0", "eth0"}}, routes: []netip.Prefix{prefix("192.168.1.0/24")}}, "", ""},
		"the address":          {usage{addresses: []assigned{{prefix("10.97.0.10/32"), "eth0", "eth0"}}}, of + "already an address of the interface eth0", ""},
		"its network":          {usage{addresses: []assigned{{prefix("10.97.0.1/24"), "eth0", "eth0"}}}, of + "in the network 10.97.0.0/24 of the interface eth0", ""},
		"a route to it":        {usage{routes: []netip.Prefix{prefix("10.97.0.0/16")}}, of + "in the network 10.97.0.0/16, to which this machine has a route", "10.97.0.0/16"},
		"a route to much more": {usage{routes: []netip.Prefix{prefix("10.0.0.0/8")}}, "", "10.0.0.0/8"},
	} {
		got := ""
		if err := c.use.conflict(address, services); err != nil {
			got = err.Error()
		}
		if got != c.want || c.use.widerRoute(address) != c.wider {
			t.Errorf("%s: %q, %q", name, got, c.use.widerRoute(address))
		}
	}
}

// If a user runs the hidden command, its error says that only an agent starts it.
func TestChild_WithoutAnAgent_Refuses(t *testing.T) {
	for _, addresses := range []string{"1", "99", "x"} {
		cmd := exec.Command("/proc/self/exe")
		cmd.Args = []string{"nodectl", "dns", addresses}
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), "only an agent starts this command") {
			t.Errorf("%s: %v: %s", addresses, err, out)
		}
	}
}

// The agent uses sockets of a compromised process only if they are the right ones.
func TestIsBound_OtherSocket_IsRefused(t *testing.T) {
	at := netip.MustParseAddrPort("127.0.0.1:0")
	fds, err := bind(at)
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(fds)
	name, err := unix.Getsockname(fds[0])
	if err != nil {
		t.Fatal(err)
	}
	bound := netip.AddrPortFrom(at.Addr(), uint16(name.(*unix.SockaddrInet4).Port))
	if err := checkBound(fds[0], unix.SOCK_DGRAM, bound); err != nil {
		t.Error(err)
	}
	if checkBound(fds[0], unix.SOCK_STREAM, bound) == nil || checkBound(fds[1], unix.SOCK_STREAM, bound) == nil || checkBound(fds[0], unix.SOCK_DGRAM, at) == nil || checkBound(0, unix.SOCK_DGRAM, bound) == nil {
		t.Error("another socket is accepted")
	}
}

// glibc's resolver with a pod's file finds a Service by its short name, by its name with the
// namespace, and by its address; an unknown name is reported as missing, not as a failure.
func TestProcess_GlibcResolver_FindsServices(t *testing.T) {
	a := newAgent(t)
	k, _ := a.run(t)
	k.SetState(state("web"))
	waitFor(t, "web")
	file := filepath.Join(t.TempDir(), "resolv.conf")
	text := "nameserver 10.97.0.10\nsearch default.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n"
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ database, name, want string }{
		{"ahostsv4", "web", "10.97.1.1"}, {"ahostsv4", "web.default", "10.97.1.1"}, {"ahostsv4", "web.default.svc.cluster.local", "10.97.1.1"},
		{"hosts", "10.97.1.1", "web.default.svc.cluster.local"}, {"ahostsv4", "none.default.svc.cluster.local.", "exit status 2"},
	} {
		// Another mount namespace, so that the machine's own file stays.
		cmd := exec.Command("unshare", "--mount", "sh", "-c", `mount --bind "$0" /etc/resolv.conf && exec getent "$1" "$2"`, file, c.database, c.name)
		out, err := cmd.CombinedOutput()
		if got := fmt.Sprint(string(out), err); !strings.Contains(got, c.want) {
			t.Errorf("getent %s %s: %s, want %s", c.database, c.name, got, c.want)
		}
	}
}
