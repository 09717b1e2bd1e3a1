//go:build full

package e2e

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// few runs a command with no more than 64 file descriptors.
func few(cmd *exec.Cmd) *exec.Cmd {
	cmd.Path, cmd.Args = "/bin/sh", append([]string{"sh", "-c", `ulimit -n 64 && exec "$@"`, "sh", cmd.Path}, cmd.Args[1:]...)
	return cmd
}

// serving is a pod whose probes are connections from the agent; one failed probe kills its
// container.
func serving(name string) string {
	probe := func(kind string) string {
		return kind + ": {httpGet: {path: /, port: 8080}, periodSeconds: 1, timeoutSeconds: 30, failureThreshold: 1}"
	}
	return manifest(name, []string{container("main", `serve, ":8080", forever`, probe("readinessProbe"),
		"startupProbe: {tcpSocket: {port: 8080}, periodSeconds: 1, failureThreshold: 60}", probe("livenessProbe"))})
}

// TestF10_ReadersLeaveDescriptors: with 64 file descriptors and more readers on its socket,
// an agent starts pods and probes them, and logs once that it disconnects readers. When those
// have left, it serves the next ones.
//
// Shows: F10
func TestF10_ReadersLeaveDescriptors(t *testing.T) {
	s := parallelStage(t)
	a := s.start(few(s.command("serve", "-f", s.manifests)))
	a.await("Serving the local socket")
	var crowd []net.Conn
	for i := range 100 {
		c := s.dial()
		if i%2 == 0 { // every other one makes no request
			_, _ = fmt.Fprint(c, "GET /v1/updates HTTP/1.1\r\nHost: nodectl\r\n\r\n") // the agent may have closed it
		}
		crowd = append(crowd, c)
	}
	was := make(map[string]map[string]running)
	for i := range 6 {
		name := fmt.Sprint("p", i)
		s.write(name+".yaml", serving(name))
		was[name] = nil
	}
	for name := range was {
		s.awaitReady(name, true)
		was[name] = s.awaitRunning(name, "main")
	}
	a.once("level=WARN", "Too many connections")
	for name, w := range was {
		s.untouched(name, w)
	}
	if said := a.linesWith("too many open files"); len(said) > 0 {
		t.Errorf("it had no descriptor for something: %s", said[0])
	}
	for _, c := range crowd {
		_ = c.Close()
	}
	s.eventually(func() error {
		if r := s.run("get", "sources"); r.code != 0 {
			return fmt.Errorf("get sources: %d %s", r.code, r.err)
		}
		return nil
	})
	s.invariants()
}

// TestF10_NoDescriptorLeft: an agent without a free descriptor logs that once and waits. It
// stops no container because a probe is impossible, and treats no source as empty. With a
// free descriptor, it catches up.
//
// Shows: F10
func TestF10_NoDescriptorLeft(t *testing.T) {
	s := parallelStage(t)
	a := s.start(few(s.command("serve", "-f", s.manifests, "--file-check-frequency", "1s")))
	s.write("web.yaml", serving("web"))
	s.awaitReady("web", true)
	web, kept := s.awaitRunning("web", "main"), s.keep()
	s.awaitReady("keep", true)
	limit := func(n uint64) {
		t.Helper()
		s.must(unix.Prlimit(a.cmd.Process.Pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: 64}, nil))
	}
	limit(3)
	s.write("late.yaml", simple("late"))
	for range 3 {
		s.dial() // they wait to be accepted
	}
	a.await("level=WARN", "Out of file descriptors", "limit=3")
	a.await("level=WARN", "Failed to read source", "too many open files")
	for _, kind := range []string{"liveness", "readiness"} {
		a.await("level=WARN", "Failed to run probe", "probe="+kind)
	}
	s.untouched("web", web)
	s.untouched("keep", kept)
	if st := s.status("web").Status; !ready(st) {
		t.Errorf("a probe that could not be made counted: %s", describe(st))
	}
	if s.status("late") != nil {
		t.Error("what could not be read is there")
	}
	limit(64)
	a.await("File descriptors are available again")
	s.awaitReady("late", true)
	if r := s.run("get", "sources"); r.code != 0 {
		t.Errorf("get sources: %d %s", r.code, r.err)
	}
	a.once("level=WARN", "Out of file descriptors")
	a.once("level=WARN", "Failed to read source", "too many open files")
	for _, kind := range []string{"liveness", "readiness"} {
		a.once("level=WARN", "Failed to run probe", "probe="+kind)
	}
	s.untouched("web", web)
	s.untouched("keep", kept)
	// The agent has leaked no descriptor.
	s.eventually(func() error {
		open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", a.cmd.Process.Pid))
		if err == nil && len(open) > 24 {
			err = fmt.Errorf("%d descriptors are open", len(open))
		}
		return err
	})
	s.invariants()
}
