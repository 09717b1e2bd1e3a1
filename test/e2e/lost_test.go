package e2e

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"maps"

	"slices"
)

// TestF27_ContainerAndPodComeBack: a container whose process is killed, and a pod that is
// removed behind the agent's back, come back.
//
// Shows: F27
func TestF27_ContainerAndPodComeBack(t *testing.T) { parallelStage(t).lose("process", "all") }

// lose makes a pod for each kind of loss. The pod comes back by its restart policy, in the old
// sandbox if there is one, and only once.
func (s *stage) lose(kinds ...string) {
	t := s.T
	t.Helper()
	faults := map[string]func(box string, main running) error{
		"process": func(_ string, main running) error { return unix.Kill(main.pid, unix.SIGKILL) },
		"stop": func(_ string, main running) error {
			_, err := s.node.Runtime.StopContainer(t.Context(), &cri.StopContainerRequest{ContainerId: main.id})
			return err
		},
		"remove": func(_ string, main running) error {
			_, err := s.node.Runtime.RemoveContainer(t.Context(), &cri.RemoveContainerRequest{ContainerId: main.id})
			return err
		},
		"sandbox": func(box string, _ running) error {
			_, err := s.node.Runtime.StopPodSandbox(t.Context(), &cri.StopPodSandboxRequest{PodSandboxId: box})
			return err
		},
		"all": func(box string, _ running) error {
			_, err := s.node.Runtime.RemovePodSandbox(t.Context(), &cri.RemovePodSandboxRequest{PodSandboxId: box})
			return err
		},
	}
	maps.DeleteFunc(faults, func(kind string, _ func(string, running) error) bool { return !slices.Contains(kinds, kind) })
	for name := range faults {
		s.write(name+".yaml", manifest(name, []string{
			container("main", "append, /x/"+name+", forever", scratchMount), container("side", "forever"),
		}, s.scratchVolume()))
	}
	s.excuse("sandbox", "all") // the agent reverts a repair that it began too early
	s.serve()
	for name, fault := range faults {
		was := s.awaitRunning(name, "main", "side")
		s.awaitReady(name, true)
		box := s.sandbox(name).Id
		s.eventually(func() error { return fault(box, was["main"]) }) // the agent may act during a fault of many steps
		var now map[string]running
		s.eventually(func() (err error) {
			now, err = s.runningNow(name, "main", "side")
			if err == nil && now["main"].id == was["main"].id {
				err = errors.New("the old container still runs")
			}
			return err
		})
		s.awaitReady(name, true)
		s.untouched(name, now)
		if whole := name == "sandbox" || name == "all"; whole {
			if now["side"] == was["side"] {
				t.Errorf("%s: side is the same", name)
			}
			continue // the agent may have repaired objects during the destruction
		}
		if now["side"] != was["side"] {
			t.Errorf("%s: side was %+v, is %+v", name, was["side"], now["side"])
		}
		s.awaitStamps(name, 2)
		if now["main"].attempt != 1 {
			t.Errorf("%s: main is attempt %d, want 1", name, now["main"].attempt)
		}
		if st := s.status(name).Status; containerStatus(st, "main").RestartCount != 1 {
			t.Errorf("%s: status: %s", name, describe(st))
		}
	}
	// If a container was started while its sandbox was destroyed, the runtime may leave an
	// empty cgroup that it does not know. It is removed with the pod's.
	for _, name := range kinds {
		s.remove(name + ".yaml")
		s.awaitGone(name)
	}
}
