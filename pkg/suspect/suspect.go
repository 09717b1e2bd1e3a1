// Package suspect finds the causes outside the agent on which a pod may hang: mounts that do not
// answer, and processes that the kernel does not let run.
//
// It reads /proc and asks mounts for their size. It reads no file of a process that waits for
// the process's memory, such as its command line, before it knows that the process runs.
//
// The package never waits for a hanging mount or process (package boundedcall).
package suspect

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/pkg/activity"
	"github.com/nodectl/nodectl/pkg/boundedcall"
	"github.com/nodectl/nodectl/pkg/pod"
)

const (
	// answersWithin is how long a mount may take to answer, or the environment of a process.
	answersWithin = time.Second
	// foundWithin is how long all of /proc may take.
	foundWithin = 3 * time.Second
	// maxAsked is how many calls may hang at once.
	maxAsked = 16
	// maxProcesses is how many processes are reported.
	maxProcesses = 20
	// maxStack is how many functions of a kernel stack are reported.
	maxStack = 16
)

// Finder finds suspects. It is safe for concurrent use.
type Finder struct {
	proc  string
	statf func(path string) error
	read  func(path string) ([]byte, error)
	calls *boundedcall.Calls // of statf, and for /proc
}

// New returns a Finder for this machine. It does no I/O.
func New() *Finder {
	return &Finder{proc: "/proc", statf: func(path string) error {
		var s unix.Statfs_t
		return unix.Statfs(path, &s)
	}, read: os.ReadFile, calls: boundedcall.New(maxAsked)}
}

// Mounts returns the mounts that a pod uses: those that paths are on, and those below the
// directories. It asks each of them whether it answers.
func (f *Finder) Mounts(ctx context.Context, paths, directories []string) []activity.Mount {
	all := f.mounts()
	var used []activity.Mount
	add := func(m activity.Mount) {
		if !slices.ContainsFunc(used, func(o activity.Mount) bool { return o.Path == m.Path }) {
			used = append(used, m)
		}
	}
	for _, path := range paths {
		var on *activity.Mount
		for i := range all { // the last mount at a path hides the others
			if isBelow(path, all[i].Path) && (on == nil || len(all[i].Path) >= len(on.Path)) {
				on = &all[i]
			}
		}
		if on != nil {
			add(*on)
		}
	}
	for _, dir := range directories {
		for i := len(all) - 1; i >= 0; i-- {
			if isBelow(all[i].Path, dir) {
				add(all[i])
			}
		}
	}
	f.ask(ctx, used)
	return used
}

func isBelow(path, dir string) bool {
	return dir == "/" || path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// ask sets Hangs and Error of mounts.
func (f *Finder) ask(ctx context.Context, mounts []activity.Mount) {
	var wg sync.WaitGroup
	for i := range mounts {
		m := &mounts[i]
		wg.Go(func() {
			err := f.calls.Do(ctx, m.Path, answersWithin, func() error { return f.statf(m.Path) })
			if m.Hangs = errors.Is(err, boundedcall.ErrHangs); err != nil && !m.Hangs {
				m.Error = err.Error()
			}
		})
	}
	wg.Wait()
}

// mounts returns the mounts of this process, in the order in which they were made.
func (f *Finder) mounts() (all []activity.Mount) {
	file, err := os.Open(filepath.Join(f.proc, "self/mountinfo"))
	if err != nil {
		return nil
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		before, after, ok := strings.Cut(lines.Text(), " - ")
		own, about := strings.Fields(before), strings.Fields(after)
		if ok && len(own) > 4 && len(about) > 1 {
			all = append(all, activity.Mount{Path: plain(own[4]), Type: about[0], Source: plain(about[1])})
		}
	}
	return all
}

// plain undoes the octal escapes of mountinfo.
func plain(text string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(text)
}

// process is what /proc/PID/stat says.
type process struct {
	pid, parent int
	name, state string
}

// Target is a pod whose processes are looked for.
type Target struct {
	pod.Key
	UID string
	// Agent says that the threads of this process are looked at, too.
	Agent bool
}

// Processes returns the processes and threads that the pod may hang on: those of its containers,
// of its shim and of this agent that are stopped or wait in the kernel without an end, and
// network plugins that work for the pod. It returns none if /proc does not answer in time.
func (f *Finder) Processes(ctx context.Context, of Target) []activity.Process {
	var found []activity.Process
	err := f.calls.Do(ctx, "processes of "+of.String(), foundWithin, func() error {
		found = f.find(ctx, of)
		return nil
	})
	if err != nil {
		return nil // found may be written to
	}
	return found
}

func (f *Finder) find(ctx context.Context, of Target) (found []activity.Process) {
	all := f.processes()
	var shims []int
	for _, p := range all {
		if of.UID != "" && f.inPod(p.pid, of.UID) {
			found = append(found, f.suspects(p, "pod")...)
			if !slices.Contains(shims, p.parent) {
				shims = append(shims, p.parent)
			}
		}
	}
	for _, pid := range shims {
		if p, ok := all[pid]; ok && isShim(p.name) {
			found = append(found, f.suspects(p, "shim")...)
		}
	}
	for _, p := range f.plugins(ctx, all, of.Key) {
		found = append(found, activity.Process{PID: p.pid, Name: p.name, Of: "network plugin", State: p.state, Waits: f.waits(p.pid, p.pid), Stack: f.stack(p.pid, p.pid)})
	}
	if of.Agent {
		pid := os.Getpid()
		if p, ok := all[pid]; ok {
			found = append(found, f.suspects(p, "agent")...)
		}
	}
	slices.SortFunc(found, func(a, b activity.Process) int {
		return cmp.Or(cmp.Compare(a.PID, b.PID), cmp.Compare(a.TID, b.TID))
	})
	return found[:min(len(found), maxProcesses)]
}

func isShim(name string) bool {
	return strings.HasPrefix(name, "containerd-shim") || name == "conmon" || name == "conmonrs"
}

// plugins returns the network plugins that a runtime runs for the pod, and their children.
func (f *Finder) plugins(ctx context.Context, all map[int]process, key pod.Key) (found []process) {
	var mu sync.Mutex // guards found
	var wg sync.WaitGroup
	for _, p := range all {
		if isShim(p.name) || !belowRuntime(all, p) {
			continue
		}
		wg.Go(func() {
			if f.worksFor(ctx, p, key) {
				mu.Lock()
				defer mu.Unlock()
				found = append(found, p)
			}
		})
	}
	wg.Wait()
	return found
}

// worksFor reports whether a process has the pod's name in its environment, as network plugins
// have. The environment is in the memory of the process, which may not be available: a process
// whose environment does not answer, and one in D, counts as one for the pod.
func (f *Finder) worksFor(ctx context.Context, p process, key pod.Key) bool {
	if p.state == "D" {
		return true
	}
	var environment []byte
	path := f.of(p.pid, "environ")
	err := f.calls.Do(ctx, path, answersWithin, func() (err error) {
		environment, err = f.read(path)
		return err
	})
	if err != nil {
		return errors.Is(err, boundedcall.ErrHangs)
	}
	for entry := range strings.SplitSeq(string(environment), "\x00") {
		if arguments, ok := strings.CutPrefix(entry, "CNI_ARGS="); ok {
			each := strings.Split(arguments, ";")
			return slices.Contains(each, "K8S_POD_NAMESPACE="+key.Namespace) && slices.Contains(each, "K8S_POD_NAME="+key.Name)
		}
	}
	return false
}

// belowRuntime reports whether a process was started by a runtime, and not by a shim.
func belowRuntime(all map[int]process, p process) bool {
	for range 4 {
		parent, ok := all[p.parent]
		switch {
		case !ok || isShim(parent.name):
			return false
		case isRuntime(parent.name):
			return true
		}
		p = parent
	}
	return false
}

func isRuntime(name string) bool { return name == "containerd" || name == "crio" }

// suspects returns the threads of a process that are stopped, or wait in the kernel without an
// end.
func (f *Finder) suspects(p process, of string) (found []activity.Process) {
	threads, err := os.ReadDir(f.of(p.pid, "task"))
	if err != nil {
		return nil
	}
	for _, t := range threads {
		tid, err := strconv.Atoi(t.Name())
		if err != nil {
			continue
		}
		s, ok := f.stat(f.of(p.pid, "task", t.Name(), "stat"))
		if !ok {
			continue
		}
		waits := f.waits(p.pid, tid)
		stopped := s.state == "T" && tid == p.pid // all threads are
		if !stopped && s.state != "D" && !waitsForFile(waits) {
			continue
		}
		one := activity.Process{PID: p.pid, Name: s.name, Of: of, State: s.state, Waits: waits, Stack: f.stack(p.pid, tid)}
		if tid != p.pid {
			one.TID = tid
		}
		found = append(found, one)
	}
	return found
}

// waitsForFile reports whether a function of the kernel waits for the server of a file system. A
// thread in it may be interruptible, and hangs all the same.
func waitsForFile(function string) bool {
	for _, prefix := range []string{"request_wait_answer", "fuse_", "rpc_wait", "nfs", "cifs_", "smb2_", "wait_for_response", "ceph_", "p9_", "autofs_wait"} {
		if strings.HasPrefix(function, prefix) && function != "fuse_dev_do_read" {
			return true
		}
	}
	return false
}

func (f *Finder) of(pid int, path ...string) string {
	return filepath.Join(append([]string{f.proc, strconv.Itoa(pid)}, path...)...)
}

func (f *Finder) waits(pid, tid int) string {
	text, err := os.ReadFile(f.of(pid, "task", strconv.Itoa(tid), "wchan"))
	if err != nil || string(text) == "0" {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// stack returns the functions of the kernel stack of a thread, the innermost first; only root
// may read them.
func (f *Finder) stack(pid, tid int) (functions []string) {
	text, err := os.ReadFile(f.of(pid, "task", strconv.Itoa(tid), "stack"))
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(text)) {
		_, after, _ := strings.Cut(strings.TrimSpace(line), " ")
		if name, _, _ := strings.Cut(after, "+"); name != "" && len(functions) < maxStack {
			functions = append(functions, name)
		}
	}
	return functions
}

// processes returns all processes.
func (f *Finder) processes() map[int]process {
	all := make(map[int]process)
	entries, err := os.ReadDir(f.proc)
	if err != nil {
		return all
	}
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		if p, ok := f.stat(filepath.Join(f.proc, e.Name(), "stat")); ok {
			all[p.pid] = p
		}
	}
	return all
}

// stat reads /proc/PID/stat.
func (f *Finder) stat(path string) (p process, ok bool) {
	text, err := os.ReadFile(path)
	if err != nil {
		return p, false
	}
	open, end := strings.IndexByte(string(text), '('), strings.LastIndexByte(string(text), ')')
	if open < 0 || end < open {
		return p, false
	}
	p.name = string(text[open+1 : end])
	rest := strings.Fields(string(text[end+1:]))
	if len(rest) < 2 {
		return p, false
	}
	p.state = rest[0]
	pid, err1 := strconv.Atoi(strings.TrimSpace(string(text[:open])))
	parent, err2 := strconv.Atoi(rest[1])
	p.pid, p.parent = pid, parent
	return p, err1 == nil && err2 == nil
}

// inPod reports whether a process is in a cgroup of the pod, of either driver.
func (f *Finder) inPod(pid int, uid string) bool {
	text, err := os.ReadFile(f.of(pid, "cgroup"))
	if err != nil {
		return false
	}
	slice := "-pod" + strings.ReplaceAll(uid, "-", "_") + ".slice"
	return slices.ContainsFunc(strings.FieldsFunc(string(text), func(r rune) bool { return r == '/' || r == '\n' }), func(part string) bool {
		return part == "pod"+uid || strings.HasSuffix(part, slice)
	})
}
