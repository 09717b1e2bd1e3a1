package e2e

import (
	"context"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/wait"
)

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
