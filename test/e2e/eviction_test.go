package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

const mib = int64(1) << 20

// awaitEvicted waits until a pod is evicted, and checks its message.
func (s *stage) awaitEvicted(name, message string) {
	s.Helper()
	st := s.awaitPhase(name, v1.PodFailed)
	if st.Reason != "Evicted" || !strings.HasPrefix(st.Message, message) {
		s.Errorf("pod %s: reason %q, message %q, want %q", name, st.Reason, st.Message, message)
	}
}

// awaitCondition waits until the node has a condition.
func (s *stage) awaitCondition(name v1.NodeConditionType) {
	s.Helper()
	s.eventually(func() error {
		var nodes v1.NodeList
		got := s.run("get", "nodes", "-o", "json")
		if err := json.Unmarshal([]byte(got.out), &nodes); err != nil || len(nodes.Items) != 1 {
			return fmt.Errorf("get nodes: %w: %s%s", err, got.out, got.err)
		}
		all := nodes.Items[0].Status.Conditions
		if !slices.ContainsFunc(all, func(c v1.NodeCondition) bool { return c.Type == name && c.Status == v1.ConditionTrue }) {
			return fmt.Errorf("the node has the conditions %+v", all)
		}
		return nil
	})
}

// TestEviction_PodTakesTooMuchMemory_OnlyItEnds: the threshold is one of all pods' memory, so that
// other work of the machine has no effect. Other pods run on, and the node shows the pressure.
//
// Shows: C-1.35.5, C-1.35.7
func TestEviction_PodTakesTooMuchMemory_OnlyItEnds(t *testing.T) {
	s := parallelStage(t)
	s.excuse("hog")
	s.write("keep.yaml", simple("keep"))
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		t.Fatal(err)
	}
	total := int64(info.Totalram) * int64(info.Unit)
	a := s.serve("--system-reserved", fmt.Sprintf("memory=%d", total-1024*mib), "--eviction-hard", "allocatableMemory.available<600Mi")
	kept := s.awaitRunning("keep", "main")
	s.write("hog.yaml", manifest("hog", []string{container("main", "alloc, '600', forever")}))
	a.await("Eviction threshold met", "memory")
	s.awaitEvicted("hog", "The node was low on resource: memory. Threshold quantity: 600Mi, available: ")
	s.awaitCondition(v1.NodeMemoryPressure)
	s.untouched("keep", kept)
	if got := s.run("events"); !strings.Contains(got.out, "EvictionThresholdMet") || !strings.Contains(got.out, "Attempting to reclaim memory") {
		t.Errorf("events:\n%s%s", got.out, got.err)
	}
}
