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
)

// A process is one that runs now and is ours by what it was started as. The
// table of processes is the only record of them: it cannot be out of date, and
// it survives the agent, its files and its crashes.
type process struct {
	pid int
	exe string // of a file that was replaced since: its old path
	id  string // of a shim: its sandbox
}

// dir returns the directory of the unpacked bundle the process runs from.
func (p process) dir() string { return filepath.Dir(p.exe) }

// find returns the containerd of this runtime.
func (r *Runtime) find() (process, bool) {
	found := processes(r.isContainerd)
	if len(found) == 0 {
		return process{}, false
	}
	return found[0], true
}

// isOurs reports whether the process is the containerd of this runtime.
func (r *Runtime) isOurs(pid int) bool {
	_, ok := inspect(strconv.Itoa(pid), r.isContainerd)
	return ok
}

func (r *Runtime) isContainerd(exe string, args []string) bool {
	return filepath.Base(exe) == "containerd" && argument(args, "--config") == r.configFile()
}

// shims returns the shims this runtime's containerd started: one a pod, and it
// lives as long as the pod's sandbox.
func (r *Runtime) shims() []process {
	return processes(func(exe string, args []string) bool {
		return strings.HasPrefix(filepath.Base(exe), "containerd-shim") && argument(args, "-address") == r.socket()
	})
}

// programDirs returns the directories that processes on this machine were
// started from.
func programDirs() map[string]bool {
	dirs := map[string]bool{}
	for _, p := range processes(func(string, []string) bool { return true }) {
		dirs[p.dir()] = true
	}
	return dirs
}

// processes returns those of our user's processes that match accepts.
func processes(match func(exe string, args []string) bool) []process {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer proc.Close()
	names, err := proc.Readdirnames(-1)
	if err != nil {
		return nil
	}
	var found []process
	for _, name := range names {
		if p, ok := inspect(name, match); ok {
			found = append(found, p)
		}
	}
	return found
}

// inspect returns the process with this number, if it is our user's and match
// accepts it. Kernel threads and zombies have no program and are not asked
// about.
func inspect(pid string, match func(exe string, args []string) bool) (process, bool) {
	n, err := strconv.Atoi(pid)
	if err != nil {
		return process{}, false
	}
	dir := "/proc/" + pid
	exe, err := os.Readlink(dir + "/exe")
	if err != nil {
		return process{}, false
	}
	exe = strings.TrimSuffix(exe, " (deleted)")
	line, err := os.ReadFile(dir + "/cmdline")
	if err != nil {
		return process{}, false
	}
	args := strings.Split(string(line), "\x00")
	if !match(exe, args) {
		return process{}, false
	}
	var st unix.Stat_t
	if unix.Stat(dir, &st) != nil || int(st.Uid) != os.Geteuid() {
		return process{}, false
	}
	return process{pid: n, exe: exe, id: argument(args, "-id")}, true
}

// argument returns the word after flag.
func argument(args []string, flag string) string {
	for i, a := range args {
		if a == flag && i+1 < len(args) {
			return args[i+1]
		}
	}
	return ""
}

// launch starts containerd so that nothing of the agent holds on to it, and
// waits until it answers.
func (r *Runtime) launch(ctx context.Context, bin string) error {
	if st, err := os.Stat(r.LogFile()); err == nil && st.Size() > logLimit {
		_ = os.Rename(r.LogFile(), r.LogFile()+".1") // a long log is no reason not to run pods
	}
	log, err := os.OpenFile(r.LogFile(), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	from, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}

	cmd := exec.Command(filepath.Join(bin, "containerd"), "--config", r.configFile(), "--log-level", "warn")
	cmd.Dir = "/"
	cmd.Env = environment(bin)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no terminal's hang-up, no group's signal reaches it
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start containerd: %w", err)
	}
	r.child = cmd.Process.Pid
	_ = cmd.Process.Release() // nobody waits for it; reap does, once it is gone
	r.leaveUnit(r.child)

	if err := r.answer(ctx, r.child, from); err != nil {
		return fmt.Errorf("the bundled containerd does not start: %w", err)
	}
	return nil
}

// environment is what containerd, its shims and its plugins get of ours: where
// programs are, and how to reach a registry.
func environment(bin string) []string {
	env := []string{"PATH=" + bin + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// answer waits until the process pid answers CRI. from is where its log begins;
// what it wrote last is the reason when it ends instead.
func (r *Runtime) answer(ctx context.Context, pid int, from int64) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startLimit, fmt.Errorf("no answer on %s for %s", r.socket(), startLimit))
	defer cancel()
	c, err := dial(r.Endpoint())
	if err != nil {
		return err
	}
	defer c.Close()
	for {
		// A connection that was refused is not tried again for a second, so the
		// socket is asked first.
		if listens(r.socket()) {
			if _, err := c.version(ctx); err == nil {
				return nil
			}
		}
		if r.gone(pid) {
			return errors.New(lastWords(r.LogFile(), from))
		}
		if err := pause(ctx, startPoll); err != nil {
			return err
		}
	}
}

// gone reports whether pid has ended, and reaps it where it is our child.
func (r *Runtime) gone(pid int) bool {
	if pid == r.child {
		return r.reap()
	}
	p, ok := r.find()
	return !ok || p.pid != pid
}

// reap collects the containerd that this process started and that has ended
// since, and reports whether there was one.
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

// lastWords returns the last line in containerd's log that tells why it ended.
func lastWords(name string, from int64) string {
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
	words := "it ended without a word"
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

// end asks the process to leave and kills it when it has not after patience.
func (r *Runtime) end(ctx context.Context, p process, patience time.Duration) error {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if err != nil {
		return nil // gone
	}
	defer unix.Close(fd)
	for _, s := range []struct {
		signal unix.Signal
		wait   time.Duration
	}{{unix.SIGTERM, patience}, {unix.SIGKILL, killLimit}} {
		if err := unix.PidfdSendSignal(fd, s.signal, nil, 0); err != nil {
			break
		}
		ended, err := waitPidfd(ctx, fd, s.wait)
		if err != nil {
			return err
		}
		if ended {
			r.reap()
			return nil
		}
	}
	r.reap()
	if ended, _ := waitPidfd(ctx, fd, 0); !ended {
		return fmt.Errorf("process %d (%s) cannot be ended", p.pid, filepath.Base(p.exe))
	}
	return nil
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
