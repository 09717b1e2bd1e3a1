//go:build full

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// TestEviction_ProcessTakesMemoryFast_KernelKillsNone: the threshold is 2 GiB below the available
// memory. The agent evicts a process that takes 200 MiB a second 20 of 20 times. The kernel kills
// no process for lack of memory. Each time has an agent of its own, because other programs of the
// machine take and free memory.
//
// Shows: C-1.35.1, C-1.35.5
func TestEviction_ProcessTakesMemoryFast_KernelKillsNone(t *testing.T) {
	s := parallelStage(t)
	before := oomKills(t)
	if err := os.MkdirAll(s.root, 0o700); err != nil { // reclaim measures its file system
		t.Fatal(err)
	}
	for i := range 20 {
		free := s.level("memory.available")
		if free < 6<<30 {
			t.Fatalf("only %d MiB of memory are available", free>>20)
		}
		a := s.serve("--eviction-hard", fmt.Sprintf("memory.available<%d", free-2<<30), "--eviction-pressure-transition-period", "0s")
		a.await("Serving the local socket")
		name := fmt.Sprintf("hog%d", i)
		s.excuse(name)
		// Up to 10 GiB: other programs may have freed memory since it was measured.
		s.write(name+".yaml", manifest(name, []string{container("main", strings.Repeat("alloc, '200', sleep, 1s, ", 50)+"forever")}))
		s.eventually(func() error { // the wait goes on while the process takes memory
			if p := s.status(name); p == nil || p.Status.Phase != v1.PodFailed {
				return fmt.Errorf("pod %s is not evicted, %d MiB are available", name, s.level("memory.available")>>20)
			}
			return nil
		})
		s.awaitEvicted(name, "The node was low on resource: memory. ")
		s.remove(name + ".yaml")
		s.awaitGone(name)
		a.leave()
	}
	if after := oomKills(t); after != before {
		t.Errorf("the kernel has killed %d processes", after-before)
	}
}

// level returns how much of a signal is available, with or without an agent.
func (s *stage) level(signal string) int64 {
	s.Helper()
	var d struct {
		Levels []struct {
			Signal    string
			Available int64
		}
	}
	var got result
	s.eventually(func() error { // an agent may not have observed its pods yet
		got = s.run("reclaim", "--dry-run", "-o", "json")
		if err := json.Unmarshal([]byte(got.out), &d); err != nil {
			return fmt.Errorf("reclaim: %w: %s", err, got.err)
		}
		return nil
	})
	for _, l := range d.Levels {
		if l.Signal == signal {
			return l.Available
		}
	}
	s.Fatalf("%s is not measured: %s", signal, got.out)
	return 0
}

// oomKills returns how many processes the kernel has killed for lack of memory.
func oomKills(t *testing.T) (n int64) {
	t.Helper()
	text, err := os.ReadFile("/proc/vmstat")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		_, _ = fmt.Sscanf(line, "oom_kill %d", &n)
	}
	return n
}
