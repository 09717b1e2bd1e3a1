package doctor

import (
	"bytes"
	"cmp"
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ReadFacts reads the machine. It leaves out unreadable facts, or records the failure as a fact. The
// caller asks the runtime.
func ReadFacts(ctx context.Context, w AgentConfig, now time.Time) Facts {
	l := looker{w.Root}
	f := Facts{Agent: w, Now: now, UID: os.Geteuid()}
	f.Caps = l.capabilities()
	f.OOM, _ = strconv.Atoi(l.text("/proc/self/oom_score_adj"))
	f.Systemd = l.exists("/run/systemd/system")
	f.Kernel = l.text("/proc/sys/kernel/osrelease")
	var files unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &files) == nil {
		f.Descriptors = files.Cur
	}
	f.Cgroup = l.cgroup()
	f.Runc = l.runc(ctx)
	f.CNI = l.cni()
	l.kernel(&f)
	l.network(&f)
	l.resources(&f)
	f.Files, f.Certs = l.files(w)
	f.Kubelets = l.kubelets()
	f.LeftPods = len(l.names("/var/lib/kubelet/pods"))
	f.RootOf = KubeletState(w.RootDir, l.exists)
	return f
}

// looker reads below a root: the machine's, or a test's.
type looker struct{ root string }

func (l looker) path(p string) string { return filepath.Join(l.root+"/", p) }

// text returns a file's text without spaces around it, "" where it cannot be read.
func (l looker) text(p string) string {
	data, err := os.ReadFile(l.path(p))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// maxRead limits reads of a file that others may have written.
const maxRead = 1 << 20

// name names a file, or a link's target, without opening it. open opens it if the user of
// the looker has found that it is a regular file or a directory: opening a FIFO blocks,
// opening a device can start it, and opening a file with a lease waits for its owner.
func (l looker) name(p string) (at *os.File, open func() (*os.File, error), err error) {
	at, err = os.OpenFile(l.path(p), unix.O_PATH, 0)
	return at, func() (*os.File, error) {
		return os.OpenFile("/proc/self/fd/"+strconv.Itoa(int(at.Fd())), os.O_RDONLY|unix.O_NONBLOCK, 0)
	}, err
}

// read reads a regular file that others may have written.
func (l looker) read(p string) ([]byte, error) {
	at, open, err := l.name(p)
	if err != nil {
		return nil, err
	}
	defer at.Close()
	if info, err := at.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, cmp.Or(err, errors.New("is not a regular file"))
	}
	f, err := open()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxRead+1))
	if err == nil && len(data) > maxRead {
		return nil, fmt.Errorf("is larger than %d KiB", maxRead>>10)
	}
	return data, err
}

func (l looker) lines(p string) []string { return strings.Split(l.text(p), "\n") }

func (l looker) exists(p string) bool {
	_, err := os.Stat(l.path(p))
	return err == nil
}

// names returns the names of a directory's entries.
func (l looker) names(p string) (all []string) {
	entries, _ := os.ReadDir(l.path(p))
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

func (l looker) capabilities() uint64 {
	for _, line := range l.lines("/proc/self/status") {
		if hex, ok := strings.CutPrefix(line, "CapEff:"); ok {
			n, _ := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
			return n
		}
	}
	return 0
}

func (l looker) cgroup() (c Cgroup) {
	const dir = "/sys/fs/cgroup"
	switch {
	case l.exists(dir + "/cgroup.controllers"):
		c.Version = "v2"
		c.Controllers = strings.Fields(l.text(dir + "/cgroup.controllers"))
	case l.exists(dir + "/memory"):
		c.Version = "v1"
		for _, n := range l.names(dir) {
			c.Controllers = append(c.Controllers, strings.Split(n, ",")...)
		}
		if l.exists(dir + "/unified/cgroup.controllers") {
			c.Version = "hybrid"
		}
	}
	var at unix.Statfs_t
	c.Writable = unix.Statfs(l.path(dir), &at) == nil && at.Flags&unix.ST_RDONLY == 0
	return c
}

// kubelets returns the processes that are a kubelet. A nodectl with that name does not
// count.
func (l looker) kubelets() (all []Process) {
	for _, name := range l.names("/proc") {
		pid, err := strconv.Atoi(name)
		if err != nil || l.text("/proc/"+name+"/comm") != "kubelet" {
			continue
		}
		exe, err := os.Readlink(l.path("/proc/" + name + "/exe"))
		if err != nil {
			exe = "kubelet"
		}
		if !l.own(pid) {
			all = append(all, Process{pid, exe})
		}
	}
	return all
}

// own reports whether a process is a nodectl, also under another name: by its program's
// name, or its Go build information.
func (l looker) own(pid int) bool {
	exe := l.path("/proc/" + strconv.Itoa(pid) + "/exe")
	to, err := os.Readlink(exe)
	if err == nil && strings.TrimSuffix(filepath.Base(to), " (deleted)") == "nodectl" {
		return true
	}
	info, err := buildinfo.ReadFile(exe)
	return err == nil && info.Path == "github.com/nodectl/nodectl"
}

// comm names a process: "sshd (process 7)".
func (l looker) comm(pid int) string {
	name := l.text("/proc/" + strconv.Itoa(pid) + "/comm")
	if name == "" {
		name = "unknown"
	}
	return name + " (process " + strconv.Itoa(pid) + ")"
}

// file reads the facts of one file, or of a link's target. It opens only directories and
// regular files.
func (l looker) file(path, what string, role Role) File {
	x := File{Path: path, What: what, Role: role}
	at, open, err := l.name(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return x
	case err != nil:
		x.Exists, x.Err = true, reason(err)
		return x
	}
	defer at.Close()
	info, err := at.Stat()
	if err != nil {
		x.Exists, x.Err = true, reason(err)
		return x
	}
	x.Exists, x.Mode = true, info.Mode()
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		x.UID, x.GID = int(st.Uid), int(st.Gid)
	}
	if !info.IsDir() && !info.Mode().IsRegular() {
		x.Err = "is neither a file nor a directory"
		return x
	}
	f, err := open()
	if err != nil {
		x.Err = reason(err)
		return x
	}
	defer f.Close()
	if info.IsDir() {
		if _, err := f.ReadDir(-1); err != nil {
			x.Err = reason(err)
		}
	}
	return x
}

// reason returns an error without its path, which the caller adds.
func reason(err error) string {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err.Error()
	}
	return err.Error()
}

// fields returns the words of the lines of a file whose first word is name.
func fields(data []byte, name string) (all []string) {
	for line := range bytes.Lines(data) {
		if words := strings.Fields(string(line)); len(words) > 1 && words[0] == name {
			all = append(all, words[1])
		}
	}
	return all
}
