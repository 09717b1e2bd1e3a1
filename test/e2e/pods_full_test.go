//go:build full

package e2e

import (
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/test/criproxy"
	"github.com/nodectl/nodectl/test/node"
)

// TestC_1_22_13_OOMKilled: a container over its memory limit is killed, and its status has
// that reason.
//
// Shows: C-1.22.13
func TestC_1_22_13_OOMKilled(t *testing.T) {
	s := parallelStage(t)
	word := newLastWord()
	s.through(criproxy.Hooks{After: word.note})
	s.serve()
	s.endsForMemory(word, "fat", "main", func(name string) string {
		return manifest(name, []string{
			container("main", `alloc, "64", forever`, "resources: {limits: {memory: 24Mi}}"),
		}, "restartPolicy: Never")
	})
}

// TestC_1_31_HostPortConflict: of two pods with the same host port the later one is not
// admitted, which a log line and its status show. It starts when the port is free.
//
// Shows: C-1.31
func TestC_1_31_HostPortConflict(t *testing.T) {
	t.Parallel()
	s := newStage(t, node.New(t)) // with host ports
	text := func(name, port string) string {
		return manifest(name, []string{container("main", `serve, ":8080", forever`, "ports: [{containerPort: 8080, hostPort: "+port+"}]")})
	}
	port := freePort(t)
	s.write("first.yaml", text("first", port))
	a := s.serve()
	was := s.awaitRunning("first", "main")
	s.write("second.yaml", text("second", port))
	a.await("level=WARN", s.full("second"), port)
	st := s.awaitPhase("second", v1.PodPending)
	if want := "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"; st.Reason != "NodePorts" || st.Message != want {
		t.Errorf("the status is not the kubelet's, %q: %s", want, describe(st))
	}
	s.untouched("first", was)
	if n := len(s.sandboxes()); n != 1 {
		t.Errorf("%d sandboxes, want one", n)
	}
	s.remove("first.yaml")
	s.awaitRunning("second", "main")
	if got := s.page("127.0.0.1:"+port, "/"); got != s.full("second") {
		t.Errorf("the port leads to %q", got)
	}
	a.once("level=WARN", s.full("second"), port)
}
