package process

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// receiveBuffer is the size of the receive buffer of the UDP socket, in bytes. It is large, so that a
// flood of one client does not displace all queries of others.
const receiveBuffer = 4 << 20

// bind binds a UDP and a TCP socket.
func bind(to netip.AddrPort) (fds []int, err error) {
	defer func() {
		if err != nil {
			closeAll(fds)
		}
	}()
	for _, kind := range []int{unix.SOCK_DGRAM, unix.SOCK_STREAM} {
		fd, err := unix.Socket(family(to.Addr()), kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return fds, fmt.Errorf("make socket: %w", err)
		}
		fds = append(fds, fd)
		name := "udp"
		if kind == unix.SOCK_STREAM {
			name = "tcp"
			if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
				return fds, err
			}
		} else if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) != nil {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer) // limited by net.core.rmem_max
		}
		if err := bindSocket(fd, to); err != nil {
			if errors.Is(err, unix.EADDRINUSE) {
				err = fmt.Errorf("%w: another program listens there, or on all addresses of this machine", err)
			}
			return fds, fmt.Errorf("listen on %s (%s): %w", to, name, err)
		}
		if kind == unix.SOCK_STREAM {
			if err := unix.Listen(fd, 512); err != nil {
				return fds, fmt.Errorf("listen on %s (%s): %w", to, name, err)
			}
		}
	}
	return fds, nil
}

// bindLimit is how long bindSocket waits for an address that is in use.
const bindLimit = time.Second

// bindSocket binds a socket. The threads of a killed process may hold its sockets after its first thread
// has ended, so bindSocket tries for a second.
func bindSocket(fd int, to netip.AddrPort) error {
	for deadline := time.Now().Add(bindLimit); ; time.Sleep(10 * time.Millisecond) {
		err := unix.Bind(fd, sockaddr(to))
		if !errors.Is(err, unix.EADDRINUSE) || time.Now().After(deadline) {
			return err
		}
	}
}

func family(a netip.Addr) int {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

func sockaddr(to netip.AddrPort) unix.Sockaddr {
	if to.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
}

// checkBound returns an error unless a socket is of this kind and bound to this address. The socket
// may come from a process that an attacker controls.
func checkBound(fd, kind int, to netip.AddrPort) error {
	is, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil || is != kind {
		return fmt.Errorf("socket has the type %d, not %d: %w", is, kind, errors.Join(err))
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return err
	}
	var at netip.AddrPort
	switch a := name.(type) {
	case *unix.SockaddrInet4:
		at = netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		at = netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port))
	}
	if at != to {
		return fmt.Errorf("socket is bound to %s, not %s", at, to)
	}
	return nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// start starts the process with sockets, and connects to it. The process has a session of its own, so
// that no signal of a terminal reaches it. It has none of the agent's environment variables. The
// record names the process, and old if it is not nil.
func (s *Supervisor) start(ctx context.Context, sockets []int, old *conn) (_ *conn, err error) {
	control, err := s.listen()
	if err != nil {
		return nil, err
	}
	defer unix.Close(control)
	startPair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer closeAll(startPair[:])
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	log, err := os.OpenFile(s.cfg.LogFile, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|os.O_APPEND|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	files := []uintptr{null.Fd(), null.Fd(), log.Fd(), uintptr(control), uintptr(startPair[1])}
	for _, fd := range sockets {
		files = append(files, uintptr(fd))
	}
	args := []string{"nodectl", "dns", strconv.Itoa(len(sockets) / 2)}
	if old != nil {
		args = append(args, takeOver)
	}
	pid, err := syscall.ForkExec(s.cfg.program(), args, &syscall.ProcAttr{
		Dir: "/", Env: []string{"PATH=/", "TZ=UTC"}, Files: files, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return nil, fmt.Errorf("start DNS server: %w", err)
	}
	p, err := os.FindProcess(pid)
	if err != nil {
		return nil, err
	}
	pids := []int{pid}
	if old != nil {
		pids = append(pids, old.pid)
	}
	discard := func() {
		_ = p.Kill()
		_, _ = p.Wait()
	}
	if err := save(s.cfg, pids...); err != nil {
		discard()
		return nil, fmt.Errorf("record DNS server: %w", err)
	}
	if _, err := unix.Write(startPair[0], []byte{1}); err != nil {
		discard()
		return nil, fmt.Errorf("start DNS server: it ended at once: %w", err)
	}
	c, err := dial(ctx, s.cfg.Dir, startLimit)
	if err == nil {
		if err = c.identify(); err != nil {
			c.close()
		}
	}
	if err != nil {
		discard()
		return nil, fmt.Errorf("start DNS server: %w; its log is %s", err, s.cfg.LogFile)
	}
	_ = p.Release()
	c.limit = callLimit
	return c, nil
}

// listen creates the control socket. A process with the previous socket keeps its connections.
func (s *Supervisor) listen() (fd int, err error) {
	dir, err := os.Open(s.cfg.Dir)
	if err != nil {
		return -1, err
	}
	defer dir.Close()
	if err := os.Remove(filepath.Join(s.cfg.Dir, socketName)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return -1, err
	}
	fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	if err = unix.Bind(fd, &unix.SockaddrUnix{Name: shortPath(dir)}); err == nil {
		err = unix.Listen(fd, maxControls)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("make control socket of the DNS server: %w", err)
	}
	return fd, nil
}

// socketName is the name of the control socket in its directory.
const socketName = "dns.sock"

// shortPath returns a path of the control socket that uses the descriptor of the open directory,
// because the path of the directory may be too long for a socket address.
func shortPath(dir *os.File) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), socketName)
}

// dial connects to the control socket of a directory. limit is the time limit of each answer.
func dial(ctx context.Context, path string, limit time.Duration) (*conn, error) {
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	c := &conn{ended: make(chan struct{}), dir: path, limit: limit}
	ctx, stop := context.WithTimeout(ctx, limit)
	defer stop()
	var d net.Dialer
	for _, to := range []**net.UnixConn{&c.control, &c.watched} {
		one, err := d.DialContext(ctx, "unix", shortPath(dir))
		if err != nil {
			c.close()
			return nil, err
		}
		*to = one.(*net.UnixConn)
	}
	c.watching.Go(c.watch)
	return c, nil
}
