//go:build full

package e2e

import (
	"testing"

	"github.com/nodectl/nodectl/test/criproxy"
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
