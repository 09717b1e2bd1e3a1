//go:build full

package e2e

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/nodectl/nodectl/test/criproxy"
)

// TestF20_RuntimeSocketAbsent: without a runtime the agent waits, logs that once, and starts
// the desired pods when the runtime is there. It continues after an outage of the runtime.
//
// Shows: F20
func TestF20_RuntimeSocketAbsent(t *testing.T) {
	s := parallelStage(t)
	sock := filepath.Join(s.scratch, "late.sock")
	s.endpoint = "unix://" + sock
	s.write("web.yaml", simple("web"))
	a := s.serve()
	a.await("level=WARN", "Container runtime is not ready", sock)
	if n := len(a.linesWith("level=WARN", "Container runtime")); n != 1 {
		t.Errorf("%d warnings instead of one", n)
	}
	front := s.proxy(sock, criproxy.Hooks{})
	was := s.awaitRunning("web", "main")
	s.awaitReady("web", true)
	if err := front.Close(); err != nil {
		t.Fatal(err)
	}
	s.eventually(func() error {
		if n := len(a.linesWith("Container runtime is not ready")); n != 2 {
			return fmt.Errorf("said %d times that the runtime is away, want 2", n)
		}
		return nil
	})
	s.write("next.yaml", simple("next"))
	s.awaitSource("file", "has both", func(it sourceState) bool { return it.Pods == 2 })
	s.remove("web.yaml")
	s.awaitSource("file", "has next alone", func(it sourceState) bool { return it.Pods == 1 })
	s.untouched("web", was)
	front = s.proxy(sock, criproxy.Hooks{})
	t.Cleanup(func() { _ = front.Close() })
	s.awaitReady("next", true)
	s.awaitGone("web")
}

// TestF21_ContainerdKilled: pods run on, as the same processes, while containerd is killed
// and started again under a running agent, which always reports them as running. Pods that
// start or stop in that moment do so afterwards, once.
//
// Shows: F21, F29
func TestF21_ContainerdKilled(t *testing.T) {
	t.Parallel()
	containerdKilled(t, 3, false)
}
