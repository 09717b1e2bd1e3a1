package e2e

import (
	"os"
	"path/filepath"
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
