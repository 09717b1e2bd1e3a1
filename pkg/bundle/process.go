package bundle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/pkg/atomicfile"
)

// launch starts containerd independent of the agent, and waits until it answers.
func (r *Runtime) launch(ctx context.Context, bin string) (process, error) {
	if err := r.recordLaunch(); err != nil {
		return process{}, fmt.Errorf("record the launch of containerd: %w", err)
	}
	log, err := os.OpenFile(r.LogFile(), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return process{}, err
	}
	defer log.Close()
	from, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return process{}, err
	}

	var p process
	if reason := r.ownUnit(); reason == nil {
		p, err = r.startUnit(ctx, bin, from)
	} else {
		p, err = r.startChild(bin, log, reason)
	}
	if err != nil {
		return process{}, fmt.Errorf("start containerd: %w", err)
	}
	ended := p.ended
	if p.pid == r.child {
		ended = r.reap
	}
	if err := r.answer(ctx, ended, from); err != nil {
		return process{}, fmt.Errorf("the bundled containerd does not start: %w", err)
	}
	return p, nil
}

// boundLog sets the log aside if it is too long: it copies and truncates it, because a running
// containerd appends to the file that it has open. Lines that it writes meanwhile are lost. A log
// that cannot be copied, as on a full disk, is truncated all the same.
func (r *Runtime) boundLog() {
	log, err := os.OpenFile(r.LogFile(), os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return // there is none
	}
	defer log.Close()
	st, err := log.Stat()
	if err != nil || st.Size() <= logLimit {
		return
	}
	last := io.NewSectionReader(log, st.Size()-logLimit, logLimit)
	err = atomicfile.WriteBy(r.LogFile()+".1", atomicfile.Options{Temp: ".tmp"}, func(to io.Writer) error {
		_, err := io.Copy(to, last)
		return err
	})
	if err := errors.Join(err, log.Truncate(0)); err != nil {
		r.log.Warn("Failed to set the log of the container runtime aside", "file", r.LogFile(), "error", err)
	}
}

// startChild starts containerd from this process. Containers inherit this process's
// confinement, so it fails if there is any; reason says why systemd could not start
// containerd.
func (r *Runtime) startChild(bin string, log *os.File, reason error) (process, error) {
	if !errors.Is(reason, errNoSystemd) {
		if what := confinement("/proc"); what != "" {
			return process{}, fmt.Errorf("containers would inherit this process's %s, and systemd cannot start containerd: %w", what, reason)
		}
		r.log.Warn("Starting container runtime without a unit of its own", "error", reason)
	}
	cmd := exec.Command(filepath.Join(bin, "containerd"), r.arguments()...)
	cmd.Dir = "/"
	cmd.Env = environment(bin)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no signals of a terminal
	if err := cmd.Start(); err != nil {
		return process{}, err
	}
	r.child = cmd.Process.Pid // reap waits for it
	r.leaveUnit(r.child)
	return process{pid: r.child, handle: cmd.Process}, nil
}

// arguments returns containerd's arguments.
func (r *Runtime) arguments() []string {
	return []string{"--config", r.configFile(), "--log-level", "warn"}
}

// environment is the part of our environment for containerd, its shims and its plugins:
// PATH, and the proxies to reach a registry.
func environment(bin string) []string {
	env := []string{"PATH=" + bin + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// answer waits until containerd answers CRI. from is the offset of its log; if it has ended
// instead, the error is its last log line.
func (r *Runtime) answer(ctx context.Context, ended func() bool, from int64) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startLimit, fmt.Errorf("no answer on %s for %s", r.socket(), startLimit))
	defer cancel()
	c, err := dial(r.Endpoint())
	if err != nil {
		return err
	}
	defer c.Close()
	for {
		// gRPC does not retry a refused connection for a second, so the socket is checked
		// first.
		if listens(r.socket()) {
			if _, err := c.version(ctx); err == nil {
				return nil
			}
		}
		if ended() {
			return errors.New(lastLogMessage(r.LogFile(), from))
		}
		if err := pause(ctx, startPoll); err != nil {
			return err
		}
	}
}

// reap collects the exited containerd that this process started, and reports whether there
// was one.
func (r *Runtime) reap() bool {
	if r.child == 0 {
		return false
	}
	pid, err := unix.Wait4(r.child, nil, unix.WNOHANG, nil)
	if pid == r.child || errors.Is(err, unix.ECHILD) {
		r.child = 0
		return true
	}
	return false
}

// lastLogMessage returns the last line in containerd's log that says why it ended.
func lastLogMessage(name string, from int64) string {
	const enough = 64 << 10
	f, err := os.Open(name)
	if err != nil {
		return "it ended at once"
	}
	defer f.Close()
	if end, err := f.Seek(0, io.SeekEnd); err == nil && end-from > enough {
		from = end - enough
	}
	text, _ := io.ReadAll(io.NewSectionReader(f, from, enough))
	words := "it ended without a message in its log"
	for line := range bytes.Lines(text) {
		switch s := strings.TrimSpace(string(line)); {
		case s == "":
		case strings.HasPrefix(s, "time="):
			level, msg, cause := logfmt(s, "level"), logfmt(s, "msg"), logfmt(s, "error")
			if level != "error" && level != "fatal" && level != "panic" {
				continue
			}
			if cause != "" {
				msg += ": " + cause
			}
			words = msg
		default:
			words = strings.TrimPrefix(s, "containerd: ")
		}
	}
	return words
}

// logfmt returns the value of key in a line key=word or key="quoted".
func logfmt(line, key string) string {
	_, rest, ok := strings.Cut(line, " "+key+"=")
	if !ok {
		return ""
	}
	if strings.HasPrefix(rest, `"`) {
		if q, err := strconv.QuotedPrefix(rest); err == nil {
			if s, err := strconv.Unquote(q); err == nil {
				return s
			}
		}
	}
	word, _, _ := strings.Cut(rest, " ")
	return word
}

// end sends the process SIGTERM, and SIGKILL after grace.
func (r *Runtime) end(ctx context.Context, p process, grace time.Duration) error {
	var ended bool
	var err error
	if lost := p.handle.WithHandle(func(fd uintptr) { ended, err = endPidfd(ctx, int(fd), grace) }); lost != nil && !errors.Is(lost, os.ErrProcessDone) {
		return fmt.Errorf("end process %d (%s): %w", p.pid, p.name, lost)
	}
	r.reap()
	if err == nil && !ended && !p.ended() {
		err = fmt.Errorf("process %d (%s) does not end when killed", p.pid, p.name)
	}
	return err
}

// endPidfd sends SIGTERM and, after grace, SIGKILL, and reports whether the process
// has ended.
func endPidfd(ctx context.Context, fd int, grace time.Duration) (ended bool, err error) {
	for _, s := range []struct {
		signal unix.Signal
		wait   time.Duration
	}{{unix.SIGTERM, grace}, {unix.SIGKILL, killLimit}} {
		if err := unix.PidfdSendSignal(fd, s.signal, nil, 0); err != nil {
			return errors.Is(err, unix.ESRCH), nil
		}
		if ended, err = waitPidfd(ctx, fd, s.wait); ended || err != nil {
			break
		}
	}
	return ended, err
}

// waitPidfd waits until the process of fd has ended.
func waitPidfd(ctx context.Context, fd int, limit time.Duration) (bool, error) {
	for deadline := time.Now().Add(limit); ; {
		left := min(max(time.Until(deadline), 0), 50*time.Millisecond)
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left.Milliseconds()))
		if n > 0 {
			return true, nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return false, err
		}
		if ctx.Err() != nil {
			return false, context.Cause(ctx)
		}
		if !time.Now().Before(deadline) {
			return false, nil
		}
	}
}
