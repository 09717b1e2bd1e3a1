package cmd

import (
	"os"
	"path/filepath"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/nodectl/nodectl/pkg/cri/critest"
)

// scriptRuntime serves an in-memory container runtime on a socket.
func scriptRuntime(ts *testscript.TestScript, _ bool, _ []string) {
	dir, err := os.MkdirTemp("", "cri") // a socket's path may have 107 bytes
	ts.Check(err)
	ts.Defer(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	stop, err := critest.New().Listen(socket)
	ts.Check(err)
	ts.Defer(stop)
	ts.Setenv("RUNTIME", "unix://"+socket)
}
