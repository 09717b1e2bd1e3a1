package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

func waiting(st v1.PodStatus, name string) v1.ContainerStateWaiting {
	if w := containerStatus(st, name).State.Waiting; w != nil {
		return *w
	}
	return v1.ContainerStateWaiting{}
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

// TestC_1_29_Readiness: each kind of probe makes a pod Ready and not Ready, as its container
// answers; no container restarts for it.
//
// Shows: C-1.29
func TestC_1_29_Readiness(t *testing.T) {
	s := parallelStage(t)
	often := "periodSeconds: 1, failureThreshold: 1, timeoutSeconds: 30"
	s.write("http.yaml", manifest("http", []string{container("main", `unready, /x/http, serve, ":8080", forever`, scratchMount,
		"ports: [{name: web, containerPort: 8080}]", "readinessProbe: {httpGet: {path: /ready, port: web}, "+often+"}")}, s.scratchVolume()))
	s.write("exec.yaml", manifest("exec", []string{container("main", "forever", scratchMount,
		"readinessProbe: {exec: {command: [/app, exists, /x/exec]}, "+often+"}")}, s.scratchVolume()))
	s.write("tcp.yaml", manifest("tcp", []string{container("main", `wait, /x/tcp, serve, ":8080", forever`, scratchMount,
		"readinessProbe: {tcpSocket: {port: 8080}, "+often+"}")}, s.scratchVolume()))
	a := s.serve()
	pods := []string{"http", "exec", "tcp"}
	was := make(map[string]map[string]running)
	for _, p := range pods {
		was[p] = s.awaitRunning(p, "main")
	}
	s.awaitReady("http", true)
	s.awaitReady("exec", false)
	s.awaitReady("tcp", false)
	s.touch("http", "exec", "tcp")
	s.awaitReady("http", false)
	s.awaitReady("exec", true)
	s.awaitReady("tcp", true)

	// A new agent keeps Ready until a probe fails (P16).
	a.leave()
	s.serve().await("All pods reported")
	s.untouch("http")
	s.awaitReady("http", true)
	for _, p := range []string{"exec", "tcp"} { // a new agent begins a new journal with the last line of each pod
		if all := s.readiness(p); len(all) == 0 || slices.Contains(all, false) {
			t.Errorf("readiness of %s as reported since then: %v", p, all)
		}
	}
	s.untouch("exec")
	s.awaitReady("exec", false)
	for _, p := range pods {
		s.untouched(p, was[p])
	}
}
