package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/wait"
)

// Patience is the time limit for a program's start or exit.
const Patience = wait.Limit

// Process is one program that can be ended and started again, with the same
// arguments. It ends with its test, and with the test's process.
type Process struct {
	name  string
	path  string
	args  []string
	env   []string                    // beside HOME and PATH
	log   string                      // file that receives its output
	ready func(context.Context) error // nil once the program answers

	cmd  *exec.Cmd
	done chan struct{} // capacity 0; closed when the program has ended
	wait sync.WaitGroup
}

// newProcess describes a program of bin/cluster; start starts it.
func newProcess(t testing.TB, name, dir string, args []string, ready func(context.Context) error) *Process {
	t.Helper()
	p := NewProcess(t, program(t, name), dir, args, ready)
	p.SetEnv(seldomCollects)
	return p
}

// seldomCollects makes a program collect its garbage a quarter as often: kube-apiserver's start
// then takes a fifth less CPU.
const seldomCollects = "GOGC=400"

// NewProcess describes a program by its path; Start starts it. Its output goes to a file in
// dir. ready returns nil when it answers.
func NewProcess(t testing.TB, path, dir string, args []string, ready func(context.Context) error) *Process {
	t.Helper()
	name := filepath.Base(path)
	p := &Process{
		name: name, path: path, args: args, ready: ready,
		log: filepath.Join(dir, name+".log"),
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s: the log ends with:\n%s", p.log, tail(p.log, 20))
		}
		p.end(syscall.SIGKILL)
	})
	return p
}

// SetEnv gives the program variables ("name=value") from its next start on.
func (p *Process) SetEnv(env ...string) { p.env = env }

// Start starts the program and returns when it answers.
func (p *Process) Start(t testing.TB) {
	t.Helper()
	if err := p.start(t.Context()); err != nil {
		t.Fatalf("%v; its log ends with:\n%s", err, tail(p.log, 10))
	}
}

func (p *Process) start(ctx context.Context) error {
	if err := p.launch(); err != nil {
		return err
	}
	return p.await(ctx)
}

// launch starts the program and does not wait for it.
func (p *Process) launch() error {
	if p.Runs() {
		return fmt.Errorf("%s runs already", p.name)
	}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	p.cmd = exec.Command(p.path, p.args...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.Env = append([]string{"HOME=/nonexistent", "PATH=" + os.Getenv("PATH")}, p.env...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	cmd, done := p.cmd, make(chan struct{})
	p.done = done
	p.wait.Go(func() {
		_ = cmd.Wait() // its log says how it ended
		close(done)
	})
	return nil
}

// await returns when the program answers; it fails when it has ended instead.
func (p *Process) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	for {
		err := p.ready(ctx)
		if err == nil && p.Runs() { // another process may answer at its address
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s ended: %s", p.name, p.cmd.ProcessState)
		case <-ctx.Done():
			return fmt.Errorf("%s does not answer: %w", p.name, err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// Runs reports whether the program runs.
func (p *Process) Runs() bool {
	if p.done == nil {
		return false
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// PID returns the program's process; 0 when it does not run.
func (p *Process) PID() int {
	if !p.Runs() {
		return 0
	}
	return p.cmd.Process.Pid
}

// Log returns the output of the program so far.
func (p *Process) Log(t testing.TB) string {
	t.Helper()
	text, err := os.ReadFile(p.log)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Kill ends the program as kill -9 does, and returns when it is gone.
func (p *Process) Kill(t testing.TB) { t.Helper(); p.must(t, syscall.SIGKILL) }

// Terminate sends SIGTERM to the program, and returns when it has exited.
func (p *Process) Terminate(t testing.TB) { t.Helper(); p.must(t, syscall.SIGTERM) }

// Restart kills the program and starts it again.
func (p *Process) Restart(t testing.TB) { t.Helper(); p.Kill(t); p.Start(t) }

// Pause stops the program: its connections stay open and nothing answers.
func (p *Process) Pause(t testing.TB) {
	t.Helper()
	p.signal(t, syscall.SIGSTOP)
	node.AwaitStill(t, p.cmd.Process.Pid)
}

// Resume continues the program after Pause.
func (p *Process) Resume(t testing.TB) { t.Helper(); p.signal(t, syscall.SIGCONT) }

func (p *Process) must(t testing.TB, s syscall.Signal) {
	t.Helper()
	if !p.Runs() {
		t.Fatalf("%s does not run", p.name)
	}
	if !p.end(s) {
		t.Fatalf("%s does not end; its log ends with:\n%s", p.name, tail(p.log, 10))
	}
}

func (p *Process) signal(t testing.TB, s syscall.Signal) {
	t.Helper()
	if !p.Runs() {
		t.Fatalf("%s does not run", p.name)
	}
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// end ends the program and reports whether it exited without SIGKILL.
func (p *Process) end(s syscall.Signal) bool {
	if p.done == nil {
		return true
	}
	_ = p.cmd.Process.Signal(s) // fails if it has exited already
	ended := true
	select {
	case <-p.done:
	case <-time.After(Patience):
		ended = false
		_ = p.cmd.Process.Kill()
	}
	p.wait.Wait()
	return ended
}

// program returns the path of a program of bin/cluster, or of NODECTL_CLUSTER.
func program(t testing.TB, name string) string {
	t.Helper()
	dir := os.Getenv("NODECTL_CLUSTER")
	if dir == "" {
		dir = filepath.Join(repository(), "bin/cluster")
	}
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("a test on a real %s needs %s: run make test-cluster-bin", name, path)
	}
	return path
}

// repository returns the repository's directory.
func repository() string {
	_, file, _, _ := runtime.Caller(0)
	dir := filepath.Dir(filepath.Dir(filepath.Dir(file)))
	if filepath.IsAbs(dir) {
		return dir
	}
	// Built with -trimpath: tests run in their package's directory.
	for dir, _ = os.Getwd(); dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "hack/cluster")); err == nil {
			return dir
		}
	}
	return "."
}

// taken are the names that keep other tests off this process's ports.
var taken struct {
	sync.Mutex
	names []net.Listener
}

// freeAddress returns a free loopback address that no other test gets while this process
// lives. The kernel does not assign its port by itself, unless its range covers all ports, so
// the port stays free while a program restarts.
func freeAddress() (string, error) {
	for range 200 {
		port := strconv.Itoa(node.RandomPort())
		name, err := net.Listen("unix", "@nodectl-test-port-"+port) // it goes with the process
		if err != nil {
			continue
		}
		address := net.JoinHostPort("127.0.0.1", port)
		l, err := net.Listen("tcp", address)
		if err != nil {
			_ = name.Close() // it was never used
			continue
		}
		taken.Lock()
		taken.names = append(taken.names, name)
		taken.Unlock()
		return address, l.Close()
	}
	return "", errors.New("no port is free")
}

// address is freeAddress for tests.
func address(t testing.TB) string {
	t.Helper()
	a, err := freeAddress()
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// tail returns the last lines of a file.
func tail(file string, lines int) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(string(bytes.TrimSpace(text)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
