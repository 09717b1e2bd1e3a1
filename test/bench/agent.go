package main

import (
	"bufio"
	"bytes"
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

	"github.com/nodectl/nodectl/test/node"
)

// agentDirs are the directories of one agent: where its manifests are put
// together, where it looks for them, and its own.
type agentDirs struct {
	staging, manifests, root string
}

// newDirs makes directories that no agent used yet.
func (b *bench) newDirs(name string) (agentDirs, error) {
	d := agentDirs{
		staging:   filepath.Join(b.scratch, name, "staging"),
		manifests: filepath.Join(b.scratch, name, "manifests"),
		root:      filepath.Join(b.scratch, name, "root"),
	}
	for _, dir := range []string{d.staging, d.manifests} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return d, err
		}
	}
	return d, nil
}

// manifest is the pod that both arms start.
func manifest(name string, emptyDir bool) string {
	text := `apiVersion: v1
kind: Pod
metadata:
  name: ` + name + `
  namespace: ` + namespace + `
spec:
  terminationGracePeriodSeconds: 5
  containers:
  - name: ` + container + `
    image: ` + node.Stamp + `
    args: [forever]
`
	if emptyDir {
		text += `    volumeMounts: [{name: data, mountPath: /data}]
  volumes: [{name: data, emptyDir: {}}]
`
	}
	return text
}

// drop puts a manifest into the directory as an editor or a deployment tool
// does, and returns the moment before it appeared.
func (d agentDirs) drop(name string, emptyDir bool) (time.Time, error) {
	staged := filepath.Join(d.staging, name+".yaml")
	if err := os.WriteFile(staged, []byte(manifest(name, emptyDir)), 0o600); err != nil {
		return time.Time{}, err
	}
	t := time.Now()
	return t, os.Rename(staged, filepath.Join(d.manifests, name+".yaml"))
}

func (d agentDirs) remove(name string) error {
	return os.Remove(filepath.Join(d.manifests, name+".yaml"))
}

// args are a command of nodectl and the flags that keep it on this node.
func (b *bench) args(d agentDirs, endpoint string, command ...string) []string {
	return append(command,
		"--root-dir", d.root, "--runtime-endpoint", endpoint, "--pod-logs-dir", b.node.LogsDir,
		"--cgroup-root", b.node.CgroupParent, "--node-name", nodeName)
}

// command is nodectl, told nothing by this process's environment.
func (b *bench) command(args ...string) *exec.Cmd {
	cmd := exec.Command(b.binary, args...)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "NODECTL_") && !strings.HasPrefix(v, "CONTAINER_RUNTIME_ENDPOINT=") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	// A terminal's SIGINT is for the bench, which then ends the agent; and no
	// agent outlives a bench that was killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	return cmd
}

// nodectl runs a command to its end and returns what it printed and the CPU time
// it took.
func (b *bench) nodectl(ctx context.Context, args ...string) (printed []byte, cpu time.Duration, err error) {
	cmd := b.command(args...)
	var out, conversation bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &conversation
	if err := cmd.Start(); err != nil {
		return nil, 0, err
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	defer stop()
	if err := cmd.Wait(); err != nil {
		return nil, 0, fmt.Errorf("nodectl %s: %w\n%s", args[0], err, tail(conversation.String()))
	}
	return out.Bytes(), cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), nil
}

// line is one line of an agent's log and when it was read.
type line struct {
	text string
	at   time.Time
}

// agent is a running serve.
type agent struct {
	cmd  *exec.Cmd
	exec time.Time // the moment before it was started
	log  io.WriteCloser
	wg   sync.WaitGroup

	mu    sync.Mutex
	lines []line
	ended bool
	newer chan struct{} // closed and replaced when there is more
}

// serve starts the agent. The caller stops it.
func (b *bench) serve(d agentDirs, endpoint string) (*agent, error) {
	args := b.args(d, endpoint, "serve", "-f", d.manifests, "--log-level", b.logLevel)
	a := &agent{cmd: b.command(args...), newer: make(chan struct{})}
	if b.keepLogs != "" {
		b.agents++
		f, err := os.Create(filepath.Join(b.keepLogs, fmt.Sprintf("serve-%d.log", b.agents)))
		if err != nil {
			return nil, err
		}
		a.log = f
	}
	out, err := a.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	a.exec = time.Now()
	if err := a.cmd.Start(); err != nil {
		return nil, err
	}
	a.wg.Go(func() { a.read(out) })
	return a, nil
}

func (a *agent) read(out io.Reader) {
	s := bufio.NewScanner(out)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		l := line{s.Text(), time.Now()}
		a.add(func() { a.lines = append(a.lines, l) })
		if a.log != nil {
			fmt.Fprintln(a.log, l.text)
		}
	}
	a.add(func() { a.ended = true })
	if a.log != nil {
		a.log.Close()
	}
}

func (a *agent) add(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
	close(a.newer)
	a.newer = make(chan struct{})
}

// await returns the first log line that holds all the words.
func (a *agent) await(ctx context.Context, words ...string) (line, error) {
	const limit = 30 * time.Second
	late := time.After(limit)
	for i := 0; ; {
		a.mu.Lock()
		lines, ended, newer := a.lines, a.ended, a.newer
		a.mu.Unlock()
		for ; i < len(lines); i++ {
			if containsAll(lines[i].text, words) {
				return lines[i], nil
			}
		}
		if ended {
			return line{}, fmt.Errorf("nodectl serve ended before it said %q:\n%s", words, a.tail())
		}
		select {
		case <-newer:
		case <-late:
			return line{}, fmt.Errorf("nodectl serve did not say %q within %s:\n%s", words, limit, a.tail())
		case <-ctx.Done():
			return line{}, ctx.Err()
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

func (a *agent) tail() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var b strings.Builder
	for _, l := range a.lines {
		b.WriteString(l.text + "\n")
	}
	return tail(b.String())
}

func (a *agent) pid() int { return a.cmd.Process.Pid }

// end signals the agent and returns when it is gone. One that does not leave
// within ten seconds is killed, and that is an error.
func (a *agent) end(s syscall.Signal) error {
	_ = a.cmd.Process.Signal(s)
	timer := time.AfterFunc(10*time.Second, func() { _ = a.cmd.Process.Kill() })
	a.wg.Wait()
	err := a.cmd.Wait()
	if !timer.Stop() {
		return errors.New("nodectl serve did not leave within 10s")
	}
	if s == syscall.SIGKILL {
		return nil
	}
	if err != nil {
		return fmt.Errorf("nodectl serve: %w\n%s", err, a.tail())
	}
	return nil
}

// settle returns when the agent has found the runtime and has nothing to do.
func (b *bench) settle(ctx context.Context, a *agent) error {
	if _, err := a.await(ctx, "Container runtime is ready"); err != nil {
		return err
	}
	return pause(ctx, time.Second)
}

// tail returns the last lines of a text.
func tail(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-15):], "\n")
}
