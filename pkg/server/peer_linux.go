package server

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/pkg/trust"
)

// processOf returns the user and the process at the other end of a unix socket.
func processOf(c net.Conn) (uid uint32, pid int32, err error) {
	if inner, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = inner.NetConn()
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		return 0, 0, fmt.Errorf("a connection of kind %T", c)
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return 0, 0, err
	}
	var cred *unix.Ucred
	var asked error
	if err := raw.Control(func(fd uintptr) { cred, asked = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return 0, 0, err
	}
	if asked != nil {
		return 0, 0, asked
	}
	return cred.Uid, cred.Pid, nil
}

// hasHungUp reports whether the peer has closed its sending half. It reads no data. It is false for a
// connection without a file descriptor.
func hasHungUp(c net.Conn) (gone bool) {
	for {
		inner, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		c = inner.NetConn()
	}
	it, ok := c.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := it.SyscallConn()
	if err != nil {
		return false
	}
	err = raw.Control(func(fd uintptr) {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		_, err := unix.Poll(poll, 0)
		gone = err == nil && poll[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0
	})
	return err == nil && gone
}

// checkPrivate returns an error if users other than root and the agent's own could replace a
// socket in dir and receive the requests to it. Group and others must not be able to write in dir.
// Even with the sticky bit, they could make a socket before the agent does. Package trust checks the
// directories above and the links on the path.
func checkPrivate(dir string) error {
	switch p, err := trust.Path(dir, []int{os.Geteuid()}); {
	case err != nil:
		return err
	case p != nil:
		return fmt.Errorf("directory %w", p)
	}
	var s unix.Stat_t
	if err := unix.Stat(dir, &s); err != nil {
		return &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	if s.Mode&0o022 != 0 {
		return fmt.Errorf("directory %s can be written by others (mode %04o)", dir, s.Mode&0o7777)
	}
	return nil
}

// descriptors returns the limit of file descriptors of this process.
func descriptors() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 1024
	}
	return int(min(limit.Cur, 1<<20))
}

// shortPath returns a name for path that fits into a socket's address, which has 108 bytes. The
// name is valid until done is called.
func shortPath(path string) (name string, done func(), err error) {
	if len(path) < 108 {
		return path, func() {}, nil
	}
	dir, err := os.OpenFile(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", nil, err
	}
	return filepath.Join("/proc/self/fd", strconv.Itoa(int(dir.Fd())), filepath.Base(path)), func() { _ = dir.Close() }, nil
}

// freeBytes returns the space on the disk of dir that users other than root can use.
func freeBytes(dir string) (uint64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, err
	}
	return s.Bavail * uint64(s.Bsize), nil
}
