package record_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodectl/nodectl/pkg/record"
)

// holdVar is the environment variable with the root that a child process locks.
const holdVar = "RECORD_TEST_HOLD"

func TestMain(m *testing.M) {
	if root := os.Getenv(holdVar); root != "" {
		if _, err := record.Lock(root); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("held")
		io.Copy(io.Discard, os.Stdin) // until the parent ends or kills it
		return
	}
	os.Exit(m.Run())
}

// hold starts a process that holds root.
func hold(t *testing.T, root string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(exe)
	c.Env = append(os.Environ(), holdVar+"="+root)
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	line, _ := bufio.NewReader(out).ReadString('\n')
	if line != "held\n" {
		t.Fatalf("the holder says %q", line)
	}
	return c
}

// Shows: F15
func TestF15_SecondAgentGetsTheHoldersPID(t *testing.T) {
	t.Parallel()
	root := filepath.Join(t.TempDir(), "root")
	holder := hold(t, root)
	_, err := record.Lock(root)
	var locked *record.LockedError
	if !errors.As(err, &locked) || locked.PID != holder.Process.Pid || locked.Root != root {
		t.Fatalf("got %v, want that process %d holds %s", err, holder.Process.Pid, root)
	}
	if want := fmt.Sprintf("process %d", holder.Process.Pid); !strings.Contains(err.Error(), want) {
		t.Errorf("it says %q, want %q in it", err, want)
	}
	// After kill -9 the root is not locked.
	holder.Process.Kill()
	holder.Wait()
	unlock, err := record.Lock(root)
	if err != nil {
		t.Fatal(err)
	}
	if text, _ := os.ReadFile(filepath.Join(root, "lock")); string(text) != fmt.Sprintf("%d\n", os.Getpid()) {
		t.Errorf("the lock holds %q", text)
	}
	if _, err := record.Lock(root); !errors.As(err, &locked) || locked.PID != os.Getpid() {
		t.Errorf("in one process: %v", err)
	}
	unlock()
	unlock, err = record.Lock(root)
	if err != nil {
		t.Fatalf("after unlock: %v", err)
	}
	unlock()
	if info, err := os.Stat(filepath.Join(root, "lock")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

// Shows: F15
func TestF15_PIDOfTheDeadIsNotNamed(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	unlock, err := record.Lock(root)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	for _, text := range []string{"", "x", "-1", "4194305\n", strings.Repeat("9", 100)} { // PIDs end at 2^22
		if err := os.WriteFile(filepath.Join(root, "lock"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		var locked *record.LockedError
		if _, err := record.Lock(root); !errors.As(err, &locked) || locked.PID != 0 {
			t.Errorf("%q: got %v, want the lock without a PID", text, err)
		}
	}
}

// Shows: F12
func TestF12_LockOnAFullDisk(t *testing.T) {
	root := smallDisk(t)
	unlock, err := record.Lock(root)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
	fill(t, root)
	unlock, err = record.Lock(root)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	var locked *record.LockedError
	if _, err := record.Lock(root); !errors.As(err, &locked) || locked.PID != os.Getpid() {
		t.Errorf("got %v, want that this process holds it", err)
	}
}
