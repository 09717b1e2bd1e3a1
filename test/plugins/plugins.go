// Package plugins has a device plugin, a DRA driver and a CSI driver for tests that end their agents: in
// fake time, or with processes of a real node. They note calls that have an effect twice.
package plugins

import (
	"context"
	"fmt"
	"net"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/nodectl/nodectl/pkg/backoff"
)

// The names of the resource and of the drivers.
const (
	Resource   = "x.test/gpu"
	CardDriver = "card.test"
	DiskDriver = "disk.test"
)

// Note is the annotation with which a container shows its devices in the runtime.
const Note = "soak.test/gpus"

// look is how often the device plugin looks for another agent.
const look = 2 * time.Second

// Node is the node of the plugins.
type Node struct {
	Dir  string      // the directory of the kubelet
	Line func() Line // connects a process
	// Step is called after each call took effect, before its answer.
	Step func(name string)
	// Lost reports whether an agent may have lost the answer of a call that was made at this time.
	Lost func(called time.Time) bool
	// Failed takes the error of a plugin that cannot serve.
	Failed func(err error)
}

// Line is the access of one process to the sockets of the machine.
type Line interface {
	Dial(ctx context.Context, socket string) (net.Conn, error)
	Listen(socket string) (net.Listener, error)
	// Cut ends all connections. The files of sockets stay.
	Cut()
}

// Sockets is a Line of the kernel's sockets.
type Sockets struct{}

// Dial implements Line.
func (Sockets) Dial(ctx context.Context, socket string) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "unix", socket)
}

// Listen implements Line.
func (Sockets) Listen(socket string) (net.Listener, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err == nil {
		l.SetUnlinkOnClose(false)
	}
	return l, err
}

// Cut implements Line: a server that ends closes its connections.
func (Sockets) Cut() {}

// process is a plugin that runs, or is stopped.
type process struct {
	node   *Node
	name   string // in the names of steps
	line   Line   // nil: it does not run
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// begin starts the process.
func (p *process) begin(run func(ctx context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	p.line, p.cancel = p.node.Line(), cancel
	p.wg.Go(func() { run(ctx) })
}

// Kill ends the process as kill -9 does.
func (p *process) Kill() {
	if p.line == nil {
		return
	}
	p.line.Cut()
	p.cancel()
	p.wg.Wait()
	p.line = nil
}

// serve serves on a socket until ctx ends. It returns the file of the socket.
func (p *process) serve(ctx context.Context, socket string, register func(*grpc.Server)) (os.FileInfo, error) {
	if err := os.MkdirAll(filepath.Dir(socket), 0o750); err != nil {
		return nil, err
	}
	_ = os.Remove(socket)
	listener, err := p.line.Listen(socket)
	if err != nil {
		return nil, err
	}
	server := grpc.NewServer(grpc.WaitForHandlers(true), grpc.UnaryInterceptor(
		func(ctx context.Context, q any, i *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			answer, err := next(ctx, q)
			p.node.Step(p.name + " " + path.Base(i.FullMethod))
			return answer, err
		}), grpc.StreamInterceptor(
		func(srv any, s grpc.ServerStream, i *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			p.node.Step(p.name + " " + path.Base(i.FullMethod))
			return next(srv, s)
		}))
	register(server)
	p.wg.Go(func() { _ = server.Serve(listener) })
	p.wg.Go(func() { <-ctx.Done(); server.Stop() })
	return os.Lstat(socket)
}

// GPUs is a device plugin. It registers again with each agent.
type GPUs struct {
	pluginapi.UnimplementedDevicePluginServer
	process
	ids []string

	mu      sync.Mutex
	streams int
}

// NewGPUs returns a plugin with these devices, which does not run.
func NewGPUs(n *Node, ids ...string) *GPUs {
	return &GPUs{process: process{node: n, name: "device plugin"}, ids: ids}
}

// Start starts the plugin.
func (p *GPUs) Start() { p.begin(p.run) }

func (p *GPUs) run(ctx context.Context) {
	for ctx.Err() == nil {
		one, stop := context.WithCancel(ctx)
		p.session(one)
		stop()
		backoff.Sleep(ctx, look)
	}
}

// session serves until the file of the socket is gone: an agent removes it when it starts.
func (p *GPUs) session(ctx context.Context) {
	dir := filepath.Join(p.node.Dir, "device-plugins")
	socket, agent := filepath.Join(dir, "gpu.sock"), filepath.Join(dir, "kubelet.sock")
	own, err := p.serve(ctx, socket, func(s *grpc.Server) { pluginapi.RegisterDevicePluginServer(s, p) })
	if err != nil {
		return
	}
	var known os.FileInfo
	for ctx.Err() == nil {
		if is, err := os.Lstat(socket); err != nil || !os.SameFile(is, own) {
			return
		}
		if is, err := os.Lstat(agent); err == nil && (known == nil || !os.SameFile(is, known)) && p.register(ctx, agent) == nil {
			known = is
		}
		backoff.Sleep(ctx, look)
	}
}

func (p *GPUs) register(ctx context.Context, agent string) error {
	conn, err := grpc.NewClient("passthrough:///agent", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return p.line.Dial(ctx, agent) }))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_, err = pluginapi.NewRegistrationClient(conn).Register(ctx, &pluginapi.RegisterRequest{Version: pluginapi.Version, Endpoint: "gpu.sock", ResourceName: Resource})
	return err
}

func (p *GPUs) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{PreStartRequired: true}, nil
}

func (p *GPUs) ListAndWatch(_ *pluginapi.Empty, s grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	p.mu.Lock()
	p.streams++
	p.mu.Unlock()
	list := &pluginapi.ListAndWatchResponse{}
	for _, id := range p.ids {
		list.Devices = append(list.Devices, &pluginapi.Device{ID: id, Health: pluginapi.Healthy})
	}
	if err := s.Send(list); err != nil {
		return err
	}
	<-s.Context().Done()
	return nil
}

// Opened returns the number of streams so far.
func (p *GPUs) Opened() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.streams
}

func (p *GPUs) Allocate(_ context.Context, q *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	answer := &pluginapi.AllocateResponse{}
	for _, c := range q.GetContainerRequests() {
		answer.ContainerResponses = append(answer.ContainerResponses, &pluginapi.ContainerAllocateResponse{Annotations: map[string]string{Note: fmt.Sprint(c.GetDevicesIds())}})
	}
	return answer, nil
}

func (p *GPUs) PreStartContainer(context.Context, *pluginapi.PreStartContainerRequest) (*pluginapi.PreStartContainerResponse, error) {
	return &pluginapi.PreStartContainerResponse{}, nil
}

// registered is the registration of a driver in the registry of plugins.
type registered struct {
	registerapi.UnimplementedRegistrationServer
	info *registerapi.PluginInfo
}

func (r registered) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return r.info, nil
}

func (registered) NotifyRegistrationStatus(context.Context, *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	return &registerapi.RegistrationStatusResponse{}, nil
}

// startDriver serves a driver, and registers it in the registry.
func (p *process) startDriver(info *registerapi.PluginInfo, register func(*grpc.Server)) {
	p.begin(func(ctx context.Context) {
		info.Endpoint = filepath.Join(p.node.Dir, "plugins", info.Name, "driver.sock")
		_, err := p.serve(ctx, info.Endpoint, register)
		if err == nil {
			_, err = p.serve(ctx, filepath.Join(p.node.Dir, "plugins_registry", info.Name+"-reg.sock"), func(s *grpc.Server) {
				registerapi.RegisterRegistrationServer(s, registered{info: info})
			})
		}
		if err != nil && ctx.Err() == nil {
			p.node.Failed(fmt.Errorf("serve driver %s: %w", info.Name, err))
		}
	})
}

// Effects has the effects of a driver's calls, and finds calls whose effect was there already.
type Effects struct {
	mu       sync.Mutex
	at       map[string]time.Time // when the call was made that had the effect
	unsure   map[string]bool      // an agent ended, and its disk does not say that they are there
	repeated int                  // calls whose earlier answer a kill had lost
	twice    []string             // calls that no kill explains
}

// put notes an effect. A second call is right only if an agent was killed before it could write the
// answer of the first to its disk, or while it was undoing the effect.
func (e *Effects) put(n *Node, what string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if before, there := e.at[what]; there {
		if n.Lost(before) || e.unsure[what] {
			e.repeated++
		} else {
			e.twice = append(e.twice, what)
		}
	}
	if e.at == nil {
		e.at = make(map[string]time.Time)
	}
	e.at[what] = time.Now()
	delete(e.unsure, what)
}

// Doubt notes the end of an agent, whose disk knows these effects.
func (e *Effects) Doubt(known func(what string) bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.unsure = make(map[string]bool)
	for what := range e.at {
		e.unsure[what] = !known(what)
	}
}

// drop notes that an effect is undone.
func (e *Effects) drop(what string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.at, what)
}

// Left returns the effects that are there.
func (e *Effects) Left() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var all []string
	for what := range e.at {
		all = append(all, what)
	}
	slices.Sort(all)
	return all
}

// Lose forgets all effects, as a reboot does.
func (e *Effects) Lose() {
	e.mu.Lock()
	defer e.mu.Unlock()
	clear(e.at)
}

// Repeated returns the number of calls of which an agent had lost the answer.
func (e *Effects) Repeated() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.repeated
}

// Twice returns the effects of calls that no end of an agent explains.
func (e *Effects) Twice() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.twice)
}
