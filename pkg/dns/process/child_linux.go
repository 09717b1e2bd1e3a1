package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/pkg/confine"
	"github.com/nodectl/nodectl/pkg/dns/server"
)

// The process inherits these descriptors from the agent: the listening control socket, one end of a
// socket pair, and a UDP and a TCP socket for each address. The process waits for a byte of the agent
// on the socket pair, and exits if the other end is closed first.
const (
	controlFD = 3
	startFD   = 4
	firstFD   = 5
)

// UserID is the user and group that the process runs as. It is in a range that systemd's
// documentation lists as unused; it needs no entry in /etc/passwd.
const UserID = 61053

// maxHeap is the soft memory limit of the garbage collector.
const maxHeap = 24 << 20

// maxControls is how many connections the control socket serves at once.
const maxControls = 8

// takeOver is the second argument of a process that replaces another one. Such a process answers
// once it has a state. It also answers after takeOverLimit, because the agent may have died.
const (
	takeOver      = "take-over"
	takeOverLimit = 5 * time.Second
)

// Child is the main function of the process. It serves until an agent stops the process, and
// returns the exit code. The first argument after the command's name is the number of addresses.
func Child(args []string) int {
	if err := child(args); err != nil {
		fmt.Fprintln(os.Stderr, "nodectl dns:", err)
		return 1
	}
	return 0
}

func child(args []string) error {
	addresses := 0
	if len(args) > 0 {
		addresses, _ = strconv.Atoi(args[0])
	}
	if addresses < 1 || addresses > 4 || !isSocket(controlFD) || !isSocket(startFD) {
		return errors.New("only an agent starts this command: run nodectl serve")
	}
	// With a second processor, each query would wake a thread that has nothing to do. One processor
	// is enough for the queries that the limits allow.
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(50)
	debug.SetMemoryLimit(maxHeap)
	c := &childProcess{
		owner: uint32(os.Getuid()), log: slog.New(slog.NewTextHandler(os.Stderr, nil)), waits: len(args) > 1 && args[1] == takeOver, hasState: make(chan struct{}),
	}
	if err := c.open(addresses); err != nil {
		return err
	}
	probeStack()
	if err := limitMemory(); err != nil {
		return err
	}
	if err := confine.Serving(UserID, 53); err != nil {
		return err
	}
	// The agent writes a byte once it has recorded the process. If the agent dies earlier, the process
	// exits, so that no unrecorded process stays.
	if n, err := unix.Read(startFD, make([]byte, 1)); n != 1 || err != nil {
		return nil
	}
	_ = unix.Close(startFD)
	debug.FreeOSMemory() // return memory of the program's start to the kernel
	return c.run(context.Background())
}

// isSocket reports whether a descriptor is an open socket.
func isSocket(fd int) bool {
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFSOCK
}

// probeStack makes package net detect the address families of the machine. It binds sockets for
// that, which the process is not allowed to do later.
func probeStack() {
	if conn, err := net.DialUDP("udp", nil, &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 53}); err == nil {
		_ = conn.Close()
	}
}

// maxData limits the writable memory that the process may map after its start. It is enough for the
// largest state.
const maxData = 512 << 20

// limitMemory limits the memory of the process, and raises a negative OOM score to 0. So when memory
// runs out, the kernel may kill the process even if the agent is protected.
func limitMemory() error {
	const file = "/proc/self/oom_score_adj"
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if score, err := strconv.Atoi(strings.TrimSpace(string(text))); err != nil || score < 0 {
		if err := os.WriteFile(file, []byte("0"), 0); err != nil {
			return fmt.Errorf("raise the OOM score of the DNS server: %w", err)
		}
	}
	text, err = os.ReadFile("/proc/self/statm")
	if err != nil {
		return err
	}
	fields := strings.Fields(string(text)) // in pages; the sixth field is data and stacks
	if len(fields) < 6 {
		return fmt.Errorf("read /proc/self/statm: %d fields", len(fields))
	}
	pages, err := strconv.ParseUint(fields[5], 10, 32)
	if err != nil {
		return fmt.Errorf("read /proc/self/statm: %w", err)
	}
	limit := pages*uint64(os.Getpagesize()) + maxData
	if err := unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
		return fmt.Errorf("limit the memory of the DNS server: %w", err)
	}
	return nil
}

// childProcess is the state of the process.
type childProcess struct {
	owner     uint32 // the user of the agent
	log       *slog.Logger
	server    *server.Server
	control   *net.UnixListener
	udp       []*net.UDPConn
	tcp       []*net.TCPListener
	inherited []*os.File
	waits     bool          // the process answers only once it has a state
	hasState  chan struct{} // closed after the first state

	mu     sync.Mutex
	known  bool
	number uint64 // of the state
	stop   context.CancelFunc
}

// open opens the inherited descriptors as sockets.
func (c *childProcess) open(addresses int) error {
	control, err := listener[*net.UnixListener](c.inherit(controlFD))
	if err != nil {
		return err
	}
	control.SetUnlinkOnClose(false)
	c.control = control
	for i := range addresses {
		conn, err := net.FilePacketConn(c.inherit(firstFD + 2*i))
		if err != nil {
			return err
		}
		udp, ok := conn.(*net.UDPConn)
		tcp, err := listener[*net.TCPListener](c.inherit(firstFD + 2*i + 1))
		if !ok || err != nil {
			return errors.Join(errors.New("an inherited descriptor is not a UDP socket"), err)
		}
		c.udp, c.tcp = append(c.udp, udp), append(c.tcp, tcp)
	}
	return nil
}

// inherit opens an inherited descriptor. The file stays open for opSockets.
func (c *childProcess) inherit(fd int) *os.File {
	f := os.NewFile(uintptr(fd), "socket")
	c.inherited = append(c.inherited, f)
	return f
}

func listener[L net.Listener](f *os.File) (found L, err error) {
	l, err := net.FileListener(f)
	if err != nil {
		return found, err
	}
	found, ok := l.(L)
	if !ok {
		return found, errors.New("an inherited descriptor is a socket of another kind")
	}
	return found, nil
}

// run serves until an agent stops it.
func (c *childProcess) run(ctx context.Context) error {
	ctx, c.stop = context.WithCancel(ctx)
	defer c.stop()
	limits := server.DefaultLimits()
	c.server = server.New(limits, c.log)
	var serving sync.WaitGroup
	fail := make(chan error, 2*len(c.udp)+1)
	serving.Go(func() { fail <- c.serveControl(ctx) })
	if c.waits {
		select {
		case <-c.hasState:
		case <-time.After(takeOverLimit):
		case <-ctx.Done():
		}
	}
	for i := range c.udp {
		serving.Go(func() { fail <- c.server.Datagrams(ctx, c.udp[i]) })
		serving.Go(func() { fail <- c.server.Streams(ctx, c.tcp[i]) })
	}
	var err error
	select {
	case err = <-fail:
	case <-ctx.Done():
	}
	c.stop()
	_ = c.control.Close()
	var waiting sync.WaitGroup
	done := make(chan struct{})
	waiting.Go(func() {
		serving.Wait()
		close(done)
	})
	select {
	case <-done:
	case <-time.After(limits.Total): // remaining connections end when the process exits
	}
	return err
}

// serveControl serves the control socket.
func (c *childProcess) serveControl(ctx context.Context) error {
	slots := make(chan struct{}, maxControls)
	var agents sync.WaitGroup // each ends when its agent closes the connection
	for {
		conn, err := c.control.AcceptUnix()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		case err != nil:
			select {
			case <-time.After(100 * time.Millisecond): // out of file descriptors
			case <-ctx.Done():
			}
			continue
		}
		select {
		case slots <- struct{}{}:
			agents.Go(func() {
				defer func() { <-slots }()
				defer func() { _ = conn.Close() }()
				c.serveAgent(conn)
			})
		default:
			_ = conn.Close()
		}
	}
}

// serveAgent serves one connection of an agent.
func (c *childProcess) serveAgent(conn *net.UnixConn) {
	if uid, ok := peer(conn); !ok || uid != 0 && uid != c.owner {
		return
	}
	for {
		var q request
		if read(conn, &q) != nil {
			return
		}
		if q.Op == opSockets {
			if c.sendSockets(conn) != nil {
				return
			}
			continue
		}
		if write(conn, c.do(q)) != nil {
			return
		}
		if q.Op == opStop {
			c.stop()
			return
		}
	}
}

// peer returns the user at the other end of a connection.
func peer(conn *net.UnixConn) (uid uint32, ok bool) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, false
	}
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			uid, ok = cred.Uid, true
		}
	})
	return uid, ok
}

// do executes one request.
func (c *childProcess) do(q request) response {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case q.Op == opState && q.State != nil:
		c.server.Set(*q.State)
		c.known = q.State.Known
		c.number++
		select {
		case <-c.hasState:
		default:
			close(c.hasState)
		}
	case q.Op == opChange && q.Change != nil:
		if err := c.change(q.Change); err != nil {
			return response{Error: err.Error(), Rejected: true}
		}
	case q.Op == opStatus || q.Op == opStop:
	default:
		return response{Error: fmt.Sprintf("unknown operation %q", q.Op)}
	}
	return response{Status: &Status{Known: c.known, Counts: c.server.Counts(), Format: changeFormat, Number: c.number}}
}

// change applies a change to the state for which an agent made it. The caller holds the mutex.
func (c *childProcess) change(by *change) error {
	switch {
	case by.Format != changeFormat:
		return fmt.Errorf("apply change of format %d: this process reads format %d", by.Format, changeFormat)
	case by.After != c.number:
		return fmt.Errorf("apply change of state %d: this process has state %d", by.After, c.number)
	}
	if err := c.server.Apply(by.Change); err != nil {
		return err
	}
	c.known = by.Known
	c.number++
	return nil
}

// sendSockets sends the sockets of the DNS server to an agent.
func (c *childProcess) sendSockets(conn *net.UnixConn) error {
	n := 2 * len(c.udp)
	if err := write(conn, response{Sockets: n}); err != nil {
		return err
	}
	var fds []int
	for i := range n {
		fds = append(fds, firstFD+i)
	}
	_, _, err := conn.WriteMsgUnix([]byte{byte(n)}, unix.UnixRights(fds...), nil)
	return err
}
