// Package e2e runs the nodectl binary on a real containerd and checks the result without
// asking nodectl: by CRI, in /proc, in the cgroup trees, in the mounts and in the log files.
//
// All scenarios share one containerd and run in parallel, each with its own agent, root
// directory, manifests and node name; those that end containerd have their own.
//
// When a scenario ends, everything that it started is gone, and no container ever ran twice
// at once (I1).
package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/wait"
)

// The shared state of this binary's tests; TestMain makes it.
var (
	nodectl string     // the program
	shared  *node.Node // the containerd of all scenarios that do not end it
	lives   *witness   // when the containers of shared ran
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if len(os.Args) > 2 && os.Args[1] == boundedArg {
		return fail(runBounded(os.Args[2:]))
	}
	if len(os.Args) > 3 && os.Args[1] == cagedArg {
		return fail(runCaged(os.Args[2], os.Args[3:]))
	}
	if len(os.Args) > 3 && os.Args[1] == pluginArg {
		return fail(runPlugin(os.Args[2], os.Args[3]))
	}
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		// Scenarios mostly wait, but two other suites run beside them.
		if err := f.Value.Set("4"); err != nil {
			return fail(err)
		}
	}
	dir, err := os.MkdirTemp("", "nodectl-e2e-")
	if err != nil {
		return fail(err)
	}
	defer os.RemoveAll(dir)
	if err := program(dir); err != nil {
		return fail(err)
	}
	if shared, err = node.Start(context.Background()); err != nil {
		return fail(err)
	}
	if err := shared.PlainNetwork(context.Background()); err != nil {
		return fail(err, shared.Close())
	}
	if lives, err = observe(shared); err != nil {
		return fail(err, shared.Close())
	}
	code := m.Run()
	lives.close()
	var left node.Left
	err = wait.Try(func() error { // the runtime may remove things later than it reports
		if left = look(); !left.Empty() {
			return fmt.Errorf("the scenarios left something behind:\n%s", left)
		}
		return nil
	})
	if err != nil {
		code = fail(err)
		for _, id := range slices.Compact(slices.Sorted(slices.Values(regexp.MustCompile("[0-9a-f]{64}").FindAllString(left.String(), -1)))) {
			fmt.Fprintf(os.Stderr, "%s: %s\n", id, lives.who(id))
		}
	}
	if err := shared.Close(); err != nil {
		code = fail(err)
	}
	return code
}

// look returns the remains of the scenarios on the shared node. --cgroup-root named its own cgroup:
// pods are below it.
func look() node.Left {
	left := shared.Look()
	if interrupted.Load() {
		removeEmptyGroups(left.Cgroups)
		lives.endStillborn(left)
		left = shared.Look()
	}
	left.Cgroups = slices.DeleteFunc(left.Cgroups, func(g string) bool { return strings.HasSuffix(g, shared.CgroupParent) })
	return left
}

// program copies bin/nodectl-slim to where other users can run it, too; NODECTL_E2E_BINARY
// names another program to test.
func program(dir string) error {
	if nodectl = os.Getenv("NODECTL_E2E_BINARY"); nodectl != "" {
		return nil
	}
	slim, err := node.Slim()
	if err != nil {
		return err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	from, err := os.Open(slim)
	if err != nil {
		return err
	}
	defer from.Close()
	nodectl = filepath.Join(dir, "nodectl")
	to, err := os.OpenFile(nodectl, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	return errors.Join(err, to.Close())
}

func fail(errs ...error) int {
	for _, err := range errs {
		if err != nil {
			fmt.Fprintln(os.Stderr, "e2e:", err)
		}
	}
	return 1
}
