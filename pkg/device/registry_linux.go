package device

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/nodectl/nodectl/pkg/backoff"
	"github.com/nodectl/nodectl/pkg/pluginconn"
)

// Limits of the registry: watched directories, and sockets that the node connects to.
const (
	maxDirectories = 256
	maxSockets     = 256
)

// Deadlines of calls to a plugin that registers, as in the kubelet.
const (
	infoTimeout   = time.Second
	notifyTimeout = 5 * time.Second
)

// scanInterval is the shortest time from an event to a scan: a plugin may change its directory
// continuously.
const scanInterval = 100 * time.Millisecond

// identity distinguishes a socket from another socket of the same name.
type identity struct {
	inode   uint64
	changed syscall.Timespec
}

// watchRegistry registers the device plugins whose sockets are in the directory or below it, until
// ctx ends. Each event leads to a scan of everything, so a lost event does no harm.
func (p *Plugins) watchRegistry(ctx context.Context, dir string) error {
	watcher, err := p.cfg.Sockets.Watch()
	if err != nil {
		return err
	}
	defer func() { _ = watcher.Close() }()
	known, stops := make(map[string]identity), make(map[string]context.CancelFunc)
	ends := make(map[string]chan struct{}) // closed when the newest keep of a socket has returned
	for {
		found, err := scan(dir, watcher.Add)
		if err != nil {
			return err
		}
		for socket, is := range known {
			if now, there := found[socket]; !there || now != is {
				stops[socket]()
				delete(known, socket)
				delete(stops, socket)
			}
		}
		for socket, is := range found {
			if _, there := known[socket]; !there {
				var one context.Context
				one, stops[socket] = context.WithCancel(ctx)
				known[socket] = is
				before, end := ends[socket], make(chan struct{})
				ends[socket] = end
				p.running.Go(func() {
					defer close(end)
					if before != nil {
						<-before // it unregisters the plugin
					}
					p.keep(one, socket)
				})
			}
		}
		maps.DeleteFunc(ends, func(_ string, end chan struct{}) bool {
			select {
			case <-end:
				return true
			default:
				return false
			}
		})
		if watcher.Wait(ctx); ctx.Err() != nil {
			return nil
		}
		backoff.Sleep(ctx, scanInterval)
	}
}

// scan watches a directory and those below it, and returns the sockets in them. It does not follow
// links. It ignores names that start with a dot.
func scan(root string, watch func(dir string) error) (map[string]identity, error) {
	found, directories := make(map[string]identity), 0
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil && path == root:
			return err
		case err != nil:
			return nil // it was removed meanwhile
		case path != root && strings.HasPrefix(e.Name(), "."):
			if e.IsDir() {
				return fs.SkipDir
			}
		case e.IsDir():
			if directories++; directories > maxDirectories {
				return fs.SkipDir
			}
			if err := watch(path); err != nil && path == root {
				return fmt.Errorf("watch %s: %w", path, err)
			}
		case e.Type() == os.ModeSocket && len(found) < maxSockets:
			info, err := e.Info()
			if err != nil {
				return nil
			}
			if stat, ok := info.Sys().(*syscall.Stat_t); ok {
				found[path] = identity{stat.Ino, stat.Ctim}
			}
		}
		return nil
	})
	return found, err
}

// keep registers the plugin of one socket, and unregisters it when ctx ends. It retries until the
// plugin is registered.
func (p *Plugins) keep(ctx context.Context, socket string) {
	for n := 1; ctx.Err() == nil; n++ {
		unregister, err := p.registerSocket(ctx, socket)
		if err == nil {
			<-ctx.Done()
			unregister()
			return
		}
		if ctx.Err() != nil {
			return
		}
		p.cfg.Log.Warn("Failed to register plugin", "socket", socket, "error", err)
		if errors.Is(err, errOtherPlugin) {
			return // a new socket of this name is tried again
		}
		backoff.Sleep(ctx, backoff.After(n, 500*time.Millisecond, 2*time.Minute))
	}
}

// errOtherPlugin is the error of a plugin that this node cannot use. keep does not retry after it.
var errOtherPlugin = errors.New("not a plugin that this node can use")

// registerSocket asks the plugin of a socket for its type and endpoint, connects to the endpoint,
// and notifies the plugin of the result.
func (p *Plugins) registerSocket(ctx context.Context, socket string) (unregister func(), err error) {
	conn, err := pluginconn.New(socket, p.cfg.Sockets.Dial, maxMessage)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	api := registerapi.NewRegistrationClient(conn)
	asking, stop := context.WithTimeout(ctx, infoTimeout)
	info, err := api.GetInfo(asking, &registerapi.InfoRequest{}, grpc.WaitForReady(true))
	stop()
	if err != nil {
		return nil, fmt.Errorf("failed to get plugin info: %w", err)
	}
	name, endpoint := info.GetName(), info.GetEndpoint()
	if endpoint == "" {
		endpoint = socket
	}
	handler, err := p.handlerOf(info, endpoint)
	if err == nil {
		err = handler.Register(ctx, name, endpoint, info.GetSupportedVersions())
	}
	status := &registerapi.RegistrationStatus{PluginRegistered: err == nil}
	if err != nil {
		status.Error = "plugin registration failed with err: " + err.Error()
	}
	telling, stop := context.WithTimeout(ctx, notifyTimeout)
	defer stop()
	if _, failed := api.NotifyRegistrationStatus(telling, status); failed != nil && err == nil {
		handler.Unregister(name, endpoint)
		err = fmt.Errorf("failed to send registration status: %w", failed)
	}
	return func() { handler.Unregister(name, endpoint) }, err
}

// handlerOf returns the handler of a plugin. It returns an error for a type without a handler, a
// wrong name, and an endpoint outside the kubelet's directory.
func (p *Plugins) handlerOf(info *registerapi.PluginInfo, endpoint string) (Handler, error) {
	handler := p.cfg.Handlers[info.GetType()]
	if info.GetType() == registerapi.DevicePlugin {
		handler = devicePlugins{p}
	}
	if handler == nil {
		return nil, fmt.Errorf("%w: no handler registered for plugin type: %s", errOtherPlugin, info.GetType())
	}
	if err := handler.Check(info.GetName(), endpoint, info.GetSupportedVersions()); err != nil {
		return nil, fmt.Errorf("%w: %w", errOtherPlugin, err)
	}
	if !isBelow(p.cfg.Dir, endpoint) {
		return nil, fmt.Errorf("%w: endpoint %q is not below %s", errOtherPlugin, endpoint, p.cfg.Dir)
	}
	return handler, nil
}

// devicePlugins is the Handler of device plugins.
type devicePlugins struct{ *Plugins }

// Check implements Handler.
func (devicePlugins) Check(name, _ string, versions []string) error {
	return checkRegistration(versions, name)
}

// Register implements Handler.
func (d devicePlugins) Register(ctx context.Context, name, endpoint string, _ []string) error {
	return d.register(ctx, name, endpoint)
}

// Unregister implements Handler.
func (d devicePlugins) Unregister(_, endpoint string) { d.unregister(endpoint) }

// isBelow reports whether a socket is below a directory, both by its path and after following
// links.
func isBelow(dir, socket string) bool {
	root, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return false
	}
	parent, err := filepath.EvalSymlinks(filepath.Dir(socket))
	return err == nil && strings.HasPrefix(parent+"/", root+"/")
}
