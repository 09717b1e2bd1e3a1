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

// socket is a listener on a path of its own.
type socket struct {
	*net.UnixListener
	path string
	made os.FileInfo
}

// InUseError says that somebody answers on the socket already.
type InUseError struct{ Path string }

func (e *InUseError) Error() string { return "somebody else answers on " + e.Path }

// listen makes the socket: 0600, and never reachable by its path before it is.
// It is born in a directory that only its owner can enter and then takes the
// name, in one step, of a stale one too. What is no socket, and a socket on
// which somebody answers, is left alone; so is a directory in which others could put
// one of theirs in its place.
func listen(path string) (_ *socket, err error) {
	if err := private(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("make socket: %w", err)
	}
	switch info, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("look at socket: %w", err)
	case info.Mode().Type() != fs.ModeSocket:
		return nil, fmt.Errorf("%s is there, and is no socket", path)
	default:
		if c, err := Dial(context.Background(), path); err == nil {
			_ = c.Close()
			return nil, &InUseError{path}
		}
	}
	if left, err := filepath.Glob(filepath.Join(filepath.Dir(path), ".socket-*")); err == nil {
		for _, dir := range left { // of an agent that was killed right here
			_ = os.RemoveAll(dir)
		}
	}
	dir, err := os.MkdirTemp(filepath.Dir(path), ".socket-") // 0700
	if err != nil {
		return nil, fmt.Errorf("make socket: %w", err)
	}
	defer os.RemoveAll(dir)
	born := filepath.Join(dir, "s")
	address, done, err := short(born)
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
	l.SetUnlinkOnClose(false) // it would be by the name it was born with
	if err := os.Chmod(born, 0o600); err != nil {
		return nil, fmt.Errorf("make socket: %w", err)
	}
	made, err := os.Lstat(born)
	if err != nil {
		return nil, fmt.Errorf("make socket: %w", err)
	}
	if err := os.Rename(born, path); err != nil {
		return nil, fmt.Errorf("make socket: %w", err)
	}
	return &socket{UnixListener: l, path: path, made: made}, nil
}

// remove takes the socket away, unless another has taken its name.
func (s *socket) remove() {
	_ = s.Close()
	if now, err := os.Lstat(s.path); err == nil && os.SameFile(now, s.made) {
		_ = os.Remove(s.path)
	}
}

// Dial connects to the socket at path, however long that is.
func Dial(ctx context.Context, path string) (net.Conn, error) {
	address, done, err := short(path)
	if err != nil {
		return nil, err
	}
	defer done()
	var d net.Dialer
	return d.DialContext(ctx, "unix", address)
}

// peer is who is at the other end of a connection, as the kernel says.
type peer struct {
	uid uint32
	pid int32
	err error
}

type peerKey struct{}

func withPeer(ctx context.Context, c net.Conn) context.Context {
	uid, pid, err := peerOf(c)
	return context.WithValue(ctx, peerKey{}, peer{uid, pid, err})
}

// admitted returns the peer of a request, and whether it is root or the agent's own
// user. A peer that the kernel does not name is not admitted.
func admitted(ctx context.Context) (peer, bool) {
	p, known := ctx.Value(peerKey{}).(peer)
	return p, known && p.err == nil && (p.uid == 0 || int64(p.uid) == int64(os.Geteuid()))
}
