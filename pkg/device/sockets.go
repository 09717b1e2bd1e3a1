package device

import (
	"context"
	"net"

	"github.com/fsnotify/fsnotify"

	"github.com/nodectl/nodectl/pkg/pluginconn"
)

// Sockets connects processes of the machine. Tests in fake time replace it: there, a process cannot
// wait for the kernel.
type Sockets interface {
	Dial(ctx context.Context, socket string) (net.Conn, error)
	Listen(socket string) (net.Listener, error)
	Watch() (Watcher, error)
}

// Watcher watches directories.
type Watcher interface {
	Add(dir string) error
	// Wait returns after a change in a directory, and when ctx ends.
	Wait(ctx context.Context)
	Close() error
}

// kernel has the Sockets of the machine.
type kernel struct{}

// Dial implements Sockets.
func (kernel) Dial(ctx context.Context, socket string) (net.Conn, error) {
	return pluginconn.Dial(ctx, socket)
}

// Listen implements Sockets.
func (kernel) Listen(socket string) (net.Listener, error) { return net.Listen("unix", socket) }

// Watch implements Sockets.
func (kernel) Watch() (Watcher, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	return watcher{w}, nil
}

// watcher is the Watcher of the machine.
type watcher struct{ *fsnotify.Watcher }

// Wait implements Watcher.
func (w watcher) Wait(ctx context.Context) {
	select {
	case <-w.Events:
	case <-w.Errors:
	case <-ctx.Done():
	}
}
