package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/test/criproxy"
	"github.com/nodectl/nodectl/test/wait"
)

// grouped runs a command in its own cgroup, with this value in a file, named for version 1
// (with its controller) and 2. It returns the cgroup's directory; the end of the test removes
// it.
func (s *stage) grouped(cmd *exec.Cmd, v1File, v2File, value string) string {
	s.Helper()
	dir := s.cgroup("/nodectl-agent-"+s.name+"-"+strconv.Itoa(os.Getpid()), v1File, v2File, value)
	cmd.Path, cmd.Args = "/bin/sh", append([]string{"sh", "-c", `echo $$ >` + dir + `/cgroup.procs && exec "$@"`, "sh", cmd.Path}, cmd.Args[1:]...)
	return dir
}

// cgroup makes a cgroup with this value in a file; the end of the test removes it.
func (s *stage) cgroup(name, v1File, v2File, value string) string {
	s.Helper()
	controller, file, _ := strings.Cut(v1File, "/")
	dir := filepath.Join("/sys/fs/cgroup", controller, name)
	if unified() {
		// As the runtime does for its own: the parents must delegate the controllers.
		dir, file = filepath.Join("/sys/fs/cgroup", name), v2File
		for up := filepath.Dir(dir); strings.HasPrefix(up, "/sys/fs/cgroup"); up = filepath.Dir(up) {
			_ = os.WriteFile(filepath.Join(up, "cgroup.subtree_control"), []byte("+memory +pids"), 0o600)
		}
	}
	err := os.MkdirAll(dir, 0o755)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, file), []byte(value), 0o600)
	}
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		s.eventually(func() error {
			if err := os.Remove(dir); !errors.Is(err, os.ErrNotExist) {
				return err
			}
			return nil
		})
	})
	return dir
}

// TestF9_AgentOutOfMemory: an agent needs little memory. Where that is not enough, the kernel
// kills only the agent: pods run on, and the next agent adopts them untouched.
//
// Shows: F9
func TestF9_AgentOutOfMemory(t *testing.T) {
	s := parallelStage(t).oftenSynced()
	p := s.through(criproxy.Hooks{})
	const pods = 3
	was := make(map[string]map[string]running)
	for i := range pods {
		name := fmt.Sprint("p", i)
		s.write(name+".yaml", manifest(name, []string{container("main", "forever")}, "hostNetwork: true"))
		was[name] = nil
	}
	small := s.command("serve", "-f", s.manifests)
	dir := s.grouped(small, "memory/memory.limit_in_bytes", "memory.max", strconv.Itoa(40<<20))
	a := s.start(small)
	for name := range was {
		was[name] = s.awaitRunning(name, "main")
		s.awaitReady(name, true)
	}
	s.quiet(p)
	before := len(p.Mutations())

	// Its limit becomes its current usage, and then it gets something large to read.
	file := filepath.Join(dir, "memory.limit_in_bytes")
	if unified() {
		file = filepath.Join(dir, "memory.max")
	}
	for limit := 40 << 20; limit > 0; limit -= 1 << 20 {
		if os.WriteFile(file, []byte(strconv.Itoa(limit)), 0o600) != nil {
			break // the kernel can reclaim no more
		}
	}
	a.asked.Store(true)
	s.write("large.yaml", simple("large")+strings.Repeat("# a comment of no use\n", 400_000))
	wait.Receive(t, "the end of an agent without memory", a.done)
	if ws, ok := a.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGKILL {
		t.Errorf("the agent ended with %s, not by the kernel:\n%s", a.cmd.ProcessState, a.said())
	}
	for name, w := range was {
		s.untouched(name, w)
	}
	s.remove("large.yaml")
	s.serve().await("Status of every pod is known", fmt.Sprint("pods=", pods))
	s.quiet(p)
	if made := p.Mutations()[before:]; len(made) > 0 {
		t.Errorf("mutating calls: %v", made)
	}
	for name, w := range was {
		s.untouched(name, w)
		if all := s.readiness(name); slices.Contains(all, false) {
			t.Errorf("readiness of %s was reported as %v", name, all)
		}
	}
}

// TestF11_NoProcessesLeft: when the cgroup of a pod's tier allows no process, the pod does
// not start. The agent retries with a growing pause, not in a hot loop, and reports the
// cause; running pods run on. After the limit is lifted, the pod starts.
//
// Shows: F11
func TestF11_NoProcessesLeft(t *testing.T) {
	s := parallelStage(t).oftenSynced()
	p := s.through(criproxy.Hooks{})
	own := filepath.Join(s.node.CgroupParent, "f11-"+s.name)
	t.Cleanup(func() { s.removeGroups(own) })
	cmd := s.command("serve", "-f", s.manifests)
	cmd.Args = append(cmd.Args, "--cgroup-root", own)
	a := s.start(cmd)
	// Guaranteed: its cgroup is outside the tier with the limit, because a running program
	// may need another thread at any time.
	s.write("keep.yaml", manifest("keep", []string{container("main", "forever", "resources: {limits: {cpu: 500m, memory: 64Mi}}")}))
	kept := s.awaitRunning("keep", "main")
	s.awaitReady("keep", true)
	s.quiet(p)
	dir := s.cgroup(filepath.Join(own, "kubepods", "besteffort"), "pids/pids.max", "pids.max", "0")
	before := p.Counts()["RunPodSandbox"]
	s.write("web.yaml", simple("web"))
	for _, retry := range []string{"200ms", "400ms", "800ms", "1.6s"} {
		a.await("level=WARN", "Step failed", s.full("web"), "step=run-sandbox", "retry="+retry)
	}
	if tried, failed := p.Counts()["RunPodSandbox"]-before, len(a.linesWith("Step failed", s.full("web"))); tried > failed+1 {
		t.Errorf("%d sandboxes were tried, %d failures were said", tried, failed)
	}
	st := s.awaitStatus("web", "waiting", func(st v1.PodStatus) bool { return waiting(st, "main").Message != "" })
	if st.Phase != v1.PodPending || ready(st) {
		t.Errorf("status: %s", describe(st))
	}
	s.untouched("keep", kept)

	if err := os.WriteFile(filepath.Join(dir, "pids.max"), []byte("max"), 0o600); err != nil {
		t.Fatal(err)
	}
	was := s.awaitRunning("web", "main")
	s.awaitReady("web", true)
	s.awaitBegun(2)
	s.untouched("keep", kept)
	s.untouched("web", was)
	for _, name := range []string{"keep", "web"} {
		s.remove(name + ".yaml")
		s.awaitGone(name)
	}
	s.nothingLeft()
}

// removeGroups removes the empty groups of a name in every hierarchy.
func (s *stage) removeGroups(name string) {
	all, _ := filepath.Glob(filepath.Join("/sys/fs/cgroup", "*", name))
	for _, dir := range append(all, filepath.Join("/sys/fs/cgroup", name)) {
		_ = os.Remove(dir)
	}
}

// TestF13_ReadOnlyRoot: with a root directory that cannot be written, a new agent still
// starts, adopts running pods, starts and stops pods that need nothing on that disk, and
// reports the fault. When the directory is writable again, the agent recovers.
//
// Shows: F13
func TestF13_ReadOnlyRoot(t *testing.T) {
	s := parallelStage(t).oftenSynced()
	if err := os.Mkdir(s.root, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", s.root, "tmpfs", 0, "size=4m,mode=0700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(s.root, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	a := s.serve()
	kept := s.keep()
	s.awaitReady("keep", true)
	a.kill()
	if err := unix.Mount("", s.root, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	p := s.front
	before := len(p.Mutations())
	a = s.serve()
	a.await("Status of every pod is known", "pods=1")
	s.quiet(p)
	if made := p.Mutations()[before:]; len(made) > 0 {
		t.Errorf("mutating calls: %v", made)
	}
	s.write("free.yaml", simple("free"))
	s.awaitRunning("free", "main")
	a.await("level=WARN", "read-only file system")
	s.untouched("keep", kept)

	if err := unix.Mount("", s.root, "", unix.MS_REMOUNT, ""); err != nil {
		t.Fatal(err)
	}
	s.awaitReady("free", true)
	s.untouched("keep", kept)
	for _, name := range []string{"keep", "free"} {
		s.remove(name + ".yaml")
		s.awaitGone(name)
	}
	s.nothingLeft()
}
