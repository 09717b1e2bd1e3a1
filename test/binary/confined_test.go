package binary

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/wait"
)

// merge reads a manifest under Landlock: every thread has given up its rights before the
// first byte. TestReading_ParserIsTakenOver_ChangesNothing shows which rights these
// are.
//
// Shows: D1
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
	wait.NoError(t, func() error { return isConfined(cmd.Process.Pid) })
	if _, err := manifest.Write([]byte("{apiVersion: v1, kind: Pod, metadata: {name: web}, spec: {containers: [{name: a, image: b}]}}\n")); err != nil {
		t.Error(err)
	}
	manifest.Close()
	if err := cmd.Wait(); err != nil || !strings.Contains(out.String(), "name: web-n") {
		t.Errorf("%v: %s", err, out.String())
	}
}

// A dry run also reads the agent's records of its pods under Landlock: they contain texts of the
// owners of manifests.
func TestMergeDryRun_BeforeItReadsRecords_IsConfined(t *testing.T) {
	t.Parallel()
	program, err := node.Slim()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	socket, manifests, record := filepath.Join(dir, "cri.sock"), filepath.Join(dir, "m"), filepath.Join(dir, "root", "pods", "u", "record.json")
	stop, err := critest.New().Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	if err := errors.Join(os.Mkdir(manifests, 0o755), os.MkdirAll(filepath.Dir(record), 0o700), unix.Mkfifo(record, 0o600)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "merge", "--dry-run", "--against", "runtime", "-f", manifests, "--node-name", "n",
		"--root-dir", filepath.Join(dir, "root"), "--runtime-endpoint", "unix://"+socket)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }()
	var fifo *os.File // opens when merge reads it, and then blocks merge
	err = wait.Try(func() (err error) {
		fifo, err = os.OpenFile(record, os.O_WRONLY|unix.O_NONBLOCK, 0)
		return err
	})
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		t.Fatalf("%v: %s", err, out.String())
	}
	if err := isConfined(cmd.Process.Pid); err != nil {
		t.Error(err)
	}
	fifo.Close()
	if err := cmd.Wait(); err != nil || !strings.Contains(out.String(), "some of what the agent kept cannot be read") {
		t.Errorf("%v: %s", err, out.String())
	}
}

// isConfined returns an error that names a thread that has not given up its rights.
func isConfined(pid int) error {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(tasks) == 0 {
		return fmt.Errorf("process %d has no threads: %v", pid, err)
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
}
