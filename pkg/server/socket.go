package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
)

// socket is a listener on a Unix socket, which remove removes.
type socket struct {
	*net.UnixListener
	path string
	made os.FileInfo
}

// InUseError is the error for a socket on which another process answers.
type InUseError struct{ Path string }

func (e *InUseError) Error() string { return "another process answers on " + e.Path }

// listen makes the socket with mode 0600. It creates the socket in a private directory
// and renames it to path, which replaces a stale socket atomically. It returns an error
// if path is another kind of file, or if a process answers there. It also returns an error if other
// users could replace a file in the directory of path.
func listen(path string) (_ *socket, err error) {
	if err := checkPrivate(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("make socket: %w", err)
	}
	switch info, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("check socket: %w", err)
	case info.Mode().Type() != fs.ModeSocket:
		return nil, fmt.Errorf("%s exists and is not a socket", path)
	default:
		if c, err := Dial(context.Background(), path); err == nil {
			_ = c.Close()
			return nil, &InUseError{path}
		}
	}
	if stale, err := filepath.Glob(filepath.Join(filepath.Dir(path), ".socket-*")); err == nil {
		for _, dir := range stale { // of an agent that was killed before the rename
			_ = os.RemoveAll(dir)
		}
	}
	dir, err := os.MkdirTemp(filepath.Dir(path), ".socket-") // 0700
	if err != nil {
		return nil, fmt.Errorf("make socket: %w", err)
	}
	defer os.RemoveAll(dir)
	temporary := filepath.Join(dir, "s")
	address, done, err := shortPath(temporary)
	if err != nil {
		return nil, fmt.Errorf("make socket: %w", err)
	}
	defer done()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: address})
	if err != nil {
		return nil, fmt.Errorf("make socket: %w", err)
	}
	defer func() {
		if err != nil {
			_ = l.Close()
		}
	}()
	l.SetUnlinkOnClose(false) // it would unlink the old name
	if err := os.Chmod(temporary, 0o600); err != nil {
		return nil, fmt.Errorf("make socket: %w", err)
	}
	made, err := os.Lstat(temporary)
	if err != nil {
		return nil, fmt.Errorf("make socket: %w", err)
	}
	if err := os.Rename(temporary, path); err != nil {
		return nil, fmt.Errorf("make socket: %w", err)
	}
	return &socket{UnixListener: l, path: path, made: made}, nil
}

// remove closes the listener and removes the socket, unless path is another file now.
func (s *socket) remove() {
	_ = s.Close()
	if now, err := os.Lstat(s.path); err == nil && os.SameFile(now, s.made) {
		_ = os.Remove(s.path)
	}
}

// Dial connects to the socket at path, which may be longer than a socket's address.
func Dial(ctx context.Context, path string) (net.Conn, error) {
	address, done, err := shortPath(path)
	if err != nil {
		return nil, err
	}
	defer done()
	var d net.Dialer
	return d.DialContext(ctx, "unix", address)
}

// process is the process at the other end of a connection, read from the kernel.
type process struct {
	uid uint32
	pid int32
	err error
}

type processKey struct{}

func withProcess(ctx context.Context, c net.Conn) context.Context {
	uid, pid, err := processOf(c)
	return context.WithValue(ctx, processKey{}, process{uid, pid, err})
}

// allowedProcess returns the process that sent a request over the socket. ok is false if its user is
// neither root nor the agent's own, or is unknown. The server must then refuse the request.
func allowedProcess(ctx context.Context) (p process, ok bool) {
	p, ok = ctx.Value(processKey{}).(process)
	return p, ok && p.err == nil && (p.uid == 0 || int64(p.uid) == int64(os.Geteuid()))
}
