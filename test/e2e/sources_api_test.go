package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// closedKubeconfig writes the kubeconfig of an API server that refuses connections.
func (s *stage) closedKubeconfig() string {
	s.Helper()
	file := filepath.Join(s.scratch, "closed.kubeconfig")
	s.must(os.WriteFile(file, []byte(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`), 0o600))
	return file
}

// TestF50_StaticPodsWithoutAPIServer: at boot, with an API server that never answers, static
// pods start at once, their edits and removals are applied, and get sources shows the api
// source's error.
func TestF50_StaticPodsWithoutAPIServer(t *testing.T) {
	s := parallelStage(t)
	s.write("old.yaml", simple("old"))
	begin := time.Now()
	a := s.serve("--kubeconfig", s.closedKubeconfig())
	kept := s.keep()
	s.awaitRunning("old", "main")
	it := s.awaitSource("api", "failing", func(it sourceState) bool { return it.State == "failing" && strings.Contains(it.Error, "refused") })
	s.since(it, begin)
	if it.Heard || it.LastRead != "" {
		t.Errorf("the api source: %+v", it)
	}
	a.await("Source not read", "api:")
	s.write("old.yaml", labelled(simple("old"), "edited"))
	s.awaitLabel("old", "edited")
	s.remove("old.yaml")
	s.awaitGone("old")
	s.write("new.yaml", simple("new"))
	s.awaitRunning("new", "main")

	// The same for a later agent, and for a manifest removed while no agent ran.
	a.kill()
	s.remove("new.yaml")
	s.serve("--kubeconfig", s.closedKubeconfig())
	s.awaitGone("new")
	s.untouched("keep", kept)
}
