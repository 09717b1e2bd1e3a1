package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/test/criproxy"
	"github.com/nodectl/nodectl/test/wait"
)

// awaitSandboxEnded returns when the sandbox of a terminated pod has stopped: the agent
// reports the pod's end earlier.
func (s *stage) awaitSandboxEnded(name string) {
	s.Helper()
	s.eventually(func() error {
		if b := s.sandbox(name); b.State != cri.PodSandboxState_SANDBOX_NOTREADY {
			return fmt.Errorf("the sandbox of %s is %s", name, b.State)
		}
		return nil
	})
}

// oftenSynced makes the stage's agents list the runtime and check every pod without a
// noticeable pause, for a scenario that waits for passes.
func (s *stage) oftenSynced() *stage {
	s.often = true
	return s
}

// quiet returns when the oftenSynced agent has checked all pods and has changed nothing
// meanwhile.
func (s *stage) quiet(p *criproxy.Proxy) {
	s.Helper()
	for before := -1; before != len(p.Mutations()) || p.Busy() > 0; s.passes(p, 2) {
		before = len(p.Mutations())
	}
}

// passes returns when the oftenSynced agent has listed the runtime n more times: it has then
// checked everything that it knew before.
func (s *stage) passes(p *criproxy.Proxy, n int) {
	s.Helper()
	if !s.often {
		s.Fatal("the agent passes over its pods once a minute: use oftenSynced")
	}
	lists := p.Fault(criproxy.Rule{Method: "ListPodSandbox"})
	defer lists.Lift()
	wait.Until(s.T, fmt.Sprint("the agent has listed the runtime ", n, " times more"), func() (listed int, done bool) {
		for _, c := range lists.Calls() {
			if c.Pod == "" && !c.Ended.IsZero() {
				listed++
			}
		}
		return listed, listed > n // the first may have begun before
	})
}

// TestB8_RemovedWhileAgentWasDown: the next agent stops a pod whose manifest was removed
// while no agent ran. It uses the pod's grace period and waits for the container's own exit.
// It does not touch pods that are still desired.
//
// Shows: B8, C-1.18.3
func TestB8_RemovedWhileAgentWasDown(t *testing.T) {
	s := parallelStage(t).oftenSynced()
	// After SIGTERM, it runs as long as the test lets it.
	slow := func(name string) string {
		return manifest(name, []string{container("main", `ignore, print, armed, wait, /x/go, exit, "5"`, scratchMount)},
			"terminationGracePeriodSeconds: 20", s.scratchVolume())
	}
	s.write("slow.yaml", slow("slow"))
	s.write("lost.yaml", slow("lost"))
	a := s.serve()
	kept := s.keep()
	s.awaitLog("slow", "main", 0, "armed")
	s.awaitLog("lost", "main", 0, "armed")
	lost := s.uid("lost")
	a.kill()
	s.remove("slow.yaml")
	s.remove("lost.yaml")
	// One of them has lost its record, too: only the runtime knows it.
	if err := os.RemoveAll(filepath.Join(s.root, "pods", lost)); err != nil {
		t.Fatal(err)
	}
	s.serve()
	s.awaitLog("slow", "main", 0, "SIGTERM")
	s.awaitLog("lost", "main", 0, "SIGTERM")
	s.passes(s.front, 3)
	s.touch("go")
	s.awaitGone("slow")
	s.awaitGone("lost")
	for _, name := range []string{"slow", "lost"} {
		all := s.awaitEnded(name, "main", 1)
		if len(all) != 1 || all[0].exit != 5 {
			t.Errorf("lives of %s: %+v, want one that ended by itself with 5", name, all)
		}
	}
	s.untouched("keep", kept)
	s.remove("keep.yaml")
	s.awaitGone("keep")
	s.nothingLeft()
}

// TestUnprivileged: without the rights it needs, the agent exits with one clear line and the
// remedy.
func TestUnprivileged(t *testing.T) {
	s := parallelStage(t)
	cmd := s.command("serve", "-f", "/tmp")
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
	a := s.start(cmd)
	code, said := a.exit(), a.said()
	if code != 1 || !strings.HasPrefix(said, "error: ") || !strings.Contains(said, "permission denied") ||
		!strings.Contains(said, "hint: ") || strings.Count(said, "\n") != 1 {
		t.Errorf("exit code %d:\n%s", code, said)
	}
}
