//go:build full

package e2e

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestRunonce_Ends: each result of runonce has its exit code, and a report with the cause.
func TestRunonce_Ends(t *testing.T) {
	s := parallelStage(t)
	s.excuse("done", "fails", "never", "slow") // --cleanup stops them
	file := "pod.yaml"
	s.write(file, manifest("done", []string{container("main", "sleep, 300ms")}, "restartPolicy: Never",
		"initContainers:", container("init", "sleep, 100ms")))
	r := s.runonce(0, "--until", "done", "--cleanup")
	if c := r.Pods[0].Containers; r.Pods[0].Result != "done" || r.Pods[0].Phase != "Succeeded" || len(c) != 2 {
		t.Errorf("report of a job: %+v", r)
	}
	s.awaitGone("done")

	s.write(file, manifest("fails", []string{container("main", `exit, "4"`)}, "restartPolicy: Never"))
	r = s.runonce(9, "--until", "done", "--cleanup")
	if p := r.Pods[0]; p.Result != "failed" || p.Phase != "Failed" || p.Containers[0].ExitCode != 4 || r.Summary.Failed != 1 {
		t.Errorf("report of a pod that failed: %+v", r)
	}

	s.write(file, strings.NewReplacer("stamp:1", "never:1", "IfNotPresent", "Never").Replace(simple("never")))
	r = s.runonce(9, "--cleanup")
	if p := r.Pods[0]; p.Result != "failed" || p.Containers[0].Reason != "ErrImageNeverPull" {
		t.Errorf("report of an image that is not there: %+v", r)
	}

	s.write(file, manifest("slow", []string{container("main", "wait, /never")}, "restartPolicy: Never"))
	r = s.runonce(4, "--until", "done", "--timeout", "5s", "--cleanup")
	if p := r.Pods[0]; p.Result != "timeout" || r.Summary.Timeout != 1 {
		t.Errorf("report of a timeout: %+v", r)
	}
	s.awaitGone("slow")
	s.nothingLeft()

	// runonce checks all manifests before it starts anything.
	s.write(file, simple("good"))
	s.write("bad.yaml", "kind: [\n")
	if r := s.run("runonce", "-f", s.manifests); r.code != 3 || !strings.Contains(r.err, "bad.yaml:1") {
		t.Errorf("with a broken manifest: %+v", r)
	}
	s.remove("bad.yaml")
	s.remove(file)
	if r := s.run("runonce", "-f", s.manifests); r.code != 3 || !strings.Contains(r.err, "no pod") {
		t.Errorf("without a pod: %+v", r)
	}
	if r := s.run("runonce", "-f", s.manifests+"/nowhere"); r.code != 5 {
		t.Errorf("without a directory: %+v", r)
	}
	s.write(file, simple("good"))
	endpoint := s.endpoint // made by the first command
	s.endpoint = "unix://" + filepath.Join(s.scratch, "nothing.sock")
	if r := s.run("runonce", "-f", s.manifests, "--timeout", "2s"); r.code != 6 || !strings.Contains(r.err, "nothing.sock") {
		t.Errorf("without a runtime: %+v", r)
	}
	s.endpoint = endpoint
	if n := len(s.sandboxes()); n != 0 {
		t.Errorf("%d sandboxes after all this", n)
	}
}

// TestRunonce_Interrupted: a signal ends the wait, not the pods; the next runonce continues
// from there.
func TestRunonce_Interrupted(t *testing.T) {
	s := parallelStage(t)
	s.write("web.yaml", manifest("web", []string{container("main", "forever", "readinessProbe: {tcpSocket: {port: 1}}")}))
	var was map[string]running
	for _, c := range []struct {
		signal syscall.Signal
		code   int
	}{{syscall.SIGINT, 130}, {syscall.SIGTERM, 143}} {
		a := s.start(s.command("runonce", "-f", s.manifests, "--until", "ready"))
		a.await(s.full("web")) // it is at work, not just starting
		now := s.awaitRunning("web", "main")
		if was == nil {
			was = now
		}
		if err := a.cmd.Process.Signal(c.signal); err != nil {
			t.Fatal(err)
		}
		if code := a.exit(); code != c.code {
			t.Errorf("exit code %d after %v, want %d", code, c.signal, c.code)
		}
		s.untouched("web", was)
	}
}
