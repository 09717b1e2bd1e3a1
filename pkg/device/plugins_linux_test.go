package device

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/test/wait"
)

// fake is a device plugin on a socket.
type fake struct {
	pluginapi.UnimplementedDevicePluginServer
	registerapi.UnimplementedRegistrationServer
	options  pluginapi.DevicePluginOptions
	info     registerapi.PluginInfo
	lists    chan []*pluginapi.Device // each is sent to the node
	prefer   func(available []string) []string
	allocate func(ids []string) (*pluginapi.ContainerAllocateResponse, error)
	results  chan *registerapi.RegistrationStatus

	mu    sync.Mutex
	calls []string
}

func (f *fake) note(call string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, call)
}

func (f *fake) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &f.options, nil
}

func (f *fake) ListAndWatch(_ *pluginapi.Empty, s grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	for {
		select {
		case list := <-f.lists:
			if err := s.Send(&pluginapi.ListAndWatchResponse{Devices: list}); err != nil {
				return err
			}
		case <-s.Context().Done():
			return nil
		}
	}
}

func (f *fake) GetPreferredAllocation(_ context.Context, r *pluginapi.PreferredAllocationRequest) (*pluginapi.PreferredAllocationResponse, error) {
	return &pluginapi.PreferredAllocationResponse{ContainerResponses: []*pluginapi.ContainerPreferredAllocationResponse{
		{DeviceIDs: f.prefer(r.GetContainerRequests()[0].GetAvailableDeviceIDs())},
	}}, nil
}

func (f *fake) Allocate(_ context.Context, r *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	ids := r.GetContainerRequests()[0].GetDevicesIds()
	f.note("allocate " + strings.Join(ids, ","))
	answer, err := f.allocate(ids)
	return &pluginapi.AllocateResponse{ContainerResponses: []*pluginapi.ContainerAllocateResponse{answer}}, err
}

func (f *fake) PreStartContainer(_ context.Context, r *pluginapi.PreStartContainerRequest) (*pluginapi.PreStartContainerResponse, error) {
	f.note("prestart " + strings.Join(r.GetDevicesIds(), ","))
	return &pluginapi.PreStartContainerResponse{}, nil
}

func (f *fake) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &f.info, nil
}

func (f *fake) NotifyRegistrationStatus(_ context.Context, s *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	f.results <- s
	return &registerapi.RegistrationStatusResponse{}, nil
}

func newFake() *fake {
	return &fake{
		lists: make(chan []*pluginapi.Device, 1), results: make(chan *registerapi.RegistrationStatus, 8),
		allocate: func(ids []string) (*pluginapi.ContainerAllocateResponse, error) {
			return &pluginapi.ContainerAllocateResponse{
				Envs:        map[string]string{"GPUS": strings.Join(ids, ",")},
				Mounts:      []*pluginapi.Mount{{HostPath: "/opt/lib", ContainerPath: "/lib/gpu", ReadOnly: true}},
				Devices:     []*pluginapi.DeviceSpec{{HostPath: "/dev/null", ContainerPath: "/dev/gpu", Permissions: "rw"}},
				Annotations: map[string]string{"x.com/a": "b"},
				CdiDevices:  []*pluginapi.CDIDevice{{Name: "x.com/gpu=0"}},
			}, nil
		},
	}
}

// serve serves the plugin on a socket until stop is called.
func (f *fake) serve(t *testing.T, socket string) (stop func()) {
	t.Helper()
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(server, f)
	registerapi.RegisterRegistrationServer(server, f)
	go func() { _ = server.Serve(listener) }()
	stop = sync.OnceFunc(server.Stop)
	t.Cleanup(stop)
	return stop
}

// devices returns a list as a plugin sends it; a name that ends in "!" is unhealthy.
func devices(names ...string) (all []*pluginapi.Device) {
	for _, n := range names {
		d := &pluginapi.Device{ID: strings.TrimSuffix(n, "!"), Health: pluginapi.Healthy}
		if d.ID != n {
			d.Health = pluginapi.Unhealthy
		}
		all = append(all, d)
	}
	return all
}

// node is a node whose agent serves device plugins.
type node struct {
	*Plugins
	t   *testing.T
	dir string
}

func start(t *testing.T) *node {
	t.Helper()
	dir, err := os.MkdirTemp("", "dev") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return again(t, dir)
}

// again starts another agent in the directory; the test's end stops it.
func again(t *testing.T, dir string) *node {
	t.Helper()
	return againWith(t, Config{Dir: dir, Log: slog.New(slog.DiscardHandler)})
}

func againWith(t *testing.T, c Config) *node {
	t.Helper()
	n := &node{New(c), t, c.Dir}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	n.Adopt(nil, true)
	n.until("the agent serves", func() bool { n.mu.Lock(); defer n.mu.Unlock(); return n.ctx != nil })
	return n
}

// until waits for a condition.
func (n *node) until(what string, ok func() bool) {
	n.t.Helper()
	wait.True(n.t, what, ok)
}

// register registers an endpoint as a plugin does.
func (n *node) register(resource, endpoint string) error {
	conn, err := grpc.NewClient("unix://"+filepath.Join(n.dir, pluginsDir, socketName), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(n.t.Context(), wait.Limit)
	defer cancel()
	_, err = pluginapi.NewRegistrationClient(conn).Register(ctx, &pluginapi.RegisterRequest{Version: "v1beta1", Endpoint: endpoint, ResourceName: resource})
	return err
}

// plug serves a plugin of x.com/gpu, registers it, and waits for its devices.
func (n *node) plug(f *fake, names ...string) (stop func()) {
	n.t.Helper()
	stop = f.serve(n.t, filepath.Join(n.dir, pluginsDir, "gpu.sock"))
	if err := n.register("x.com/gpu", "gpu.sock"); err != nil {
		n.t.Fatal(err)
	}
	f.lists <- devices(names...)
	healthy := len(slices.DeleteFunc(slices.Clone(names), func(name string) bool { return strings.HasSuffix(name, "!") }))
	n.until("devices are listed", func() bool { return n.Supply()["x.com/gpu"].Healthy == healthy })
	return stop
}

func (n *node) allocate(uid string, number int, have map[string][]pod.DeviceAllocation) ([]pod.DeviceAllocation, error) {
	return n.Allocate(n.t.Context(), pod.DeviceRequest{Want: requesting(uid, number), Container: "c", Have: have})
}

func reason(err error) string {
	if start, ok := errors.AsType[*pod.StartError](err); ok {
		return start.Reason
	}
	return "none"
}

// A container keeps its devices over a restart of the plugin and of the agent, and waits while the
// plugin is not connected. Allocate is called once.
//
// Shows: C-1.31.6
func TestPlugins_PluginAndAgentRestart_ContainerKeepsItsDevices(t *testing.T) {
	t.Parallel()
	n, f := start(t), newFake()
	if _, err := n.allocate("u1", 1, nil); reason(err) != pod.ReasonWaitsForDevices {
		t.Fatalf("without a plugin: %v", err)
	}
	f.options = pluginapi.DevicePluginOptions{PreStartRequired: true, GetPreferredAllocationAvailable: true}
	f.prefer = func(available []string) []string { return available[len(available)-2:] }
	stop := n.plug(f, "a", "b", "c!", "d")
	got, err := n.allocate("u1", 2, nil)
	if err != nil || !slices.Equal(got[0].Devices, []string{"b", "d"}) || got[0].Envs["GPUS"] != "b,d" || got[0].CDI[0] != "x.com/gpu=0" {
		t.Fatalf("%+v, %v", got, err)
	}
	if _, err := n.allocate("u2", 2, nil); err == nil || err.Error() != "UnexpectedAdmissionError: Allocate failed due to requested number of devices unavailable for x.com/gpu. Requested: 2, Available: 1, which is unexpected" {
		t.Errorf("another pod: %v", err)
	}
	capacity, allocatable := n.Capacity(time.Now())
	if c, a := capacity["x.com/gpu"], allocatable["x.com/gpu"]; c.Value() != 4 || a.Value() != 3 {
		t.Errorf("capacity %v, allocatable %v", &c, &a)
	}

	stop()
	n.until("the plugin is away", func() bool { return !n.Resources()[0].Connected })
	now := time.Now()
	for late, want := range map[time.Duration]int64{0: 4, 6 * time.Minute: 0} { // the kubelet's grace of five minutes
		capacity, allocatable := n.Capacity(now.Add(late))
		if c, a := capacity["x.com/gpu"], allocatable["x.com/gpu"]; c.Value() != want || a.Value() != 0 {
			t.Errorf("after %s: capacity %v, allocatable %v", late, &c, &a)
		}
	}
	have := map[string][]pod.DeviceAllocation{"c": got}
	if _, err := n.allocate("u1", 2, have); reason(err) != pod.ReasonWaitsForDevices || n.Healthy("x.com/gpu", "b") {
		t.Errorf("while the plugin is away: %v", err)
	}

	u1 := []pod.DeviceHolder{{Key: pod.Key{Namespace: "default", Name: "pod-u1"}, UID: "u1", Containers: have}}
	other := &node{New(Config{Dir: n.dir, Log: slog.New(slog.DiscardHandler)}), t, n.dir} // the next agent
	other.Adopt(u1, true)
	if capacity, _ := other.Capacity(time.Now()); len(capacity) != 1 {
		t.Errorf("a resource that a container has is not shown: %v", capacity)
	}
	n.Keep("u1", nil)
	n.Adopt(u1, true)
	n.plug(f, "a", "b", "c", "d")
	kept, err := n.allocate("u1", 2, have)
	if err != nil || !slices.Equal(kept[0].Devices, []string{"b", "d"}) || kept[0].Envs["GPUS"] != "b,d" {
		t.Errorf("after the plugin returned: %+v, %v", kept, err)
	}
	n.Keep("u1", nil) // it terminated, and starts again after another pod took its devices
	if _, err := n.allocate("u2", 4, nil); err != nil {
		t.Error(err)
	}
	if got, err := n.allocate("u1", 2, have); reason(err) != pod.ReasonUnexpectedAdmission {
		t.Errorf("devices of another pod: %+v, %v", got, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if want := []string{"allocate b,d", "prestart b,d", "prestart b,d", "allocate a,b,c,d", "prestart a,b,c,d"}; !slices.Equal(f.calls, want) {
		t.Errorf("calls %q, want %q", f.calls, want)
	}
}

// A resource that the Node advertises and no plugin serves has a number and no devices. A container
// that replaces one without devices needs no plugin either, when the Node does not advertise the
// resource any more. A plugin of that resource wins.
//
// Shows: C-1.31.6
func TestAdvertise_NodeAdvertisesAResource_PodsGetNoDevices(t *testing.T) {
	t.Parallel()
	n, f := start(t), newFake()
	n.Advertise(v1.ResourceList{"x.com/gpu": apiresource.MustParse("3"), "x.com/none": apiresource.MustParse("0"), "cpu": apiresource.MustParse("2")})
	select {
	case <-n.Changed():
	default:
		t.Error("the change is not reported")
	}
	if got := n.Supply(); len(got) != 1 || got["x.com/gpu"] != (pod.DeviceSupply{Advertised: true, Registered: true, Healthy: 3, Usable: 3}) {
		t.Errorf("supply %+v", got)
	}
	if got, err := n.allocate("u1", 2, nil); err != nil || len(got) != 0 {
		t.Errorf("%+v, %v", got, err)
	}
	n.Advertise(v1.ResourceList{"x.com/gpu": apiresource.MustParse("3")}) // nothing has changed
	select {
	case <-n.Changed():
		t.Error("the same resources are a change")
	default:
	}
	n.Advertise(nil)
	if _, err := n.allocate("u2", 1, nil); reason(err) != pod.ReasonWaitsForDevices {
		t.Errorf("a new container: %v", err)
	}
	again := pod.DeviceRequest{Want: requesting("u1", 2), Container: "c", Replaces: true}
	if got, err := n.Allocate(t.Context(), again); err != nil || len(got) != 0 {
		t.Errorf("a container again: %+v, %v", got, err)
	}
	again.Have = map[string][]pod.DeviceAllocation{"c": {{Resource: "x.com/gpu", Devices: []string{"a"}}}}
	if _, err := n.Allocate(t.Context(), again); reason(err) != pod.ReasonWaitsForDevices {
		t.Errorf("a container that had devices: %v", err)
	}
	n.Keep("u1", nil)
	n.Advertise(v1.ResourceList{"x.com/gpu": apiresource.MustParse("3")})
	n.plug(f, "a", "b")
	if got := n.Supply()["x.com/gpu"]; got.Advertised || got.Healthy != 2 {
		t.Errorf("supply with a plugin %+v", got)
	}
	if got, err := n.allocate("u3", 1, nil); err != nil || len(got) != 1 || len(got[0].Devices) != 1 {
		t.Errorf("%+v, %v", got, err)
	}
}

// A plugin that hangs, lies or floods harms only its own resource.
func TestPlugins_HostilePlugin_HarmsOnlyItsResource(t *testing.T) {
	t.Parallel()
	n, good := start(t), newFake()
	n.plug(good, "a", "b")
	hung := make(chan struct{})
	t.Cleanup(func() { close(hung) })
	bad := newFake()
	bad.allocate = func([]string) (*pluginapi.ContainerAllocateResponse, error) { <-hung; return nil, nil }
	bad.serve(t, filepath.Join(n.dir, pluginsDir, "bad.sock"))
	if err := n.register("x.com/bad", "bad.sock"); err != nil {
		t.Fatal(err)
	}
	bad.lists <- devices("z")
	n.until("the bad plugin lists", func() bool { return n.Supply()["x.com/bad"].Healthy == 1 })
	ctx, cancel := context.WithCancel(t.Context())
	hangs := make(chan error, 1)
	go func() {
		w := requesting("u9", 1)
		w.Pod.Spec.Containers[0].Resources.Limits = v1.ResourceList{"x.com/bad": w.Pod.Spec.Containers[0].Resources.Limits["x.com/gpu"]}
		_, err := n.Allocate(ctx, pod.DeviceRequest{Want: w, Container: "c"})
		hangs <- err
	}()
	n.until("Allocate hangs", func() bool { bad.mu.Lock(); defer bad.mu.Unlock(); return len(bad.calls) == 1 })
	if _, err := n.allocate("u1", 1, nil); err != nil {
		t.Errorf("a plugin that hangs delays another one: %v", err)
	}
	cancel()
	if err := <-hangs; err == nil {
		t.Error("the call to the plugin that hangs did not end with its context")
	}

	for text, answer := range map[string]*pluginapi.ContainerAllocateResponse{
		"is not absolute":        {Mounts: []*pluginapi.Mount{{HostPath: "/opt/../etc", ContainerPath: "/a"}}},
		"relative":               {Devices: []*pluginapi.DeviceSpec{{HostPath: "dev/sda", ContainerPath: "/dev/relative"}}},
		"not of r, w and m":      {Devices: []*pluginapi.DeviceSpec{{HostPath: "/dev/a", ContainerPath: "/dev/a", Permissions: "rwx"}}},
		"is the node's own":      {Annotations: map[string]string{"nodectl.dev/devices": "[]"}},
		"not an environment":     {Envs: map[string]string{"A=B": "c"}},
		"is not a CDI device":    {CdiDevices: []*pluginapi.CDIDevice{{Name: "../a"}}},
		"bytes to the container": {Envs: map[string]string{"A": strings.Repeat("x", maxResponse)}},
		"larger than max":        {Envs: map[string]string{"A": strings.Repeat("x", maxMessage+1)}},
	} {
		good.allocate = func([]string) (*pluginapi.ContainerAllocateResponse, error) { return answer, nil }
		_, err := n.allocate("u2", 1, nil)
		if reason(err) != pod.ReasonUnexpectedAdmission || text != "relative" && !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", text, err)
		}
	}
	good.allocate = newFake().allocate
	if got, err := n.allocate("u2", 1, nil); err != nil || got[0].Devices[0] != "b" {
		t.Errorf("a device is lost after refused answers: %+v, %v", got, err)
	}
	good.lists <- []*pluginapi.Device{{ID: strings.Repeat("i", maxID+1)}}
	n.until("a plugin with a wrong list is disconnected", func() bool { return !n.Supply()["x.com/gpu"].Registered })
	for _, endpoint := range []string{"../bad.sock", "missing.sock"} {
		if err := n.register("x.com/other", endpoint); err == nil {
			t.Errorf("endpoint %s is accepted", endpoint)
		}
	}
}

// A plugin registers through the registry, disappears, returns, and its socket may hang without
// harm to others.
func TestRegistry_SocketsComeAndGo_PluginsFollow(t *testing.T) {
	t.Parallel()
	n := start(t)
	registry := filepath.Join(n.dir, registryDir)
	silent, err := net.Listen("unix", filepath.Join(registry, "silent.sock")) // accepts, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	csi := newFake()
	csi.info = registerapi.PluginInfo{Type: registerapi.CSIPlugin, Name: "csi.x.com", SupportedVersions: []string{"1.0.0"}}
	csi.serve(t, filepath.Join(registry, "csi.sock"))
	if s := <-csi.results; s.GetPluginRegistered() || !strings.Contains(s.GetError(), "no handler registered for plugin type: CSIPlugin") {
		t.Errorf("another kind of plugin got %v", s)
	}
	outside := newFake()
	outside.info = registerapi.PluginInfo{Type: registerapi.DevicePlugin, Name: "x.com/gpu", Endpoint: "/run/x.sock", SupportedVersions: []string{"v1beta1"}}
	outside.serve(t, filepath.Join(registry, "outside.sock"))
	if s := <-outside.results; s.GetPluginRegistered() {
		t.Error("an endpoint outside of the kubelet's directory is accepted")
	}
	if err := os.Mkdir(filepath.Join(registry, "x.com"), 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		f := newFake()
		f.info = registerapi.PluginInfo{Type: registerapi.DevicePlugin, Name: "x.com/gpu", SupportedVersions: []string{"v1beta1"}}
		stop := f.serve(t, filepath.Join(registry, "x.com", "gpu.sock"))
		if s := <-f.results; !s.GetPluginRegistered() {
			t.Fatalf("got %v", s)
		}
		f.lists <- devices("a")
		n.until("the plugin lists", func() bool { return n.Supply()["x.com/gpu"].Healthy == 1 })
		stop()
		n.until("the plugin is away", func() bool { return !n.Supply()["x.com/gpu"].Registered })
	}
}

// handler is the handler of another type of plugins.
type handler struct{ calls chan string }

func (h handler) Check(name, _ string, versions []string) error {
	if len(versions) == 0 {
		return errors.New(name + " has no version")
	}
	return nil
}

func (h handler) Register(_ context.Context, name, endpoint string, _ []string) error {
	h.calls <- "register " + name + " " + filepath.Base(endpoint)
	return nil
}

func (h handler) Unregister(name, endpoint string) {
	h.calls <- "unregister " + name + " " + filepath.Base(endpoint)
}

// A plugin whose type has a handler belongs to the handler, from its registration until its socket
// is gone. Its endpoint has to be below the directory, too.
func TestRegistry_TypeWithAHandler_IsTheHandlers(t *testing.T) {
	t.Parallel()
	drivers := handler{make(chan string, 4)}
	dir, err := os.MkdirTemp("", "dev")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	n := againWith(t, Config{Dir: dir, Handlers: map[string]Handler{registerapi.CSIPlugin: drivers}, Log: slog.New(slog.DiscardHandler)})
	for i, c := range []struct {
		endpoint string
		versions []string
		refused  string
	}{
		{"/run/x.sock", []string{"1.0.0"}, "is not below"},
		{"", nil, "has no version"},
		{"", []string{"1.0.0"}, ""},
	} {
		f := newFake()
		f.info = registerapi.PluginInfo{Type: registerapi.CSIPlugin, Name: "disk.test", Endpoint: c.endpoint, SupportedVersions: c.versions}
		socket := filepath.Join(dir, registryDir, fmt.Sprint(i, ".sock"))
		f.serve(t, socket)
		s := <-f.results
		if s.GetPluginRegistered() != (c.refused == "") || !strings.Contains(s.GetError(), c.refused) {
			t.Errorf("%+v: %v", c, s)
		}
		if c.refused != "" {
			continue
		}
		if got := <-drivers.calls; got != "register disk.test 2.sock" {
			t.Errorf("the handler got %s", got)
		}
		if err := os.Remove(socket); err != nil {
			t.Fatal(err)
		}
		if got := <-drivers.calls; got != "unregister disk.test 2.sock" {
			t.Errorf("the handler got %s", got)
		}
	}
	if s := n.Supply(); len(s) > 0 {
		t.Errorf("it serves devices: %v", s)
	}
}

// A plugin that replaces its socket is unregistered before it is registered again.
func TestRegistry_SocketIsReplaced_OldRegistrationEndsFirst(t *testing.T) {
	t.Parallel()
	drivers := handler{make(chan string)} // a call waits for the test
	dir, err := os.MkdirTemp("", "dev")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	againWith(t, Config{Dir: dir, Handlers: map[string]Handler{registerapi.CSIPlugin: drivers}, Log: slog.New(slog.DiscardHandler)})
	socket := filepath.Join(dir, registryDir, "disk.sock")
	serve := func() (results chan *registerapi.RegistrationStatus) {
		f := newFake()
		f.info = registerapi.PluginInfo{Type: registerapi.CSIPlugin, Name: "disk.test", SupportedVersions: []string{"1.0.0"}}
		f.serve(t, socket)
		return f.results
	}
	next := func(want string) {
		t.Helper()
		if got := <-drivers.calls; got != want+" disk.test disk.sock" {
			t.Errorf("the handler got %s, want %s", got, want)
		}
	}
	results := serve()
	next("register")
	<-results
	for range 3 {
		if err := os.Remove(socket); err != nil {
			t.Fatal(err)
		}
		results = serve()
		next("unregister")
		next("register")
		<-results
	}
	if err := os.Remove(socket); err != nil {
		t.Fatal(err)
	}
	next("unregister")
}

// A directory that another process serves, or that other users can change, is rejected.
func TestRun_DirectoryOfAnother_IsRefused(t *testing.T) {
	t.Parallel()
	n := start(t)
	second := New(Config{Dir: n.dir, Log: slog.New(slog.DiscardHandler)})
	if err := second.Run(t.Context()); !errors.Is(err, ErrServed) {
		t.Errorf("a served directory: %v", err)
	}
	open := t.TempDir()
	if err := os.Mkdir(filepath.Join(open, pluginsDir), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(open, pluginsDir), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := New(Config{Dir: open, Log: slog.New(slog.DiscardHandler)}).Run(t.Context()); err == nil || !strings.Contains(err.Error(), "can be changed by other users") {
		t.Errorf("a directory of others: %v", err)
	}
}
