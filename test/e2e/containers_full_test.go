//go:build full

package e2e

import (
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

// TestC_1_22_5_CrashLoopOutlivesTheAgent: the status shows the back-off before the next
// start. It grows, and a new agent neither forgets nor restarts it.
//
// Shows: C-1.22.5
func TestC_1_22_5_CrashLoopOutlivesTheAgent(t *testing.T) {
	s := parallelStage(t)
	s.write("loop.yaml", manifest("loop", []string{container("main", `append, /x/loop, exit, "1"`, scratchMount)}, s.scratchVolume()))
	a := s.serve()
	backoff := func(restarts int32, words string) {
		t.Helper()
		s.awaitStatus("loop", words, func(st v1.PodStatus) bool {
			return containerStatus(st, "main").RestartCount == restarts && strings.HasPrefix(waiting(st, "main").Message, words)
		})
	}
	backoff(1, "back-off 10s ")
	a.kill()
	s.serve()
	backoff(2, "back-off 20s ")
	all := s.awaitEnded("loop", "main", 3)
	if len(all) != 3 || s.stamps("loop") != 3 {
		t.Fatalf("%d lives and %d starts, want 3", len(all), s.stamps("loop"))
	}
	if pause := all[2].from.Sub(all[1].to); pause < 10*time.Second {
		t.Errorf("the second restart came after %s, want 10s", pause)
	}
	// Attempts number the log files, one for each container.
	for i, l := range all {
		if int(l.attempt) != i {
			t.Errorf("life %d is attempt %d", i, l.attempt)
		}
	}
}

// TestF80_ProbeThatHangs: a probe without an answer fails after its timeout, and delays
// neither the pod nor the node.
//
// Shows: F80
func TestF80_ProbeThatHangs(t *testing.T) {
	s := parallelStage(t)
	s.write("hang.yaml", manifest("hang", []string{container("main", "forever",
		"readinessProbe: {exec: {command: [/app, forever]}, periodSeconds: 1, timeoutSeconds: 1, failureThreshold: 1}")}))
	s.serve()
	was := s.awaitRunning("hang", "main")
	s.write("next.yaml", simple("next"))
	s.awaitReady("next", true)
	s.awaitReady("hang", false)
	s.remove("hang.yaml")
	s.awaitGone("hang")
	if p := s.node.Processes(was["main"].id); len(p) > 0 {
		t.Errorf("processes left: %v", p)
	}
}

// TestImageMissing: a missing image is named in the status and in the log, and delays its own
// container only.
//
// Shows: C-1.22.9
func TestImageMissing(t *testing.T) {
	s := parallelStage(t)
	// No process listens on that port, so the connection is refused at once.
	away := strings.Replace(container("away", "forever"), "nodectl.dev/test/stamp:1", "127.0.0.1:1/away:1", 1)
	never := strings.NewReplacer("nodectl.dev/test/stamp:1", "nodectl.dev/test/never:1", "IfNotPresent", "Never").
		Replace(container("never", "forever"))
	s.write("half.yaml", manifest("half", []string{away, never, container("main", "forever")}))
	s.excuse("half") // two of its containers never start
	s.write("whole.yaml", simple("whole"))
	a := s.serve()
	s.awaitRunning("half", "main")
	s.awaitRunning("whole", "main")
	st := s.awaitStatus("half", "both images missed", func(st v1.PodStatus) bool {
		w, n := waiting(st, "away"), waiting(st, "never")
		return (w.Reason == "ErrImagePull" || w.Reason == "ImagePullBackOff") && n.Reason == "ErrImageNeverPull"
	})
	if m := waiting(st, "away").Message; !strings.Contains(m, "127.0.0.1:1/away:1") {
		t.Errorf("the message does not name the image: %q", m)
	}
	if st.Phase != v1.PodPending || ready(st) {
		t.Errorf("status: %s", describe(st))
	}
	a.await("level=WARN", s.full("half"), "container=away", "ErrImagePull", "127.0.0.1:1/away:1")
	a.await("level=WARN", s.full("half"), "container=never", "ErrImageNeverPull")
}

// TestCommandMissing: a command that is not in the image is reported in the status, retried
// with a growing pause, and does not affect other pods.
//
// Shows: C-1.22.9
func TestCommandMissing(t *testing.T) {
	s := parallelStage(t)
	s.write("bad.yaml", manifest("bad", []string{container("main", "forever", "command: [/no-such-command]")}))
	s.write("never.yaml", manifest("never", []string{container("main", "forever", "command: [/no-such-command]")}, "restartPolicy: Never"))
	s.write("good.yaml", simple("good"))
	s.serve()
	s.awaitRunning("good", "main")
	st := s.awaitStatus("bad", "waiting", func(st v1.PodStatus) bool {
		r := waiting(st, "main").Reason
		return r == "RunContainerError" || r == "CrashLoopBackOff"
	})
	end := containerStatus(st, "main").LastTerminationState.Terminated
	if !strings.Contains(waiting(st, "main").Message, "no-such-command") && (end == nil || !strings.Contains(end.Message, "no-such-command")) {
		t.Errorf("nothing names the command: %+v, %+v", waiting(st, "main"), end)
	}
	st = s.awaitPhase("never", v1.PodFailed)
	end = containerStatus(st, "main").State.Terminated
	if end == nil || end.Reason != "StartError" || end.ExitCode != 128 || !strings.Contains(end.Message, "no-such-command") {
		t.Errorf("status of the pod that is not restarted: %s, %+v", describe(st), end)
	}
	if n := len(s.sandboxes()); n != 3 {
		t.Errorf("%d sandboxes of three pods", n)
	}
}
