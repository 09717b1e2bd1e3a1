package soakdevices

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/test/bufconn"

	"github.com/nodectl/nodectl/pkg/backoff"
	"github.com/nodectl/nodectl/pkg/device"
)

// network has the sockets of the machine. Their files are real, and their connections are in memory:
// in fake time, a process cannot wait for the kernel.
type network struct {
	mu sync.Mutex
	at map[string]*endpoint // by path
}

// endpoint is a socket on which a process listens.
type endpoint struct {
	*bufconn.Listener
	net  *network
	path string
}

// Close closes the socket and removes its file, unless the process was killed.
func (e *endpoint) Close() error {
	if e.net.remove(e) {
		_ = os.Remove(e.path)
	}
	return e.Listener.Close()
}

// remove removes a socket, and reports whether it was there. Its file stays.
func (n *network) remove(e *endpoint) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.at[e.path] != e {
		return false
	}
	delete(n.at, e.path)
	return true
}

// line is the access of one process to the network, until it is cut.
type line struct {
	net *network

	mu    sync.Mutex
	over  bool
	conns []net.Conn
	ends  []*endpoint
}

func (n *network) line() *line { return &line{net: n} }

// Dial implements device.Sockets.
func (l *line) Dial(ctx context.Context, socket string) (net.Conn, error) {
	l.net.mu.Lock()
	e := l.net.at[socket]
	l.net.mu.Unlock()
	l.mu.Lock()
	over := l.over
	l.mu.Unlock()
	if e == nil || over {
		return nil, fmt.Errorf("dial %s: %w", socket, syscall.ECONNREFUSED)
	}
	conn, err := e.DialContext(ctx)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		_ = conn.Close()
		return nil, fmt.Errorf("dial %s: %w", socket, syscall.ECONNREFUSED)
	}
	l.conns = append(l.conns, conn)
	return conn, nil
}

// Listen implements device.Sockets.
func (l *line) Listen(socket string) (net.Listener, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return nil, errKilled
	}
	if err := unix.Mknod(socket, unix.S_IFSOCK|0o600, 0); err != nil {
		return nil, fmt.Errorf("listen on %s: %w", socket, err)
	}
	e := &endpoint{Listener: bufconn.Listen(1 << 16), net: l.net, path: socket}
	l.ends = append(l.ends, e)
	l.net.mu.Lock()
	defer l.net.mu.Unlock()
	l.net.at[socket] = e
	return e, nil
}

// Cut implements plugins.Line: it ends all connections and sockets of the process, as a kill does.
func (l *line) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
	for _, e := range l.ends {
		l.net.remove(e)
		_ = e.Listener.Close()
	}
	for _, c := range l.conns {
		_ = c.Close()
	}
}

// Watch implements device.Sockets.
func (l *line) Watch() (device.Watcher, error) { return looks{}, nil }

// look is how often a process looks for changes of directories.
const look = 2 * time.Second

// looks is a Watcher that reports a change each time.
type looks struct{}

func (looks) Add(string) error         { return nil }
func (looks) Wait(ctx context.Context) { backoff.Sleep(ctx, look) }
func (looks) Close() error             { return nil }
