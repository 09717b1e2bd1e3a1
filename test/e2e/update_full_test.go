//go:build full

package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// TestF49_RemovedAndAddedAgain: removing and adding a manifest faster than its pod can stop
// results in one pod of the last text; the old one has its grace period.
//
// Shows: F49
func TestF49_RemovedAndAddedAgain(t *testing.T) {
	s := parallelStage(t)
	text := func(i int) string {
		return manifest("web", []string{container("main", fmt.Sprintf("print, life-%d, forever", i))})
	}
	s.write("web.yaml", text(0))
	s.excuse("web") // an edit may end a container that has just started
	s.serve()
	s.awaitRunning("web", "main")
	const flips = 10
	for i := range flips {
		ended := len(s.ended("web", "main"))
		s.remove("web.yaml")
		if i%4 == 3 { // by then the old one has begun to stop
			s.awaitEnded("web", "main", ended+1)
		}
		s.write("web.yaml", text(i+1))
		if i%2 == 1 { // and by then the new one is there, at least partly
			s.awaitRunning("web", "main")
		}
	}
	s.eventually(func() error {
		now, err := s.runningNow("web", "main")
		if err != nil {
			return err
		}
		text, err := s.log("web", "main", now["main"].attempt)
		if err == nil && !strings.Contains(text, fmt.Sprintf("life-%d\n", flips)) {
			err = fmt.Errorf("it logged %q", text)
		}
		return err
	})
	was := s.awaitRunning("web", "main")
	s.awaitReady("web", true)
	s.untouched("web", was)
	s.sandbox("web") // exactly one is left
	s.remove("web.yaml")
	s.awaitGone("web")
	s.nothingLeft()
}
