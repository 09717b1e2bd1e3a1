//go:build full

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/test/criproxy"
	"github.com/nodectl/nodectl/test/node"
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

// TestB7_AdoptionTouchesNothing: SIGTERM ends the agent at once and no pod. The next agent
// adopts the pods without one mutating call, also after a kill -9.
//
// Shows: B7, I2
func TestB7_AdoptionTouchesNothing(t *testing.T) { parallelStage(t).adoptUntouched(nodectl) }

// TestB7_BuildFromBeforeTheRestructuring_AdoptionTouchesNothing: as
// TestB7_AdoptionTouchesNothing, and the pods are those of a build from before the code was
// restructured.
//
// Shows: B7
func TestB7_BuildFromBeforeTheRestructuring_AdoptionTouchesNothing(t *testing.T) {
	parallelStage(t).adoptUntouched(formerBuild(t))
}

// formerRevision is the last commit before the code was restructured.
const formerRevision = "eb7139c8"

// formerBuild returns the program of formerRevision.
func formerBuild(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	build := exec.Command("sh", "-ec", `git archive "$0" | tar -x -C "$1"
		cd "$1" && go build -tags grpcnotrace -trimpath -ldflags '-s -w' -o nodectl .`, formerRevision, dir)
	build.Dir, build.Env = node.Repo(), append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build revision %s, for which the history of the repository is needed: %v\n%s", formerRevision, err, out)
	}
	return filepath.Join(dir, "nodectl")
}

// adoptUntouched starts pods with a program, and then agents of bin/nodectl-slim that adopt
// them. They make no mutating call and report nothing again.
func (s *stage) adoptUntouched(program string) {
	t := s.oftenSynced().T
	t.Helper()
	p := s.through(criproxy.Hooks{})
	mount := "volumeMounts: [{name: data, mountPath: /data}]"
	s.write("a.yaml", manifest("a", []string{container("main", "forever", mount), container("side", "forever")},
		"volumes: [{name: data, emptyDir: {}}]", "initContainers:", container("init", "write, /data/x, text", mount)))
	s.write("b.yaml", manifest("b", []string{container("main", "forever")}, "hostNetwork: true"))
	s.write("job.yaml", manifest("job", []string{container("main", "print, done")}, "restartPolicy: OnFailure"))
	s.write("bad.yaml", manifest("bad", []string{container("main", "exit, \"1\"")}, "restartPolicy: Never"))
	first := s.command("serve", "-f", s.manifests)
	first.Path = program
	a := s.start(first)
	was := map[string]map[string]running{"a": s.awaitRunning("a", "main", "side"), "b": s.awaitRunning("b", "main")}
	s.awaitReady("a", true)
	s.awaitReady("b", true)
	s.awaitPhase("job", v1.PodSucceeded)
	s.awaitPhase("bad", v1.PodFailed)
	s.awaitSandboxEnded("job")
	s.awaitSandboxEnded("bad")
	s.quiet(p)
	before := len(p.Mutations())
	for i, end := range []func(*agent){(*agent).leave, (*agent).kill, (*agent).leave} {
		end(a)
		a = s.serve()
		a.await("Status of every pod is known", "pods=4")
		s.awaitReady("a", true)
		s.awaitPhase("job", v1.PodSucceeded)
		s.awaitPhase("bad", v1.PodFailed)
		s.quiet(p)
		if made := p.Mutations()[before:]; len(made) > 0 {
			t.Fatalf("agent %d made mutating calls: %v", i+2, made)
		}
		for name, w := range was {
			s.untouched(name, w)
		}
		for _, name := range []string{"a", "b"} {
			s.steady(name)
			// The new journal begins with the last line of each pod.
			if all := s.reported(name); len(all) != 1 {
				t.Errorf("agent %d reported %s %d times", i+2, name, len(all))
			}
		}
	}
}

// TestSweep_SourceNoLongerConfigured: serve stops the pods of a source that is no longer in
// its flags at its start, and one line says why.
func TestSweep_SourceNoLongerConfigured(t *testing.T) {
	s := parallelStage(t)
	second := filepath.Join(s.dir, "second")
	if err := os.Mkdir(second, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(second, "old.yaml"), []byte(simple("old")), 0o600); err != nil {
		t.Fatal(err)
	}
	// Both hold keep: the earlier layer wins, and later the second one alone is enough.
	if err := os.WriteFile(filepath.Join(second, "keep.yaml"), []byte(simple("keep")), 0o600); err != nil {
		t.Fatal(err)
	}
	a := s.start(s.command("serve", "-f", second, "-f", s.manifests))
	s.awaitRunning("old", "main")
	kept := s.keep()
	a.await("Pod is defined more than once", s.full("keep"))
	a.leave()
	a = s.serve()
	a.once("no longer configured", s.full("old"), second)
	s.awaitGone("old")
	s.untouched("keep", kept)
}

// TestF16_NodeNameRemembered: a root directory belongs to one node name. An agent with
// another name exits with a hint, and stops no pod.
//
// Shows: F16
func TestF16_NodeNameRemembered(t *testing.T) {
	s := parallelStage(t)
	a := s.serve()
	kept := s.keep()
	a.leave()
	cmd := s.command("serve", "-f", s.scratch)
	cmd.Args = append(cmd.Args, "--node-name", "other"+s.name)
	b := s.start(cmd)
	if code := b.exit(); code != 1 || !strings.Contains(b.said(), "hint:") || !strings.Contains(b.said(), s.name) {
		t.Errorf("exit code %d:\n%s", code, b.said())
	}
	s.untouched("keep", kept)
}
