package e2e

import (
	"context"
	"fmt"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/wait"
)

// TestF28_ForeignPods: the agent leaves alone what other programs made on the runtime, with
// the kubelet's labels, with another node's, and with a static pod's name.
func TestF28_ForeignPods(t *testing.T) {
	s := parallelStage(t)
	a := s.serve()
	s.keep()
	foreign := []map[string]string{
		{pod.LabelPodName: "foreign", pod.LabelPodNamespace: "default", pod.LabelPodUID: "f1"},
		{pod.LabelPodName: s.full("keep"), pod.LabelPodNamespace: "default", pod.LabelPodUID: "f2"},
		{pod.LabelPodName: s.full("gone"), pod.LabelPodNamespace: "default", pod.LabelPodUID: "f3", pod.LabelNode: "x" + s.name},
	}
	was := make(map[string]string) // sandbox → container
	for i, labels := range foreign {
		box, c := s.runForeign(fmt.Sprint("f", i, "-", s.name), labels)
		was[box] = c
	}
	// Everything that looks for orphaned pods: events of these pods, housekeeping, a new
	// agent, the removal of a pod of the same name.
	a.leave()
	a = s.serve()
	a.await("All pods reported")
	s.remove("keep.yaml")
	s.awaitGone("keep")
	s.write("next.yaml", simple("next"))
	s.awaitRunning("next", "main")
	// The agent logs that it does not know the source of a pod with its node's name. That pod
	// was made after all of these: by then the agent has seen them.
	s.runForeign("own-"+s.name, map[string]string{
		pod.LabelPodName: s.full("own"), pod.LabelPodNamespace: "default", pod.LabelPodUID: "own-" + s.name, pod.LabelNode: s.name,
	})
	s.excuse("own")
	a.await("left alone", s.full("own"))
	for box, c := range was {
		r, err := s.node.Runtime.PodSandboxStatus(t.Context(), &cri.PodSandboxStatusRequest{PodSandboxId: box})
		if err != nil || r.Status.State != cri.PodSandboxState_SANDBOX_READY {
			t.Errorf("foreign sandbox %v: %v", r, err)
		}
		if st := s.containerStatus(c); st.State != cri.ContainerState_CONTAINER_RUNNING {
			t.Errorf("foreign container is %s", st.State)
		}
	}
}

// runForeign makes a pod by CRI alone, which the end of the test removes.
func (s *stage) runForeign(name string, labels map[string]string) (box, id string) {
	s.Helper()
	config := &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: name, Namespace: "default", Uid: name},
		Labels:   labels,
		Linux:    &cri.LinuxPodSandboxConfig{CgroupParent: s.node.CgroupParent},
	}
	b, err := s.node.Runtime.RunPodSandbox(s.Context(), &cri.RunPodSandboxRequest{Config: config})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), wait.Limit)
		defer cancel()
		_, _ = s.node.Runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: b.PodSandboxId})
		if _, err := s.node.Runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: b.PodSandboxId}); err != nil {
			s.Error(err)
		}
	})
	c, err := s.node.Runtime.CreateContainer(s.Context(), &cri.CreateContainerRequest{
		PodSandboxId: b.PodSandboxId, SandboxConfig: config,
		Config: &cri.ContainerConfig{
			Metadata: &cri.ContainerMetadata{Name: "main"}, Labels: labels, Args: []string{"forever"},
			Image: &cri.ImageSpec{Image: node.Stamp}, Linux: &cri.LinuxContainerConfig{},
		},
	})
	if err != nil {
		s.Fatal(err)
	}
	if _, err := s.node.Runtime.StartContainer(s.Context(), &cri.StartContainerRequest{ContainerId: c.ContainerId}); err != nil {
		s.Fatal(err)
	}
	return b.PodSandboxId, c.ContainerId
}
