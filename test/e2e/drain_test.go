package e2e

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestDrain_AgentKilledMeanwhile_KeepsPodsStopped: the containers of a drained node end by
// themselves within their grace, nothing of their sandboxes is left running, the next agent starts
// nothing, and after --undo the pods run again.
func TestDrain_AgentKilledMeanwhile_KeepsPodsStopped(t *testing.T) {
	s := parallelStage(t)
	s.write("db.yaml", manifest("db", []string{container("main", "forever")}))
	s.write("web.yaml", manifest("web", []string{container("main", "forever")}))
	a := s.serve()
	s.awaitRunning("db", "main")
	s.awaitRunning("web", "main")
	s.excuse("db", "web")
	drained := s.run("drain")
	if drained.code != 0 || !strings.Contains(drained.out, "node drained\n") {
		t.Fatalf("drain: %+v", drained)
	}
	a.kill()
	a = s.serve()
	a.await("Status of every pod is known")
	for _, name := range []string{"db", "web"} {
		s.awaitStatus(name, "NodeDrained", func(st v1.PodStatus) bool { return st.Phase == v1.PodPending && st.Reason == "NodeDrained" })
		if now, err := s.runningNow(name); err != nil || len(now) > 0 {
			t.Errorf("pod %s: %v runs, %v", name, now, err)
		}
		s.eventually(func() error {
			if b := s.sandbox(name); b.State != cri.PodSandboxState_SANDBOX_NOTREADY {
				return fmt.Errorf("the sandbox of %s is %s", name, b.State)
			}
			return nil
		})
	}
	if undone := s.run("drain", "--undo"); undone.code != 0 {
		t.Fatalf("drain --undo: %+v", undone)
	}
	s.awaitRunning("db", "main")
	s.awaitRunning("web", "main")
}
