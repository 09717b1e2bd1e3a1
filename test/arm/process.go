package arm

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Line is one line of an agent's log and when it was read.
type Line struct {
	Text string
	At   time.Time
}

// Process is a running agent.
type Process struct {
	Exec time.Time // the moment before it was started

	name string
	cmd  *exec.Cmd
	log  io.WriteCloser
	wg   sync.WaitGroup

	mu    sync.Mutex
	lines []Line
	ended bool
	newer chan struct{} // closed and replaced when there is more
}

// Command is a program in its own process group, without the agents' variables of this
// process's environment. It does not outlive the bench.
func Command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(program, args...)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "NODECTL_") && !strings.HasPrefix(v, "CONTAINER_RUNTIME_ENDPOINT=") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	// Other users of this machine's disk or memory have no effect.
	cmd.Env = append(cmd.Env, "NODECTL_EVICTION_HARD=memory.available<1Mi")
	// A terminal's SIGINT goes to the bench, which then ends the agent; and no agent outlives
	// a bench that was killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	return cmd
}

// StartProcess starts an agent, reads its log, and copies that to logFile if it is set. The
// caller ends it.
func StartProcess(name string, cmd *exec.Cmd, logFile string) (*Process, error) {
	p := &Process{name: name, cmd: cmd, newer: make(chan struct{})}
	if logFile != "" {
		if err := os.MkdirAll(filepath.Dir(logFile), 0o755); err != nil {
			return nil, err
		}
		f, err := os.Create(logFile)
		if err != nil {
			return nil, err
		}
		p.log = f
	}
	out, err := cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	p.Exec = time.Now()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p.wg.Go(func() { p.read(out) })
	return p, nil
}

func (p *Process) read(out io.Reader) {
	s := bufio.NewScanner(out)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		l := Line{s.Text(), time.Now()}
		p.add(func() { p.lines = append(p.lines, l) })
		if p.log != nil {
			fmt.Fprintln(p.log, l.Text)
		}
	}
	p.add(func() { p.ended = true })
	if p.log != nil {
		p.log.Close()
	}
}

func (p *Process) add(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	close(p.newer)
	p.newer = make(chan struct{})
}

// Await returns the first log line that contains all the words.
func (p *Process) Await(ctx context.Context, words ...string) (Line, error) {
	const limit = 30 * time.Second
	late := time.After(limit)
	for i := 0; ; {
		p.mu.Lock()
		lines, ended, newer := p.lines, p.ended, p.newer
		p.mu.Unlock()
		for ; i < len(lines); i++ {
			if containsAll(lines[i].Text, words) {
				return lines[i], nil
			}
		}
		if ended {
			return Line{}, fmt.Errorf("%s ended before it said %q:\n%s", p.name, words, p.Tail())
		}
		select {
		case <-newer:
		case <-late:
			return Line{}, fmt.Errorf("%s did not say %q within %s:\n%s", p.name, words, limit, p.Tail())
		case <-ctx.Done():
			return Line{}, ctx.Err()
		}
	}
}

func containsAll(s string, words []string) bool {
	for _, w := range words {
		if !strings.Contains(s, w) {
			return false
		}
	}
	return true
}

// Ended reports whether the process has closed its log: it has exited or is exiting.
func (p *Process) Ended() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ended
}

// Lines returns the lines of the log.
func (p *Process) Lines() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []string
	for _, l := range p.lines {
		all = append(all, l.Text)
	}
	return all
}

// Tail returns the last lines of the log.
func (p *Process) Tail() string { return Tail(strings.Join(p.Lines(), "\n")) }

// PID returns the process's ID.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// End signals the agent and returns when it has exited. It kills an agent that does not exit
// within ten seconds, and returns an error.
func (p *Process) End(s syscall.Signal) error {
	_ = p.cmd.Process.Signal(s)
	timer := time.AfterFunc(10*time.Second, func() { _ = p.cmd.Process.Kill() })
	p.wg.Wait()
	err := p.cmd.Wait()
	if !timer.Stop() {
		return fmt.Errorf("%s %w", p.name, errStays)
	}
	if s == syscall.SIGKILL {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", p.name, err, p.Tail())
	}
	return nil
}

var errStays = errors.New("did not leave within 10s")

// Tail returns the last lines of a text.
func Tail(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-15):], "\n")
}
