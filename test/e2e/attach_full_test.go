//go:build full

package e2e

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
)

// TestAttach_StuckReaderDelaysNoOther: a stopped reader with a full socket delays neither the
// agent's work nor another reader, and the agent can exit. When the reader resumes, it gets
// every line, or a DROPPED and a SET.
//
// Shows: I5
func TestAttach_StuckReaderDelaysNoOther(t *testing.T) {
	s := parallelStage(t)
	a := s.serve()
	kept := s.keep()
	stuck, well := s.attach("--full"), s.attach()
	for _, r := range []*reader{stuck, well} { // both attached before the first edit: it is an UPDATE
		r.await("keep", r.of("ADD", "keep"))
	}
	s.must(stuck.cmd.Process.Signal(syscall.SIGSTOP))
	const edits = 8
	for i := range edits { // over half a MiB a line: together far more than a socket's buffer
		value := fmt.Sprint("e", i)
		text := labelled(simple("keep"), value)
		s.write("keep.yaml", strings.Replace(text, "annotations: {", "annotations: {bulk: "+strings.Repeat("x", 200<<10)+", ", 1))
		well.await("edit "+value, func(l line) bool {
			return l.Op == "UPDATE" && len(l.Pods) == 1 && strings.Contains(fmt.Sprint(l.Pods[0].Fields), " "+value+"}")
		})
	}
	s.awaitLabel("keep", fmt.Sprint("e", edits-1))
	s.write("new.yaml", simple("new"))
	s.awaitRunning("new", "main")
	s.awaitOK("file")
	s.untouched("keep", kept)
	s.must(stuck.cmd.Process.Signal(syscall.SIGCONT))
	ended := false
	stuck.eventually(func() error {
		select {
		case <-stuck.done: // on a slow machine it was stopped for longer than the agent waits for a reader
			ended = true
			return nil
		default:
		}
		stuck.mu.Lock()
		defer stuck.mu.Unlock()
		for _, l := range stuck.all {
			for _, p := range l.Pods {
				if p.Name == s.full("new") {
					return nil
				}
			}
		}
		return fmt.Errorf("the stuck reader has no line of the newest pod, but %d others", len(stuck.all))
	})
	stuck.mu.Lock()
	dropped, updates := 0, 0
	for _, l := range stuck.all {
		dropped += l.Dropped
		if l.Op == "UPDATE" {
			updates++
		}
	}
	stuck.mu.Unlock()
	if !ended && dropped == 0 && updates != edits {
		t.Errorf("the stuck reader has %d updates of %d, and nothing was dropped", updates, edits)
	}
	if !ended {
		s.must(stuck.cmd.Process.Signal(syscall.SIGSTOP))
	}
	a.leave()
	s.untouched("keep", kept)
}
