//go:build full

package e2e

import (
	"fmt"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// TestF28_ForeignPods: the agent does not touch objects of other programs in the runtime: with the
// kubelet's labels, with another node's, and with a static pod's name.
//
// Shows: F28
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
	a.await("Status of every pod is known")
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
	a.await("Ignoring pod of an agent with another root directory", s.full("own"))
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
