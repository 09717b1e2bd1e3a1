package device

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"google.golang.org/grpc"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/kubelet/pkg/apis/podresources/v1alpha1"
)

// Run serves the registration socket and watches the registry of plugins until ctx ends. It removes the
// sockets of an earlier agent's plugins, so that these plugins register again.
func (p *Plugins) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer p.running.Wait()
	defer cancel()
	plugins, registry := filepath.Join(p.cfg.Dir, pluginsDir), filepath.Join(p.cfg.Dir, registryDir)
	for _, dir := range []string{p.cfg.Dir, plugins, registry} {
		if err := prepare(dir); err != nil {
			return err
		}
	}
	for _, dir := range []string{plugins, registry} {
		if p.cfg.Label == nil {
			break
		}
		if err := p.cfg.Label(dir); err != nil {
			p.cfg.Log.Warn("Failed to label directory of device plugins for containers", "directory", dir, "error", err)
		}
	}
	listener, err := listen(p.cfg.Sockets, plugins)
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.ctx = ctx
	p.mu.Unlock()
	server := grpc.NewServer(grpc.MaxRecvMsgSize(1<<16), grpc.MaxConcurrentStreams(8), grpc.ConnectionTimeout(connectTimeout), grpc.WaitForHandlers(true))
	pluginapi.RegisterRegistrationServer(server, &registration{plugins: p, dir: plugins})
	p.running.Go(func() { <-ctx.Done(); server.Stop() })
	p.running.Go(func() {
		if err := p.watchRegistry(ctx, registry); err != nil {
			p.cfg.Log.Error("Failed to watch plugin registry; ignoring plugins that register there", "directory", registry, "error", err)
		}
	})
	if err := server.Serve(listener); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

// Run serves the socket until ctx ends.
func (p *PodResources) Run(ctx context.Context) error {
	dir := filepath.Join(p.cfg.Dir, resourcesDir)
	for _, d := range []string{p.cfg.Dir, dir} {
		if err := prepare(d); err != nil {
			return err
		}
	}
	listener, err := listen(kernel{}, dir)
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(1<<16), grpc.MaxConcurrentStreams(8), grpc.ConnectionTimeout(connectTimeout), grpc.WaitForHandlers(true), grpc.UnaryInterceptor(limited()))
	podresources.RegisterPodResourcesListerServer(server, p)
	v1alpha1.RegisterPodResourcesListerServer(server, earlier{of: p})
	defer context.AfterFunc(ctx, server.Stop)()
	if err := server.Serve(listener); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

// prepare makes a directory that only root can enter. It returns an error if other users can change
// the directory: a plugin registered there could give containers any device or mount of the node.
func prepare(dir string) error {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.IsDir():
		return fmt.Errorf("%s is not a directory", dir)
	case !ok || int(owner.Uid) != os.Geteuid():
		return fmt.Errorf("directory %s belongs to another user", dir)
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("directory %s can be changed by other users", dir)
	}
	return nil
}

// ErrServed is the error of a directory that another process serves.
var ErrServed = errors.New("a kubelet or another agent serves this directory")

// listen removes the sockets of earlier agents and plugins, and opens the registration socket. It
// fails with ErrServed if a process answers there.
func listen(by Sockets, dir string) (net.Listener, error) {
	socket := filepath.Join(dir, socketName)
	dialing, stop := context.WithTimeout(context.Background(), time.Second)
	defer stop()
	if conn, err := by.Dial(dialing, socket); err == nil {
		_ = conn.Close()
		return nil, fmt.Errorf("%s: %w", socket, ErrServed)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.Type() == os.ModeSocket {
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
				return nil, err
			}
		}
	}
	listener, err := by.Listen(socket)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(socket, 0o660); err != nil {
		_ = listener.Close()
		return nil, err
	}
	return listener, nil
}

// registration is the service that plugins register with.
type registration struct {
	pluginapi.UnimplementedRegistrationServer
	plugins *Plugins
	dir     string
}

// Register implements the service.
func (s *registration) Register(ctx context.Context, r *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	err := checkRegistration([]string{r.GetVersion()}, r.GetResourceName())
	if err == nil {
		err = checkEndpoint(r.GetEndpoint())
	}
	if err == nil {
		err = s.plugins.register(ctx, r.GetResourceName(), filepath.Join(s.dir, r.GetEndpoint()))
	}
	if err != nil {
		s.plugins.cfg.Log.Warn("Device plugin refused", "resource", r.GetResourceName(), "endpoint", r.GetEndpoint(), "error", err)
		return nil, err
	}
	return &pluginapi.Empty{}, nil
}
