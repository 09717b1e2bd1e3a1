package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/test/criproxy"
	"github.com/nodectl/nodectl/test/wait"
)

// agent is one run of nodectl serve.
type agent struct {
	*stage
	cmd  *exec.Cmd
	read sync.WaitGroup // reading its log, then waiting for its exit
	done chan struct{}  // closed when it has ended
	err  error          // of waiting; to be read after done

	asked atomic.Bool // the scenario has asked it to end

	mu    sync.Mutex
	lines []string
}

// cgroupRoot is the cgroup above the stage's pods.
func (s *stage) cgroupRoot() string { return s.node.CgroupParent + "/" + s.name }

// command returns nodectl with the flags that keep it on this stage, without variables of
// this process's environment.
func (s *stage) command(args ...string) *exec.Cmd {
	s.Helper()
	if s.endpoint == "" {
		s.through(criproxy.Hooks{})
	}
	args = append(args, "--root-dir", s.root, "--runtime-endpoint", s.endpoint, "--pod-logs-dir", s.logs,
		"--cgroup-root", s.cgroupRoot(), "--node-name", s.name)
	if args[0] == "serve" && s.often {
		args = append(args, "--sync-frequency", "300ms")
	}
	cmd := exec.Command(nodectl, args...)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "NODECTL_") && !strings.HasPrefix(v, "CONTAINER_RUNTIME_ENDPOINT=") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	// The disk that all tests share must not be short for any of them.
	cmd.Env = append(cmd.Env, "NODECTL_EVICTION_HARD=memory.available<1Mi")
	// No agent outlives killed tests. The kernel sends the signal at the exit of the thread
	// that started it: no thread of this process may exit before.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// serve starts an agent for the stage's manifests. The end of the test ends it.
func (s *stage) serve(more ...string) *agent {
	s.Helper()
	return s.start(s.command(append([]string{"serve", "-f", s.manifests}, more...)...))
}

// start starts an agent by its command.
func (s *stage) start(cmd *exec.Cmd) *agent {
	s.Helper()
	a := &agent{stage: s, cmd: cmd, done: make(chan struct{})}
	s.agents = append(s.agents, a)
	out, err := cmd.StderrPipe()
	if err != nil {
		s.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.Fatal(err)
	}
	a.read.Go(func() {
		a.listen(out)
		a.err = cmd.Wait()
		close(a.done)
	})
	s.Cleanup(func() {
		s.judge()
		select {
		case <-a.done:
			if !a.asked.Load() {
				s.Errorf("the agent %d had ended by itself: %v", cmd.Process.Pid, a.err)
			}
		default:
		}
		a.settle() // it may have ended long ago
		end := syscall.SIGTERM
		if s.Failed() {
			end = syscall.SIGQUIT // and it logs the stacks of its goroutines
		}
		_ = cmd.Process.Signal(end)
		select {
		case <-a.done:
		case <-time.After(wait.Limit):
			s.Errorf("the agent %d did not leave within %s", cmd.Process.Pid, wait.Limit)
			_ = cmd.Process.Kill()
		}
		a.read.Wait()
		if s.Failed() {
			s.Logf("the agent %d of %s said:\n%s", cmd.Process.Pid, s.name, a.said())
		}
	})
	return a
}

func (a *agent) listen(out io.Reader) {
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		a.mu.Lock()
		a.lines = append(a.lines, lines.Text())
		a.mu.Unlock()
	}
}

func (a *agent) said() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return strings.Join(a.lines, "\n")
}

// dropStacks removes the stacks that SIGQUIT made the agent print, and keeps its log.
func (a *agent) dropStacks() {
	a.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	n := slices.Index(a.lines, "SIGQUIT: quit")
	if n < 0 {
		a.Fatalf("the agent printed no stacks")
	}
	a.lines = a.lines[:n]
}

// linesWith returns the lines of the agent's log that contain all the words.
func (a *agent) linesWith(words ...string) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var found []string
	for _, l := range a.lines {
		if holds(l, words) {
			found = append(found, l)
		}
	}
	return found
}

func holds(line string, words []string) bool {
	for _, w := range words {
		if !strings.Contains(line, w) {
			return false
		}
	}
	return true
}

// await returns the first line that contains all the words as soon as it is there.
func (a *agent) await(words ...string) string {
	a.Helper()
	var line string
	a.eventually(func() error {
		found := a.linesWith(words...)
		if len(found) == 0 {
			return errors.New("the agent did not say " + strings.Join(words, " … "))
		}
		line = found[0]
		return nil
	})
	return line
}

// once is await, and fails if the agent logs it more than once.
func (a *agent) once(words ...string) {
	a.Helper()
	a.await(words...)
	if found := a.linesWith(words...); len(found) != 1 {
		a.Errorf("said %d times instead of once:\n%s", len(found), strings.Join(found, "\n"))
	}
}

// settle returns when no call of the agent that changes the runtime is under way. An
// interrupted call leaves things behind that no later call finds.
func (a *agent) settle() {
	if a.front == nil {
		return
	}
	if err := wait.Try(a.front.Idle); err != nil {
		a.Error(err)
	}
}

// kill ends the agent as kill -9 does, between two calls.
func (a *agent) kill() {
	a.Helper()
	a.settle()
	a.killNow()
}

// killNow is kill at any moment.
func (a *agent) killNow() {
	a.Helper()
	a.asked.Store(true)
	if err := a.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		a.Fatal(err)
	}
	<-a.done
}

// leave sends SIGTERM to the agent between two calls, and fails unless it exits with code 0.
func (a *agent) leave() {
	a.Helper()
	a.settle()
	a.leaveNow()
}

// leaveNow is leave at any moment.
func (a *agent) leaveNow() {
	a.Helper()
	a.asked.Store(true)
	if err := a.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		a.Fatal(err)
	}
	wait.Receive(a.T, "the agent's end", a.done)
	if a.err != nil {
		a.Errorf("the agent left with %v", a.err)
	}
}

// exit returns the exit code of an agent that ends by itself.
func (a *agent) exit() int {
	a.Helper()
	a.asked.Store(true)
	wait.Receive(a.T, "the agent's end", a.done)
	return a.cmd.ProcessState.ExitCode()
}

// boundedArg makes this test binary run another program: see bounded.
const boundedArg = "without-dac-override"

// bounded returns the command as run by a root without the capability to read every file, as
// a service with a restricted set of capabilities.
func bounded(cmd *exec.Cmd) *exec.Cmd {
	cmd.Args = append([]string{os.Args[0], boundedArg, cmd.Path}, cmd.Args[1:]...)
	cmd.Path = "/proc/self/exe"
	return cmd
}

// runBounded executes the program args name, with fewer capabilities.
func runBounded(args []string) error {
	runtime.LockOSThread() // capabilities are the thread's
	for _, c := range []uintptr{unix.CAP_DAC_OVERRIDE, unix.CAP_DAC_READ_SEARCH} {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	return fmt.Errorf("%s: %w", args[0], unix.Exec(args[0], args, os.Environ()))
}
