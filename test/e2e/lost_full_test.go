//go:build full

package e2e

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/test/criproxy"
	"github.com/nodectl/nodectl/test/node"
)

// TestF27_LostContainersComeBack: a pod that loses a process, a container or its sandbox, in
// any way, comes back.
//
// Shows: F27
func TestF27_LostContainersComeBack(t *testing.T) {
	parallelStage(t).lose("process", "stop", "remove", "sandbox", "all")
}

// TestF22_OneStartHangs: a runtime that does not answer one call delays only the pod of that
// call.
//
// Shows: F22
func TestF22_OneStartHangs(t *testing.T) {
	s := parallelStage(t)
	release := make(chan struct{}) // closed by the test
	var first atomic.Bool
	s.through(criproxy.Hooks{After: func(c criproxy.Call, _ error) {
		if c.Method == "RunPodSandbox" && first.CompareAndSwap(false, true) {
			<-release
		}
	}})
	free := sync.OnceFunc(func() { close(release) })
	t.Cleanup(free)
	a := s.serve()
	a.await("Status of every pod is known")
	s.write("stuck.yaml", simple("stuck"))
	s.eventually(func() error {
		if !first.Load() {
			return errors.New("the start was not asked for")
		}
		return nil
	})
	for i := range 4 {
		s.write(fmt.Sprint("p", i, ".yaml"), simple(fmt.Sprint("p", i)))
	}
	for i := range 4 {
		s.awaitReady(fmt.Sprint("p", i), true)
	}
	s.remove("p0.yaml")
	s.awaitGone("p0")
	if n := len(s.containers("stuck")); n != 0 {
		t.Errorf("%d containers of the pod whose sandbox is not known", n)
	}
	free()
	s.awaitReady("stuck", true)
	s.awaitBegun(5)
}

// TestF5_AgentStopped: an agent that was stopped while a container exited and manifests were
// added and removed catches up when it resumes.
//
// Shows: F5
func TestF5_AgentStopped(t *testing.T) {
	s := parallelStage(t)
	s.write("web.yaml", manifest("web", []string{container("main", "append, /x/web, forever", scratchMount)}, s.scratchVolume()))
	a := s.serve()
	was := s.awaitRunning("web", "main")["main"]
	kept := s.keep()
	s.write("go.yaml", simple("go"))
	s.awaitReady("web", true)
	s.awaitRunning("go", "main")
	if err := a.cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	node.AwaitStill(t, a.cmd.Process.Pid)
	if err := unix.Kill(was.pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.awaitEnded("web", "main", 1)
	s.write("new.yaml", simple("new"))
	s.remove("go.yaml")
	if err := a.cmd.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	s.awaitRunning("new", "main")
	s.awaitGone("go")
	s.awaitStamps("web", 2)
	s.untouched("keep", kept)
}
