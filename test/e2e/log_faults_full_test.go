//go:build full

package e2e

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestF83_CrashLoop: a container that exits as soon as it starts restarts after its back-off
// and not before. Of its exited containers only the newest are kept, with their logs, and the
// pod's other container runs on.
//
// Shows: F83
func TestF83_CrashLoop(t *testing.T) {
	s := parallelStage(t)
	s.write("loop.yaml", manifest("loop", []string{container("main", `append, /x/loop, print, words, exit, "3"`, scratchMount, secret), container("calm", "forever")},
		s.scratchVolume()))
	s.serve("--max-container-restart-period", "1s")
	calm := func() running {
		var r running
		s.eventually(func() error {
			for _, c := range s.containers("loop") {
				if p := s.node.Processes(c.Id); c.Metadata.Name == "calm" && c.State == cri.ContainerState_CONTAINER_RUNNING && len(p) == 1 {
					r = running{c.Id, c.Metadata.Attempt, p[0].Pid, p[0].Started}
					return nil
				}
			}
			return errors.New("the other container does not run")
		})
		return r
	}
	was := calm()
	const rounds = 6
	s.eventually(func() error {
		records := 0
		for _, c := range s.containers("loop") {
			if c.Metadata.Name == "main" {
				records++
			}
		}
		if records > 3 { // the last exited one, the one before until it is removed, the next
			t.Errorf("%d records of one container", records)
		}
		if n := s.stamps("loop"); n < rounds {
			return fmt.Errorf("it was started %d times", n)
		}
		return nil
	})
	all := s.ended("loop", "main")
	for i, l := range all {
		if int(l.attempt) != i || l.exit != 3 {
			t.Errorf("life %d is attempt %d and ended with %d", i, l.attempt, l.exit)
		}
		if i > 1 { // the first crash restarts at once
			if pause := l.from.Sub(all[i-1].to); pause < time.Second {
				t.Errorf("attempt %d began %s after the one before had ended", i, pause)
			}
		}
	}
	if now := calm(); now != was {
		t.Errorf("the other container was %+v, is %+v", was, now)
	}
	// A busy machine may not show a back-off of a second in the status:
	// TestC_1_22_5_CrashLoopOutlivesTheAgent shows a long one.
	s.awaitStatus("loop", "with the end before", func(st v1.PodStatus) bool {
		return containerStatus(st, "main").LastTerminationState.Terminated != nil
	})
	s.invariants()
	s.eventually(func() error { // logs and their links belong to the containers that are kept
		logs, _ := filepath.Glob(filepath.Join(s.logs, "*/main/*"))
		links, _ := filepath.Glob(filepath.Join(s.dir, "containers", s.full("loop")+"_default_main-*"))
		if len(logs) > 2 || len(links) > 2 || len(logs) == 0 {
			return fmt.Errorf("logs %v, links %v", logs, links)
		}
		return nil
	})
	s.remove("loop.yaml")
	s.awaitGone("loop")
	s.nothingLeft()
}
