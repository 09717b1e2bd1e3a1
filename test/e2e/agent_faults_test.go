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
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	adapter "github.com/nodectl/nodectl/pkg/cri"
	parser "github.com/nodectl/nodectl/pkg/manifest"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/record"
	"github.com/nodectl/nodectl/test/criproxy"
)

// TestF2_KilledBetweenCreateAndStart: a container that was created and not
// started is started by the next agent where it is still what is wanted; else it
// goes without ever having run, and there is one in its place.
func TestF2_KilledBetweenCreateAndStart(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args string // of the manifest that the next agent finds
		want string // its mutating calls
	}{
		"wanted": {"append, /x/main, forever", "StartContainer"},
		"edited": {"append, /x/other, forever", "RemoveContainer CreateContainer StartContainer"},
	} {
		t.Run(name, func(t *testing.T) {
			s := parallelStage(t)
			e := s.executioner()
			text := func(args string) string {
				return manifest("web", []string{container("main", args, scratchMount)}, s.scratchVolume())
			}
			s.write("web.yaml", text("append, /x/main, forever"))
			a := s.serve()
			e.arm(a, moment{n: 2}) // RunPodSandbox, CreateContainer
			e.disarm(s)
			made := s.containers("web")
			if len(made) != 1 || made[0].State != cri.ContainerState_CONTAINER_CREATED {
				t.Fatalf("containers after the kill: %v", made)
			}
			before := len(e.Mutations())
			s.write("web.yaml", text(c.args))
			s.serve()
			was := s.awaitRunning("web", "main")
			s.awaitReady("web", true)
			if got := strings.Join(e.Mutations()[before:], " "); got != c.want {
				t.Errorf("calls of the next agent: %s, want %s", got, c.want)
			}
			if now := s.containers("web"); len(now) != 1 || (now[0].Id == made[0].Id) != (name == "wanted") {
				t.Errorf("containers: %v, made was %s", now, made[0].Id)
			}
			for _, l := range lives.of(s.name) {
				if l.id != was["main"].id {
					t.Errorf("%s ran, too", l)
				}
			}
			if st := s.status("web").Status; containerStatus(st, "main").RestartCount != 0 {
				t.Errorf("status: %s", describe(st))
			}
			wanted, other := s.stamps("main"), s.stamps("other")
			if name == "edited" {
				wanted, other = other, wanted
			}
			if wanted != 1 || other != 0 {
				t.Errorf("what is wanted started %d times, what is not %d times", wanted, other)
			}
		})
	}
}

// TestF3_ReplyOfRunPodSandboxIsLost: the runtime has made a sandbox, and its
// connection breaks before it says so. It is taken over: there never is a second.
func TestF3_ReplyOfRunPodSandboxIsLost(t *testing.T) {
	s := parallelStage(t)
	sock := filepath.Join(s.scratch, "cri.sock")
	s.endpoint = "unix://" + sock
	made, gone := make(chan struct{}), make(chan struct{})
	var once sync.Once
	front, err := criproxy.New(s.node.Endpoint, sock, criproxy.Hooks{After: func(c criproxy.Call, _ error) {
		if c.Method == "RunPodSandbox" {
			once.Do(func() { close(made) })
			<-gone // nobody hears
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	s.write("web.yaml", simple("web"))
	a := s.serve()
	select {
	case <-made:
	case <-time.After(patience):
		t.Error("no sandbox was asked for")
	}
	box := s.sandbox("web").Id
	var wg sync.WaitGroup
	wg.Go(func() { err = front.Close() })
	a.await("Container runtime is not ready")
	close(gone)
	if wg.Wait(); err != nil {
		t.Fatal(err)
	}
	again := s.through(criproxy.Hooks{})
	s.awaitReady("web", true)
	if now := s.sandbox("web").Id; now != box {
		t.Errorf("the sandbox was %s, is %s", box, now)
	}
	if got := strings.Join(again.Mutations(), " "); got != "CreateContainer StartContainer" {
		t.Errorf("calls after the loss: %s", got)
	}
	if n := len(lives.of(s.name)); n != 1 {
		t.Errorf("%d lives of one container", n)
	}
}

// TestF3_SandboxAfterItsDeadline: the runtime makes a sandbox and says so later
// than anybody waits. Whoever asked finds it by its labels; asking for the same
// one again gives the same one.
func TestF3_SandboxAfterItsDeadline(t *testing.T) {
	s := parallelStage(t)
	release := make(chan struct{})
	free := sync.OnceFunc(func() { close(release) })
	front := s.through(criproxy.Hooks{After: func(c criproxy.Call, _ error) {
		if c.Method == "RunPodSandbox" {
			<-release
		}
	}})
	t.Cleanup(free)
	b := newBare(s, "web", v1.Container{Name: "main", Args: []string{"forever"}}) // its sandbox, past the proxy, is attempt 0
	rt, err := adapter.Dial(adapter.Config{
		Endpoint: front.Endpoint(), Node: s.name, RootDir: s.root, PodLogsDir: s.logs, CgroupParent: s.node.CgroupParent,
		Timeouts: adapter.Timeouts{Call: 4 * time.Second}, // more than any sandbox takes
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rt.Close() })
	if err := b.rt.StopSandbox(t.Context(), b.sandbox.ID); err != nil {
		t.Fatal(err)
	}
	late, err := rt.RunSandbox(t.Context(), b.want, 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	free()
	again, err := rt.RunSandbox(t.Context(), b.want, 1, 1)
	if err != nil || again != late {
		t.Errorf("asked again: %s, %v, want %s", again, err, late)
	}
	ready := 0
	for _, box := range s.sandboxes() {
		if box.State == cri.PodSandboxState_SANDBOX_READY {
			ready++
			if box.Id != late {
				t.Errorf("sandbox %s is ready, %s was taken over", box.Id, late)
			}
		}
	}
	if ready != 1 {
		t.Errorf("%d sandboxes are ready", ready)
	}
}

// grouped has a command run in a cgroup of its own, which has this value in a
// file, by its name in version 1 (with its controller) or 2. It returns the
// group's directory; the end of the test removes it.
func (s *stage) grouped(cmd *exec.Cmd, v1File, v2File, value string) string {
	s.Helper()
	dir := s.cgroup("/nodectl-agent-"+s.name+"-"+strconv.Itoa(os.Getpid()), v1File, v2File, value)
	cmd.Path, cmd.Args = "/bin/sh", append([]string{"sh", "-c", `echo $$ >` + dir + `/cgroup.procs && exec "$@"`, "sh", cmd.Path}, cmd.Args[1:]...)
	return dir
}

// cgroup makes a group with this value in a file; the end of the test removes it.
func (s *stage) cgroup(name, v1File, v2File, value string) string {
	s.Helper()
	controller, file, _ := strings.Cut(v1File, "/")
	dir := filepath.Join("/sys/fs/cgroup", controller, name)
	if unified() {
		// As the runtime does for its own: a group's controllers are its parent's word.
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

// TestF9_AgentOutOfMemory: an agent lives in little memory; where that is not
// enough the kernel ends it, and it alone: pods run on, and the next agent takes
// them over untouched.
func TestF9_AgentOutOfMemory(t *testing.T) {
	s := parallelStage(t)
	p := s.through(criproxy.Hooks{})
	const pods = 8
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

	// It is left with what it uses now, then given something large to read.
	file := filepath.Join(dir, "memory.limit_in_bytes")
	if unified() {
		file = filepath.Join(dir, "memory.max")
	}
	for limit := 40 << 20; limit > 0; limit -= 1 << 20 {
		if os.WriteFile(file, []byte(strconv.Itoa(limit)), 0o600) != nil {
			break // the kernel can take no more
		}
	}
	a.asked.Store(true)
	s.write("large.yaml", simple("large")+strings.Repeat("# a comment of no use\n", 400_000))
	select {
	case <-a.done:
	case <-time.After(patience):
		t.Fatal("the agent lives without memory")
	}
	if ws, ok := a.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGKILL {
		t.Errorf("the agent ended with %s, not by the kernel:\n%s", a.cmd.ProcessState, a.said())
	}
	for name, w := range was {
		s.untouched(name, w)
	}
	s.remove("large.yaml")
	s.serve().await("All pods reported", fmt.Sprint("pods=", pods))
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

// TestF11_NoProcessesLeft: where no process can be made no pod starts, and it is
// tried again with a growing pause, not in a hot loop, and said why; what runs,
// runs on. With room again all is well.
func TestF11_NoProcessesLeft(t *testing.T) {
	s := parallelStage(t)
	p := s.through(criproxy.Hooks{})
	own := filepath.Join(s.node.CgroupParent, "f11-"+s.name)
	dir := s.cgroup(own, "pids/pids.max", "pids.max", "max")
	t.Cleanup(func() { s.removeGroups(own) })
	cmd := s.command("serve", "-f", s.manifests)
	cmd.Args = append(cmd.Args, "--cgroup-root", own)
	a := s.start(cmd)
	kept := s.keep()
	s.awaitReady("keep", true)
	s.quiet(p)
	tasks, err := os.ReadFile(filepath.Join(dir, "pids.current"))
	if err != nil || strings.TrimSpace(string(tasks)) == "0" {
		t.Fatalf("nothing runs in the group: %s, %v", tasks, err)
	}
	max := func(n string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "pids.max"), []byte(n), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	max(strings.TrimSpace(string(tasks)))
	before := p.Counts()["RunPodSandbox"]
	s.write("web.yaml", simple("web"))
	first := a.await("level=WARN", "Step failed", s.full("web"))
	<-time.After(5 * time.Second)
	// Tried at 0, 0.2, 0.6, 1.4, 3 and 6.2 s, and each try takes its time.
	if n := p.Counts()["RunPodSandbox"] - before; n < 2 || n > 6 {
		t.Errorf("%d sandboxes were tried", n)
	}
	if !strings.Contains(first, "step=run-sandbox") || !strings.Contains(first, "retry=200ms") {
		t.Errorf("said: %s", first)
	}
	st := s.awaitStatus("web", "waiting", func(st v1.PodStatus) bool { return waiting(st, "main").Message != "" })
	if st.Phase != v1.PodPending || ready(st) {
		t.Errorf("status: %s", describe(st))
	}
	s.untouched("keep", kept)

	max("max")
	was := s.awaitRunning("web", "main")
	s.awaitReady("web", true)
	if n := len(lives.of(s.name)); n != 2 {
		t.Errorf("%d lives of two containers", n)
	}
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

// formerly returns a spec as the rules of hashes before these would have it: what
// the former version wrote into labels, annotations and records.
func formerly(now *pod.Spec) *pod.Spec {
	old := *now
	old.Earlier = nil
	of := func(name, hash string) string {
		if was, ok := now.Earlier[name]; ok {
			return was
		}
		_, digest, _ := strings.Cut(hash, "-")
		return "v1-" + digest
	}
	old.SandboxHash = of("", now.SandboxHash)
	old.ContainerHashes = make(map[string]string, len(now.ContainerHashes))
	for name, hash := range now.ContainerHashes {
		old.ContainerHashes[name] = of(name, hash)
	}
	return &old
}

// TestF16_PodOfTheFormerVersion: what an agent with the former rules of hashes
// started is taken over without a call that changes anything, with the record it
// kept and without; an edit then costs what it costs, and no more.
func TestF16_PodOfTheFormerVersion(t *testing.T) {
	t.Parallel()
	for _, kept := range []bool{true, false} {
		t.Run(fmt.Sprint("record ", kept), func(t *testing.T) {
			s := parallelStage(t)
			p := s.through(criproxy.Hooks{})
			text := manifest("web", []string{
				container("main", "forever", "resources: {limits: {cpu: 100m, memory: 64Mi}}"), container("side", "forever"),
			}, "initContainers:", container("init", "print, done"))
			file := filepath.Join(s.manifests, "web.yaml")
			read, _ := parser.Parse([]byte(text), parser.Options{
				Node: s.name, Source: "file", Location: s.manifests, File: file, Static: true,
			})
			if len(read.Pods) != 1 {
				t.Fatal(read.Problems)
			}
			old := formerly(read.Pods[0])
			if old.SandboxHash == read.Pods[0].SandboxHash || old.ContainerHash("main")[2:] == read.Pods[0].ContainerHash("main")[2:] {
				t.Fatalf("the former rules said nothing else: %v", old.ContainerHashes)
			}
			rt, err := adapter.Dial(adapter.Config{Endpoint: s.node.Endpoint, Node: s.name, RootDir: s.root, PodLogsDir: s.logs, CgroupParent: s.node.CgroupParent})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = rt.Close() })
			box, err := rt.RunSandbox(t.Context(), old, 1, 0)
			for _, name := range []string{"init", "main", "side"} {
				var id string
				if err == nil {
					id, err = rt.CreateContainer(t.Context(), pod.CreateRequest{Want: old, Container: name, Sandbox: &pod.Sandbox{ID: box, Instance: 1}})
				}
				if err == nil {
					err = rt.StartContainer(t.Context(), id)
				}
			}
			if err == nil && kept {
				err = record.New(s.root).Save(pod.Record{Key: old.Key, UID: old.UID(), Want: old, Instance: 1, Attempts: map[string]uint32{"": 1}, StartTime: time.Now()})
			}
			if err != nil {
				t.Fatal(err)
			}
			was := s.awaitRunning("web", "main", "side")
			s.write("web.yaml", text)
			s.serve()
			s.awaitReady("web", true)
			s.quiet(p)
			if made := p.Mutations(); len(made) > 0 {
				t.Errorf("mutating calls: %v", made)
			}
			s.untouched("web", was)
			if slices.Contains(s.readiness("web"), false) {
				t.Errorf("readiness was reported as %v", s.readiness("web"))
			}

			s.write("web.yaml", strings.Replace(text, "name: side, ", "name: side, env: [{name: A, value: b}], ", 1))
			var now map[string]running
			s.eventually(func() (err error) {
				if now, err = s.runningNow("web", "main", "side"); err == nil && now["side"].id == was["side"].id {
					err = errors.New("the edited container still runs")
				}
				return err
			})
			if now["main"] != was["main"] {
				t.Errorf("main was %+v, is %+v", was["main"], now["main"])
			}
		})
	}
}
