package e2e

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
)

func waiting(st v1.PodStatus, name string) v1.ContainerStateWaiting {
	if w := containerStatus(st, name).State.Waiting; w != nil {
		return *w
	}
	return v1.ContainerStateWaiting{}
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
	s.serve().await("Status of every pod is known")
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
