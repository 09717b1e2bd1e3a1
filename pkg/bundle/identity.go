package bundle

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/pkg/atomicfile"
)

// A process is part of this runtime: its containerd, or the shim of one pod.
//
// A container that runs as host uid 0 chooses its program's name, path and arguments, so these
// prove nothing. A process is recognised by attributes that it cannot choose: the device and inode
// of its program are those of a program in an unpacked bundle, its PID and user namespaces are the
// agent's, and its mount namespace is one that the runtime was started in. The process table
// survives the agent, its files and its crashes.
type process struct {
	pid    int
	handle *os.Process // a pidfd, open since before the process was recognised
	name   string      // of its program
	dir    string      // the unpacked bundle it runs from; "" if its program was removed
	id     string      // of a shim: its sandbox
	mounts string      // its mount namespace
}

// ended reports whether the process has ended.
func (p process) ended() bool {
	ended := true // without a handle the process was gone before it was opened
	_ = p.handle.WithHandle(func(fd uintptr) {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		ended = n > 0 && err == nil
	})
	return ended
}

// A part is one kind of process of a runtime.
type part struct {
	program string // pattern of the program's name
	flag    string // the argument that names the runtime of the process,
	value   string // and its value
}

func (r *Runtime) containerdPart() part { return part{"containerd", "--config", r.configFile()} }

// A shim belongs to one pod and ends with the pod's sandbox.
func (r *Runtime) shimPart() part { return part{"containerd-shim*", "-address", r.socket()} }

// find returns the containerd of this runtime. An error means that a process may be it, and
// is not recognised.
func (r *Runtime) find() (p process, ok bool, err error) {
	found, err := r.processes(r.containerdPart())
	if len(found) == 0 {
		return process{}, false, err
	}
	return found[0], true, nil
}

// shims returns the shims of this runtime's containerd. An error means that another process
// may be one.
func (r *Runtime) shims() ([]process, error) { return r.processes(r.shimPart()) }

// processes returns the runtime's processes of one kind, and an error for processes that
// may be.
func (r *Runtime) processes(kind part) (found []process, err error) {
	j, err := r.newJudge(kind)
	if err != nil {
		return nil, err
	}
	for _, pid := range pids() {
		p, ok, doubt := j.recognise(pid)
		err = errors.Join(err, doubt)
		if ok {
			found = append(found, p)
		}
	}
	return withoutForks(found, parent), err
}

// pids returns the IDs of all processes.
func pids() []int {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer proc.Close()
	names, err := proc.Readdirnames(-1)
	if err != nil {
		return nil
	}
	var all []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			all = append(all, pid)
		}
	}
	return all
}

// withoutForks removes processes whose parent is one of found too. Between clone and
// exec, a child of containerd shows the program and the arguments of containerd.
func withoutForks(found []process, parent func(pid int) int) []process {
	pids := map[int]bool{}
	for _, p := range found {
		pids[p.pid] = true
	}
	return slices.DeleteFunc(found, func(p process) bool { return pids[parent(p.pid)] })
}

// parent returns the process ID of pid's parent; 0 for a process that has ended.
func parent(pid int) int {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The name, in parentheses, may contain anything; state and parent follow it.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 2 {
		return 0
	}
	n, _ := strconv.Atoi(string(fields[1]))
	return n
}

// A file identifies a file: no two have the same device and inode at the same time.
type file struct{ dev, ino uint64 }

// fileAt returns the identity of the file at a path, and its number of links. It does not
// wait for a network file system: a container's program may be on one that never answers.
func fileAt(path string) (f file, names uint32, err error) {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, unix.AT_STATX_DONT_SYNC, unix.STATX_INO|unix.STATX_NLINK, &st); err != nil {
		return file{}, 0, err
	}
	return file{unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino}, st.Nlink, nil
}

// A judge recognises processes of one kind.
type judge struct {
	kind      part
	programs  map[file]string // the programs in unpacked bundles, with the bundle's directory
	pid, user string          // the agent's namespaces
	mounts    []string        // the mount namespaces that the runtime was started in, and the agent's
	recorded  bool            // the launches that made the runtime were recorded
}

func (r *Runtime) newJudge(kind part) (judge, error) {
	j := judge{kind: kind, programs: r.programFiles(kind.program)}
	pid, err1 := namespaceOf("self", "pid")
	user, err2 := namespaceOf("self", "user")
	own, err3 := namespaceOf("self", "mnt")
	j.pid, j.user = pid, user
	j.mounts, j.recorded = r.launched()
	j.mounts = append(j.mounts, own)
	return j, errors.Join(err1, err2, err3)
}

// programFiles returns the programs that nodectl unpacked and whose names match pattern,
// with the directories of their bundles. It includes bundles of other versions: their
// processes run on after an upgrade.
func (r *Runtime) programFiles(pattern string) map[file]string {
	dirs, _ := filepath.Glob(filepath.Join(r.unpacked, "*"))
	if r.programs != "" {
		dirs = append(dirs, r.programs)
	}
	found := map[file]string{}
	for _, dir := range dirs {
		programs, _ := filepath.Glob(filepath.Join(dir, pattern))
		for _, name := range programs {
			if f, _, err := fileAt(name); err == nil {
				found[f] = dir
			}
		}
	}
	return found
}

// namespaceOf returns the namespace of a process, as the kernel names it; "" if the kernel
// has no namespaces of this kind.
func namespaceOf[P int | string](pid P, kind string) (string, error) {
	dir := fmt.Sprintf("/proc/%v/ns", pid)
	name, err := os.Readlink(filepath.Join(dir, kind))
	if errors.Is(err, fs.ErrNotExist) && exists(dir) {
		return "", nil
	}
	return name, err
}

// isElsewhere reports whether no process of the runtime can be in the namespaces of pid. It
// comes before any read of the process's own data, because a process can block the read of
// its arguments.
func (j judge) isElsewhere(pid int) bool {
	if ns, err := namespaceOf(pid, "pid"); err == nil && ns != j.pid {
		return true
	}
	if ns, err := namespaceOf(pid, "user"); err == nil && ns != j.user {
		return true
	}
	ns, err := namespaceOf(pid, "mnt")
	return err == nil && j.recorded && !slices.Contains(j.mounts, ns)
}

// recognise returns the process if it is one of the runtime's. doubt says that it may be
// one. Kernel threads and zombies have no arguments and are never recognised.
func (j judge) recognise(pid int) (p process, ok bool, doubt error) {
	if j.isElsewhere(pid) || argument(arguments(pid), j.kind.flag) != j.kind.value {
		return process{}, false, nil
	}
	handle, err := os.FindProcess(pid)
	if err != nil {
		return process{}, false, nil
	}
	if err := handle.WithHandle(func(uintptr) {}); errors.Is(err, os.ErrNoHandle) {
		return process{}, false, fmt.Errorf("process %d may be the bundled runtime: open it by pidfd: %w", pid, err)
	}
	p = process{pid: pid, handle: handle}
	ok, doubt = j.judge(&p)
	if p.ended() { // the data may be that of a new process with the same ID
		ok, doubt = false, nil
	}
	if !ok {
		_ = handle.Release() // it only closes the pidfd
	}
	return p, ok, doubt
}

func (j judge) judge(p *process) (ok bool, doubt error) {
	args := arguments(p.pid)
	dir := fmt.Sprintf("/proc/%d", p.pid)
	var st unix.Stat_t
	if argument(args, j.kind.flag) != j.kind.value || unix.Stat(dir, &st) != nil || int(st.Uid) != os.Geteuid() {
		return false, nil
	}
	pid, err := namespaceOf(p.pid, "pid")
	user, userErr := namespaceOf(p.pid, "user")
	mounts, mountsErr := namespaceOf(p.pid, "mnt")
	program, names, programErr := fileAt(dir + "/exe")
	if err := errors.Join(err, userErr, mountsErr, programErr); err != nil {
		return false, fmt.Errorf("process %d may be the bundled runtime: %w", p.pid, err)
	}
	if pid != j.pid || user != j.user {
		return false, nil
	}
	where, known := j.programs[program]
	if !known && names > 0 {
		return false, nil
	}
	// A program that was removed is in no bundle. Its process is still known by its mount
	// namespace: no container has the agent's.
	switch {
	case slices.Contains(j.mounts, mounts):
	case known && !j.recorded:
		return false, fmt.Errorf("process %d may be the bundled runtime: it runs a program of %s in another mount namespace than nodectl", p.pid, where)
	default:
		return false, nil
	}
	p.name, p.dir, p.id, p.mounts = filepath.Base(args[0]), where, argument(args, "-id"), mounts
	return true, nil
}

// arguments returns a process's argument list: one empty string for a process that has
// ended or is being killed.
func arguments(pid int) []string {
	line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return strings.Split(string(line), "\x00")
}

// argument returns the argument after flag.
func argument(args []string, flag string) string {
	for i, a := range args {
		if a == flag && i+1 < len(args) {
			return args[i+1]
		}
	}
	return ""
}

// launches is a file in the run directory: like the namespaces, it does not survive a
// reboot.
type launches struct {
	MountNamespaces []string `json:"mountNamespaces"`
}

func (r *Runtime) launchFile() string { return filepath.Join(r.run, "launched.json") }

// launched returns the mount namespaces that the runtime's processes were started in; false
// if none was recorded, as by an older nodectl.
func (r *Runtime) launched() (mounts []string, ok bool) {
	var l launches
	js, err := os.ReadFile(r.launchFile())
	if err != nil || json.Unmarshal(js, &l) != nil || len(l.MountNamespaces) == 0 {
		return nil, false
	}
	return l.MountNamespaces, true
}

// recordLaunch records the mount namespace for the next start of containerd, which is this
// process's, and those of the running shims. Other namespaces are dropped: the kernel may
// reuse their numbers for containers.
func (r *Runtime) recordLaunch() error {
	own, err := namespaceOf("self", "mnt")
	if err != nil {
		return err
	}
	l := launches{MountNamespaces: []string{own}}
	shims, err := r.shims()
	if err != nil {
		return err
	}
	for _, p := range shims {
		l.MountNamespaces = append(l.MountNamespaces, p.mounts)
	}
	slices.Sort(l.MountNamespaces)
	l.MountNamespaces = slices.Compact(l.MountNamespaces)
	js, err := json.Marshal(l)
	if err != nil {
		return err
	}
	return atomicfile.Write(r.launchFile(), js, atomicfile.Options{Temp: ".tmp"})
}

// listener returns the process that listens on the runtime's socket; ok is false if there
// is none. pid is 0 for a process in another PID namespace.
func (r *Runtime) listener() (pid int, ok bool) { return Listener(r.socket()) }

// Listener returns the process that listens on a Unix socket; ok is false if there is none. pid is
// 0 for a process in another PID namespace.
func Listener(socket string) (pid int, ok bool) {
	c, err := net.DialTimeout("unix", socket, callLimit)
	if err != nil {
		return 0, false
	}
	defer c.Close()
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, true
	}
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	})
	return pid, true
}

// inUse returns the directories of dirs from which a process runs a program.
func inUse(dirs []string) map[string]bool {
	running := map[file]bool{}
	for _, pid := range pids() {
		if f, _, err := fileAt(fmt.Sprintf("/proc/%d/exe", pid)); err == nil {
			running[f] = true
		}
	}
	used := map[string]bool{}
	for _, dir := range dirs {
		_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return nil
			}
			if f, _, err := fileAt(path); err == nil && running[f] {
				used[dir] = true
				return fs.SkipAll
			}
			return nil
		})
	}
	return used
}
