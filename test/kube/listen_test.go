package kube

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodectl/nodectl/test/cluster"
)

// TestD1_ListensNowhere: without an API server and a flag for it, a node that has just
// started listens on no TCP port, and on one socket that only its owner can use.
//
// Shows: D1
func TestD1_ListensNowhere(t *testing.T) {
	t.Parallel()
	of := shared(t)
	root, static := filepath.Join(t.TempDir(), "root"), filepath.Join(t.TempDir(), "manifests")
	if err := os.Mkdir(static, 0o700); err != nil {
		t.Fatal(err)
	}
	w := &world{TB: t, socket: filepath.Join(root, "nodectl.sock")}
	t.Cleanup(func() { of.machine.RemoveTiers("alone") })
	agent := cluster.NewProcess(t, of.program, t.TempDir(), []string{
		"serve", "-f", static, "--root-dir", root, "--runtime-endpoint", of.machine.Endpoint,
		"--pod-logs-dir", filepath.Join(root, "logs"), "--cgroup-root", of.machine.CgroupParent + "/alone", "--node-name", "alone",
		"--eviction-hard", "memory.available<1Mi", // a disk that others fill plays no part
	}, w.serves)
	agent.Start(t)
	t.Cleanup(func() { agent.Terminate(t) })
	listening := listeners(t, agent.PID())
	if len(listening) > 0 {
		t.Errorf("it listens at %v", listening)
	}
	info, err := os.Stat(w.socket)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v %v", info, err)
	}
}

// listeners returns the TCP and UDP addresses at which a process listens, from the kernel.
func listeners(t *testing.T, pid int) (all []string) {
	t.Helper()
	mine := map[string]bool{}
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil || len(fds) == 0 {
		t.Fatalf("the descriptors of %d: %v", pid, err)
	}
	for _, fd := range fds {
		to, err := os.Readlink(fd)
		if inode, ok := strings.CutPrefix(to, "socket:["); err == nil && ok {
			mine[strings.TrimSuffix(inode, "]")] = true
		}
	}
	if len(mine) == 0 {
		t.Fatal("the process has no socket at all")
	}
	for _, kind := range []string{"tcp", "tcp6", "udp", "udp6"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, kind))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line)
			if len(f) > 9 && mine[f[9]] && (f[3] == "0A" || strings.HasPrefix(kind, "udp") && f[3] == "07") {
				all = append(all, kind+" "+f[1])
			}
		}
	}
	return all
}
