//go:build full

package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// TestF15_SecondAgent: another agent on the same root directory exits with one line that
// names the first, whatever its flags; the first is not disturbed.
//
// Shows: F15
func TestF15_SecondAgent(t *testing.T) {
	s := parallelStage(t)
	a := s.serve()
	kept := s.keep()
	b := s.start(s.command("serve", "-f", s.scratch))
	if code := b.exit(); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	said := b.said()
	if !strings.HasPrefix(said, "error: ") || !strings.Contains(said, fmt.Sprint("process ", a.cmd.Process.Pid)) ||
		!strings.Contains(said, s.root) || strings.Count(said, "\n") > 1 {
		t.Errorf("the second agent said:\n%s", said)
	}
	s.untouched("keep", kept)
	s.write("next.yaml", simple("next"))
	s.awaitRunning("next", "main")
	// A lock outlives no process: kill -9 leaves nothing to clean up.
	a.kill()
	s.serve()
	s.awaitReady("next", true)
}
