package node

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// AwaitStill waits until every thread of a process stands still: SIGSTOP reaches
// them one after the other, and until then one may answer.
func AwaitStill(t testing.TB, pid int) {
	t.Helper()
	still := func() bool {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		if err != nil || len(tasks) == 0 {
			t.Fatalf("process %d is not there: %v", pid, err)
		}
		return !slices.ContainsFunc(tasks, func(file string) bool {
			stat, err := os.ReadFile(file)
			return err == nil && !strings.Contains(string(stat), ") T ")
		})
	}
	for end := time.Now().Add(10 * time.Second); !still(); {
		if time.Now().After(end) {
			t.Fatalf("process %d runs on after SIGSTOP", pid)
		}
		runtime.Gosched()
	}
}
