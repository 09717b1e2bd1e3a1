package binary

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/wait"
)

// merge reads a manifest under Landlock: every thread has given up its rights before the
// first byte. What they may not do is TestConfineReading_ParserIsTakenOver_ChangesNothing.
func TestMerge_BeforeItReads_IsConfined(t *testing.T) {
	t.Parallel()
	program, err := node.Slim()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "merge", "-f", "-", "--node-name", "n")
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	manifest, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	wait.NoError(t, func() error {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", cmd.Process.Pid))
		if err != nil || len(tasks) == 0 {
			return fmt.Errorf("process %d has no threads: %v", cmd.Process.Pid, err)
		}
		for _, task := range tasks {
			status, err := os.ReadFile(task)
			if err != nil {
				return err
			}
			if !strings.Contains(string(status), "\nNoNewPrivs:\t1\n") {
				return fmt.Errorf("%s: not confined", task)
			}
		}
		return nil
	})
	if _, err := manifest.Write([]byte("{apiVersion: v1, kind: Pod, metadata: {name: web}, spec: {containers: [{name: a, image: b}]}}\n")); err != nil {
		t.Error(err)
	}
	manifest.Close()
	if err := cmd.Wait(); err != nil || !strings.Contains(out.String(), "name: web-n") {
		t.Errorf("%v: %s", err, out.String())
	}
}
