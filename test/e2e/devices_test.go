package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/api/core/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// pluginArg makes this test binary run a device plugin: see runPlugin.
const pluginArg = "device-plugin"

// samplePlugin is a device plugin of two devices, d0 and d1. A container sees its devices in
// the environment variable DEVICES and as /dev/sample, which is /dev/null.
type samplePlugin struct {
	pluginapi.UnimplementedDevicePluginServer
}

func (samplePlugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{}, nil
}

func (samplePlugin) ListAndWatch(_ *pluginapi.Empty, s grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	err := s.Send(&pluginapi.ListAndWatchResponse{Devices: []*pluginapi.Device{{ID: "d0", Health: pluginapi.Healthy}, {ID: "d1", Health: pluginapi.Healthy}}})
	if err == nil {
		<-s.Context().Done()
	}
	return err
}

func (samplePlugin) Allocate(_ context.Context, r *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	answer := &pluginapi.AllocateResponse{}
	for _, c := range r.GetContainerRequests() {
		answer.ContainerResponses = append(answer.ContainerResponses, &pluginapi.ContainerAllocateResponse{
			Envs:    map[string]string{"DEVICES": strings.Join(c.GetDevicesIds(), ",")},
			Devices: []*pluginapi.DeviceSpec{{HostPath: "/dev/null", ContainerPath: "/dev/sample", Permissions: "rw"}},
		})
	}
	return answer, nil
}

// runPlugin serves the sample plugin in the directory of plugins, and registers it as the
// resource, until it is killed.
func runPlugin(dir, resource string) error {
	const endpoint = "sample.sock"
	if err := os.Remove(filepath.Join(dir, endpoint)); err != nil && !os.IsNotExist(err) {
		return err
	}
	listener, err := net.Listen("unix", filepath.Join(dir, endpoint))
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(server, samplePlugin{})
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	conn, err := grpc.NewClient("unix://"+filepath.Join(dir, "kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	_, err = pluginapi.NewRegistrationClient(conn).Register(context.Background(), &pluginapi.RegisterRequest{Version: pluginapi.Version, Endpoint: endpoint, ResourceName: resource}, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	return <-served
}

// plugin starts the sample plugin as a process, once the agent serves its directory.
func (s *stage) plugin(resource string) (kill func()) {
	s.Helper()
	dir := filepath.Join(s.root, "kubelet/device-plugins")
	s.eventually(func() error { // a socket that a killed agent left refuses
		conn, err := net.Dial("unix", filepath.Join(dir, "kubelet.sock"))
		if err == nil {
			err = conn.Close()
		}
		return err
	})
	cmd := exec.Command(os.Args[0], pluginArg, dir, resource)
	cmd.Stderr, cmd.SysProcAttr = os.Stderr, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	s.must(cmd.Start())
	kill = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	s.Cleanup(kill)
	return kill
}

// devices checks the environment and the device file that a container got from the plugin.
func (s *stage) devices(r running, want string) {
	s.Helper()
	s.eventually(func() error { // the runtime reports a start before its process becomes the container's
		environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", r.pid))
		if err == nil && !strings.Contains("\x00"+string(environ), "\x00DEVICES="+want+"\x00") {
			err = fmt.Errorf("the container does not have DEVICES=%s: %q", want, environ)
		}
		return err
	})
	if info, err := os.Stat(r.inside("/dev/sample")); err != nil || info.Mode()&os.ModeCharDevice == 0 {
		s.Errorf("the container has no /dev/sample: %v", err)
	}
}

// podResources checks which device the container of a pod has by the service podresources.
func (s *stage) podResources(name, resource, device string) {
	s.Helper()
	conn, err := grpc.NewClient("unix://"+filepath.Join(s.root, "kubelet/pod-resources/kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	s.must(err)
	defer func() { _ = conn.Close() }()
	q := &podresources.GetPodResourcesRequest{PodNamespace: "default", PodName: s.full(name)}
	one, err := podresources.NewPodResourcesListerClient(conn).Get(context.Background(), q, grpc.WaitForReady(true))
	s.must(err)
	var got []string
	for _, c := range one.GetPodResources().GetContainers() {
		for _, d := range c.GetDevices() {
			got = append(got, c.GetName()+" "+d.GetResourceName()+" "+strings.Join(d.GetDeviceIds(), ","))
		}
	}
	if want := "main " + resource + " " + device; strings.Join(got, ";") != want {
		s.Errorf("podresources tells %q, want %q", got, want)
	}
}

// A pod waits for its plugin, gets its devices, and runs on while the plugin and the agent are
// killed. The next agent knows its devices: another pod gets the other one.
//
// Shows: C-1.31.6, C-1.46.10
func TestDevices_RealPlugin_PodsWaitAndKeepTheirDevices(t *testing.T) {
	s := parallelStage(t)
	const resource = "sample.test/dev"
	limits := "resources: {limits: {" + resource + ": 1}}"
	s.write("one.yaml", manifest("one", []string{container("main", "forever", limits)}))
	a := s.serve()
	s.awaitStatus("one", "waits for its plugin", func(st v1.PodStatus) bool {
		return st.Phase == v1.PodPending && st.Reason == "WaitsForDevicePlugin"
	})
	kill := s.plugin(resource)
	one := s.awaitRunning("one", "main")["main"]
	s.devices(one, "d0")
	if r := s.run("get", "devices"); r.code != 0 || !holds(r.out, []string{resource, "connected", "d1", "default/" + s.full("one") + "/main"}) {
		t.Errorf("get devices: %+v", r)
	}
	if r := s.run("get", "nodes", "-o", "json"); !strings.Contains(r.out, `"`+resource+`": "2"`) {
		t.Errorf("the Node does not show the resource: %+v", r)
	}
	if r := s.run("get", "allocations"); r.code != 0 || !holds(r.out, []string{s.full("one"), resource + "=d0"}) {
		t.Errorf("get allocations: %+v", r)
	}
	s.podResources("one", resource, "d0")
	kill()
	a.kill()
	s.write("two.yaml", manifest("two", []string{container("main", "forever", limits)}))
	s.serve()
	s.awaitStatus("two", "waits for the plugin", func(st v1.PodStatus) bool { return st.Reason == "WaitsForDevicePlugin" })
	s.plugin(resource)
	two := s.awaitRunning("two", "main")["main"]
	s.devices(two, "d1")
	if again := s.awaitRunning("one", "main")["main"]; again.pid != one.pid {
		t.Errorf("the first pod has another process: %d, was %d", again.pid, one.pid)
	}
}
