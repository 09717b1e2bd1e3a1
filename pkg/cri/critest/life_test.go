package critest_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/pod"
)

func TestCommandsAreScripted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := critest.New()
		c := newClient(t, rt.Connect())
		id, err := c.create(c.sandbox(0), 0, "sleep", "inf")
		if err != nil {
			t.Fatal(err)
		}
		exec := func(cmd ...string) (*runtimeapi.ExecSyncResponse, error) {
			return c.rt.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: cmd, Timeout: 10})
		}
		if _, err := exec("true"); err == nil {
			t.Error("a command ran in a container that does not")
		}
		if _, err := c.rt.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id}); err != nil {
			t.Fatal(err)
		}
		rt.OnExec(func(e critest.Exec) (critest.Behaviour, bool) {
			return critest.Behaviour{Ends: true, After: 3 * time.Second, Code: 4, Output: "not yet"}, e.Container == "app" && e.Cmd[0] == "hook"
		})
		time.Sleep(time.Second)
		if a, err := exec("hook"); err != nil || a.ExitCode != 4 || string(a.Stdout) != "not yet" {
			t.Errorf("%v, %v", a, err)
		}
		if a, err := exec("false"); err != nil || a.ExitCode != 1 {
			t.Errorf("%v, %v", a, err)
		}
		var at []time.Duration
		for _, e := range rt.Execs() {
			at = append(at, e.At)
			if e.Key != web || e.Attempt != 0 {
				t.Errorf("%+v", e)
			}
		}
		if !slices.Equal(at, []time.Duration{time.Second, 4 * time.Second}) {
			t.Errorf("commands at %v", at)
		}
	})
}

// Messages and logs of containers are in the files that the adapter asks for.
func TestMessagesAndLogsAreFiles(t *testing.T) {
	dir := t.TempDir()
	message := filepath.Join(dir, "message")
	if err := os.WriteFile(message, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		rt := critest.New()
		c := newClient(t, rt.Connect())
		config := box(0)
		config.LogDirectory = dir
		b, err := c.rt.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: config})
		if err != nil {
			t.Fatal(err)
		}
		a, err := c.rt.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{
			PodSandboxId: b.GetPodSandboxId(), SandboxConfig: config,
			Config: &runtimeapi.ContainerConfig{
				Metadata: &runtimeapi.ContainerMetadata{Name: "app"}, Labels: labels(),
				Image:       &runtimeapi.ImageSpec{Image: "busybox:1"},
				Command:     []string{"sh", "-c", "echo one; echo why > /dev/termination-log; sleep 2; exit 3"},
				LogPath:     "app/0.log",
				Mounts:      []*runtimeapi.Mount{{HostPath: message, ContainerPath: "/dev/termination-log"}},
				Annotations: map[string]string{pod.AnnotationTerminationPath: "/dev/termination-log"},
			},
		})
		if err == nil {
			_, err = c.rt.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: a.GetContainerId()})
		}
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now().Format(time.RFC3339Nano)
		log := filepath.Join(dir, "app", "0.log")
		if err := os.Rename(log, log+".old"); err != nil {
			t.Fatal(err)
		}
		if _, err := c.rt.ReopenContainerLog(t.Context(), &runtimeapi.ReopenContainerLogRequest{ContainerId: a.GetContainerId()}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second)
		for path, want := range map[string]string{message: "why\n", log + ".old": began + " stdout F one\n", log: ""} {
			if got, err := os.ReadFile(path); err != nil || string(got) != want {
				t.Errorf("%s: %q, %v; want %q", path, got, err, want)
			}
		}
	})
}

// served returns a client over a real connection.
func served(t *testing.T, rt *critest.Runtime) runtimeapi.RuntimeServiceClient {
	t.Helper()
	conn, err := grpc.NewClient(critest.Serve(t, rt), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return runtimeapi.NewRuntimeServiceClient(conn)
}

// The streamed lists equal those of the plain calls, in process and served.
func TestListsInPieces(t *testing.T) {
	rt := critest.New()
	c := newClient(t, rt.Connect())
	id, err := c.create(c.sandbox(0), 0, "sleep", "inf")
	if err != nil {
		t.Fatal(err)
	}
	for name, rt := range map[string]runtimeapi.RuntimeServiceClient{"in process": c.rt, "served": served(t, rt)} {
		s, err := rt.StreamContainers(t.Context(), &runtimeapi.StreamContainersRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if a, err := s.Recv(); err != nil || len(a.GetContainers()) != 1 || a.GetContainers()[0].GetId() != id {
			t.Errorf("%s: %v, %v", name, a, err)
		}
		if a, err := s.Recv(); err == nil {
			t.Errorf("%s: one more: %v", name, a)
		}
	}
}
