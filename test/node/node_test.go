package node_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/wait"
)

func TestMain(m *testing.M) { os.Exit(node.Main(m)) }

// run makes a pod of one container, by CRI alone.
func run(t *testing.T, n *node.Node, name string, args ...string) (sandbox, container string) {
	t.Helper()
	pod := &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: name, Namespace: "test", Uid: name},
		LogDirectory: filepath.Join(n.LogsDir, name),
		PortMappings: []*cri.PortMapping{{Protocol: cri.Protocol_TCP, ContainerPort: 8080, HostPort: 0}},
		Linux:        &cri.LinuxPodSandboxConfig{CgroupParent: n.CgroupParent},
	}
	s, err := n.Runtime.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: pod})
	if err != nil {
		t.Fatal(err)
	}
	c, err := n.Runtime.CreateContainer(t.Context(), &cri.CreateContainerRequest{
		PodSandboxId: s.PodSandboxId,
		Config: &cri.ContainerConfig{
			Metadata: &cri.ContainerMetadata{Name: "main"},
			Image:    &cri.ImageSpec{Image: node.Stamp},
			Args:     args,
			LogPath:  "main.log",
			Linux:    &cri.LinuxContainerConfig{},
		},
		SandboxConfig: pod,
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.Runtime.StartContainer(t.Context(), &cri.StartContainerRequest{ContainerId: c.ContainerId}); err != nil {
		t.Fatal(err)
	}
	return s.PodSandboxId, c.ContainerId
}

// Shows: I6
func TestPodRunsAndLeavesNothing(t *testing.T) {
	n := node.Shared(t)
	_, c := run(t, n, "a", "print", "hello", "forever")
	if got := n.Processes(c); len(got) != 1 {
		t.Errorf("processes of the container: %v, want 1", got)
	}
	if l := n.Look(); len(l.Pods) != 2 || len(l.Mounts) == 0 || len(l.Cgroups) == 0 || len(l.Links) != 1 || len(l.Rules) == 0 {
		t.Errorf("a running pod shows as:\n%s", l)
	}
}

func TestContainerdRestartsUnderPods(t *testing.T) {
	n := node.New(t)
	_, c := run(t, n, "a", "forever")
	before := n.Processes(c)
	for _, end := range []func(testing.TB){n.Kill, n.Terminate} {
		end(t)
		n.Restart(t)
	}
	if after := n.Processes(c); len(after) != 1 || after[0].Pid != before[0].Pid {
		t.Errorf("the container was %v, is %v", before, after)
	}
	wait.NoError(t, func() error {
		for _, c := range n.Containers(t) {
			if c.State != cri.ContainerState_CONTAINER_RUNNING {
				return fmt.Errorf("container is %s", c.State)
			}
		}
		return nil
	})
}

func TestExitCodeIsSeen(t *testing.T) {
	n := node.Shared(t)
	_, c := run(t, n, "a", "exit", "7")
	wait.NoError(t, func() error {
		r, err := n.Runtime.ContainerStatus(t.Context(), &cri.ContainerStatusRequest{ContainerId: c})
		if err != nil {
			return err
		}
		if r.Status.State != cri.ContainerState_CONTAINER_EXITED {
			return errors.New("still running")
		}
		if r.Status.ExitCode != 7 {
			t.Fatalf("exit code %d, want 7", r.Status.ExitCode)
		}
		return nil
	})
}
