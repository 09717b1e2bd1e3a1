package node

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nodectl/nodectl/test/wait"
)

// AwaitStill waits until every thread of a process has stopped: SIGSTOP reaches them one
// after the other, and until then one may answer.
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
	wait.True(t, fmt.Sprintf("process %d stands still after SIGSTOP", pid), still)
}
