package cmd

import (
	"os"
	"path/filepath"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/nodectl/nodectl/pkg/cri/critest"
)

// scriptRuntime serves an in-memory container runtime on a socket, and names a
// cgroup for its pods.
func scriptRuntime(ts *testscript.TestScript, _ bool, _ []string) {
	dir, err := os.MkdirTemp("", "cri") // a socket's path may have 107 bytes
	ts.Check(err)
	ts.Defer(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	stop, err := critest.New().Listen(socket)
	ts.Check(err)
	ts.Defer(stop)
	ts.Setenv("RUNTIME", "unix://"+socket)
	root := "/nodectl-" + filepath.Base(dir) // scripts run side by side, and pods have real cgroups
	ts.Setenv("NODECTL_CGROUP_ROOT", root)
	ts.Setenv("NODECTL_EVICTION_HARD", "memory.available<1Mi") // whatever fills this machine's disk
	ts.Defer(func() {
		for _, of := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
			dirs, err := filepath.Glob(of + root)
			ts.Check(err)
			for _, dir := range dirs {
				removeCgroups(dir)
			}
		}
	})
}

// removeCgroups removes a cgroup and those in it; this runtime runs no processes.
func removeCgroups(dir string) {
	children, _ := os.ReadDir(dir)
	for _, e := range children {
		if e.IsDir() {
			removeCgroups(filepath.Join(dir, e.Name()))
		}
	}
	_ = os.Remove(dir)
}
