package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// guarded is the manifest of a Deployment of a version that a failure rolls back. Its container
// runs args.
func guarded(version, args string) string {
	text := twoReplicas(version)
	text = strings.Replace(text, "metadata: {name: web}", "metadata: {name: web, annotations: {nodectl.dev/rollback: on-failure}}", 1)
	return strings.Replace(text, `ready, 500ms, serve, ":8080", forever`, args, 1)
}

// says runs nodectl until it ends with 0 and prints a text.
func (s *stage) says(text string, args ...string) {
	s.Helper()
	s.eventually(func() error {
		r := s.run(args...)
		if r.code != 0 || !strings.Contains(r.out, text) {
			return fmt.Errorf("nodectl %v: exit code %d, want 0 and %q: %s%s", args, r.code, text, r.out, r.err)
		}
		return nil
	})
}

// TestWorkloads_VersionCrashes_RollsBackAndUndoReturns: a version that prints a text and exits is
// replaced by the one before, while two pods stay ready. The next agent does not try it again, its
// log is kept, and `rollout undo` returns to an older version.
func TestWorkloads_VersionCrashes_RollsBackAndUndoReturns(t *testing.T) {
	s := parallelStage(t)
	const good = `ready, 500ms, serve, ":8080", forever`
	s.write("web.yaml", guarded("one", good))
	a := s.serve()
	s.awaitVersion("one", false)
	s.write("web.yaml", guarded("two", good))
	s.awaitVersion("two", true)

	s.write("web.yaml", guarded("three", `print, "no database", exit, "3"`))
	s.says("rolled back: container main of pod web-", "rollout", "history", "deployment/web")
	s.awaitVersion("two", true)
	if r := s.run("rollout", "status", "deployment/web"); r.code != 1 || !strings.Contains(r.err, "rollback to revision 2: revision 3 failed: container main of pod web-") {
		t.Errorf("rollout status: exit code %d: %s%s", r.code, r.out, r.err)
	}
	kept := s.filesBelow(filepath.Join(s.root, "workloads", "logs"))
	words := 0
	for _, text := range kept {
		words += strings.Count(string(text), "no database")
	}
	if words == 0 {
		t.Errorf("the log of the failed version is not kept: %d files", len(kept))
	}

	a.leave()
	a = s.serve()
	s.says("spec.template is not that of the source (rollback to revision 2", "describe", "deployment/web")
	s.awaitVersion("two", true)

	if r := s.run("rollout", "undo", "deployment/web", "--to-revision", "1"); r.code != 0 || r.out != "deployment.apps/web rolled back\n" {
		t.Errorf("rollout undo: exit code %d: %s%s", r.code, r.out, r.err)
	}
	s.awaitVersion("one", true)
	s.says("successfully rolled out", "rollout", "status", "deployment/web")
	s.remove("web.yaml")
	s.eventually(func() error {
		if pods := s.ofWorkload("web"); len(pods) > 0 {
			return fmt.Errorf("%d pods are left", len(pods))
		}
		if left := s.filesBelow(filepath.Join(s.root, "workloads")); len(left) > 0 {
			return fmt.Errorf("%d files of the workload are left", len(left))
		}
		return nil
	})
	a.leave()
}
