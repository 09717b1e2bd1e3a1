//go:build full

package e2e

import (
	"fmt"
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

// TestC_1_19_8_ExitsAndPolicies: whether an exited container restarts depends only on its
// exit code and the pod's restart policy.
//
// Shows: C-1.19.8
func TestC_1_19_8_ExitsAndPolicies(t *testing.T) {
	s := parallelStage(t)
	cases := []struct {
		policy   string
		exit     int
		phase    v1.PodPhase
		restarts bool
	}{
		{"Never", 0, v1.PodSucceeded, false},
		{"Never", 3, v1.PodFailed, false},
		{"OnFailure", 0, v1.PodSucceeded, false},
		{"OnFailure", 3, v1.PodRunning, true},
		{"Always", 0, v1.PodRunning, true},
		{"Always", 3, v1.PodRunning, true},
	}
	name := func(i int) string { return fmt.Sprintf("p%d", i) }
	for i, c := range cases {
		s.write(name(i)+".yaml", manifest(name(i), []string{
			container("main", fmt.Sprintf("append, /x/%s, exit, %q", name(i), fmt.Sprint(c.exit)), scratchMount),
		}, "restartPolicy: "+c.policy, s.scratchVolume()))
	}
	s.serve()
	for i, c := range cases {
		if !c.restarts {
			continue // it does not restart
		}
		// The first restart is at once, the second after ten seconds, each later one after
		// twice as long. On a busy machine the test may see a later one.
		st := s.awaitStatus(name(i), "in back-off", func(st v1.PodStatus) bool {
			return waiting(st, "main").Reason == "CrashLoopBackOff" && containerStatus(st, "main").RestartCount >= 1
		})
		restarts := containerStatus(st, "main").RestartCount
		wait := min(10*time.Second<<(restarts-1), 5*time.Minute)
		if st.Phase != c.phase {
			t.Errorf("%s, exit %d: phase %s, want %s", c.policy, c.exit, st.Phase, c.phase)
		}
		if m := waiting(st, "main").Message; !strings.HasPrefix(m, "back-off "+wait.String()+" restarting failed container=main pod="+s.full(name(i))+"_default(") {
			t.Errorf("%s, exit %d: message %q", c.policy, c.exit, m)
		}
		if end := containerStatus(st, "main").LastTerminationState.Terminated; end == nil || int(end.ExitCode) != c.exit {
			t.Errorf("%s, exit %d: last end %+v", c.policy, c.exit, end)
		}
		if n := s.stamps(name(i)); n < 2 || n > int(containerStatus(s.status(name(i)).Status, "main").RestartCount)+2 {
			t.Errorf("%s, exit %d: ran %d times, want 2, or 3 once the back-off is over", c.policy, c.exit, n)
		}
	}
	for i, c := range cases {
		if c.restarts {
			continue
		}
		st := s.awaitPhase(name(i), c.phase)
		if end := containerStatus(st, "main").State.Terminated; end == nil || int(end.ExitCode) != c.exit {
			t.Errorf("%s, exit %d: %s", c.policy, c.exit, describe(st))
		}
		if n := s.stamps(name(i)); n != 1 {
			t.Errorf("%s, exit %d: ran %d times, want 1", c.policy, c.exit, n)
		}
	}
}

// TestF32_IgnoresSIGTERM: a container that does not exit on SIGTERM is killed when its grace
// period is over, not before. Other containers of the pod exit before it.
//
// Shows: F32, C-1.23
func TestF32_IgnoresSIGTERM(t *testing.T) {
	s := parallelStage(t)
	s.write("stay.yaml", manifest("stay", []string{container("main", "ignore, print, armed, forever"), container("polite", `term, "9", print, armed, forever`)},
		"terminationGracePeriodSeconds: 4"))
	s.write("other.yaml", simple("other"))
	s.serve()
	s.awaitRunning("stay", "main", "polite")
	other := s.awaitRunning("other", "main")
	s.awaitLog("stay", "main", 0, "armed")
	s.awaitLog("stay", "polite", 0, "armed")
	begin := time.Now()
	s.remove("stay.yaml")
	s.awaitGone("stay")
	main, polite := s.awaitEnded("stay", "main", 1), s.awaitEnded("stay", "polite", 1)
	if len(main) != 1 || main[0].exit != 137 {
		t.Fatalf("the container ended as %+v, want one life and 137", main)
	}
	if took := main[0].to.Sub(begin); took < 4*time.Second {
		t.Errorf("the container was killed after %s, want 4s", took)
	}
	if len(polite) != 1 || polite[0].exit != 9 || !polite[0].to.Before(main[0].to) {
		t.Errorf("the other container ended as %+v", polite)
	}
	s.untouched("other", other)
}
