package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/test/criproxy"
	"github.com/nodectl/nodectl/test/node"
)

// TestF20_RuntimeSocketAbsent: without a runtime the agent waits, says so once,
// and starts what is wanted when the runtime is there; it goes on when the
// runtime goes and comes.
func TestF20_RuntimeSocketAbsent(t *testing.T) {
	s := parallelStage(t)
	sock := filepath.Join(s.scratch, "late.sock")
	s.endpoint = "unix://" + sock
	s.write("web.yaml", simple("web"))
	a := s.serve()
	a.await("level=WARN", "Container runtime is not ready", sock)
	if n := len(a.linesWith("level=WARN")); n != 1 {
		t.Errorf("%d warnings instead of one", n)
	}
	front, err := criproxy.New(s.node.Endpoint, sock, criproxy.Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	was := s.awaitRunning("web", "main")
	s.awaitReady("web", true)
	if err := front.Close(); err != nil {
		t.Fatal(err)
	}
	s.eventually(func() error {
		if n := len(a.linesWith("Container runtime is not ready")); n != 2 {
			return fmt.Errorf("said %d times that the runtime is away, want 2", n)
		}
		return nil
	})
	s.write("next.yaml", simple("next"))
	s.remove("web.yaml")
	<-time.After(time.Second)
	s.untouched("web", was)
	if front, err = criproxy.New(s.node.Endpoint, sock, criproxy.Hooks{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = front.Close() })
	s.awaitRunning("next", "main")
	s.awaitGone("web")
}

// TestF21_ContainerdKilled: ten pods run on, as the same processes, while
// containerd is killed and started again, twice, under an agent that watches and
// under one that comes later. Nobody reports them as anything but running.
// Pods that come and go in that moment do so afterwards, once.
func TestF21_ContainerdKilled(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	// A runc that ends with containerd leaves an empty cgroup behind.
	t.Cleanup(func() { removeEmptyGroups(n.Look().Cgroups) })
	s := newStage(t, n)
	var names []string
	for i := range 10 {
		names = append(names, fmt.Sprint("web", i))
		s.write(names[i]+".yaml", simple(names[i]))
	}
	crash := manifest("crash", []string{container("main", "append, /x/crash, wait, /x/now, forever", scratchMount)}, s.scratchVolume())
	s.write("crash.yaml", crash)
	s.write("going.yaml", manifest("going", []string{container("main", "ignore, forever")}))
	a := s.serve()
	was := make(map[string]map[string]running)
	for _, name := range names {
		was[name] = s.awaitRunning(name, "main")
		s.awaitReady(name, true)
	}
	crashed := s.awaitRunning("crash", "main")["main"]
	s.awaitRunning("going", "main")

	// In this moment one pod is being stopped, others are being started, and a
	// container ends while nobody sees it.
	s.remove("going.yaml")
	for i := range 3 {
		name := fmt.Sprint("coming", i)
		// On the host network: a containerd that dies while a network plugin
		// works for it forgets what that made.
		s.write(name+".yaml", manifest(name, []string{container("main", "forever")}, "hostNetwork: true"))
	}
	<-time.After(150 * time.Millisecond)
	n.Kill(t)
	if err := unix.Kill(crashed.pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	a.await("Container runtime is not ready")
	n.Restart(t)
	for i := range 3 {
		s.awaitRunning(fmt.Sprint("coming", i), "main")
	}
	s.awaitGone("going")
	s.eventually(func() error {
		now, err := s.runningNow("crash", "main")
		if err == nil && now["main"].id == crashed.id {
			err = errors.New("the container that was killed is said to run")
		}
		return err
	})
	s.awaitStamps("crash", 2)
	for _, name := range names {
		s.untouched(name, was[name])
	}

	// Again, with the agent away, and with an agent that comes first.
	a.kill()
	n.Kill(t)
	a = s.serve()
	a.await("Container runtime is not ready")
	n.Restart(t)
	a.await("All pods reported", "pods=14")
	s.write("last.yaml", simple("last"))
	s.awaitRunning("last", "main")
	for _, name := range names {
		s.awaitReady(name, true)
		s.untouched(name, was[name])
		for i, st := range s.reported(name) {
			c := containerStatus(st, "main")
			if i > 0 && (st.Phase != v1.PodRunning || !ready(st) || c.RestartCount != 0 || c.State.Running == nil) {
				t.Errorf("%s was reported as %s", name, describe(st))
			}
		}
	}
	s.networkNotReady()
	for _, f := range s.files() {
		s.remove(f)
	}
	for _, name := range append(names, "crash", "coming0", "coming1", "coming2", "last") {
		s.awaitGone(name)
	}
	s.nothingLeft()
}

// reported returns all that was reported of a pod since the journal was begun,
// from where it ran first.
func (s *stage) reported(name string) []v1.PodStatus {
	s.Helper()
	text, err := os.ReadFile(filepath.Join(s.root, "journal.jsonl"))
	if err != nil {
		s.Fatal(err)
	}
	var all []v1.PodStatus
	for line := range strings.Lines(string(text)) {
		var l struct{ Pod *v1.Pod }
		if json.Unmarshal([]byte(line), &l) == nil && l.Pod != nil && l.Pod.Name == s.full(name) &&
			(len(all) > 0 || ready(l.Pod.Status)) {
			all = append(all, l.Pod.Status)
		}
	}
	return all
}

func (s *stage) files() []string {
	s.Helper()
	entries, err := os.ReadDir(s.manifests)
	if err != nil {
		s.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// networkNotReady takes the network's configuration from a node of the
// scenario's own: pods on the host network start all the same, others wait,
// and say for what.
func (s *stage) networkNotReady() {
	s.Helper()
	found, err := filepath.Glob(filepath.Join(s.node.RootDir, "*/cni/*.conflist"))
	if err != nil || len(found) != 1 {
		s.Fatalf("configurations of the pod network: %v, %v", found, err)
	}
	config, err := os.ReadFile(found[0])
	if err != nil {
		s.Fatal(err)
	}
	if err := os.Remove(found[0]); err != nil {
		s.Fatal(err)
	}
	s.eventually(func() error { return s.networkWord(false) })
	s.write("host.yaml", manifest("host", []string{container("main", "forever")}, "hostNetwork: true"))
	s.write("pod.yaml", simple("pod"))
	s.awaitRunning("host", "main")
	st := s.awaitStatus("pod", "waiting for the network", func(st v1.PodStatus) bool {
		return strings.Contains(waiting(st, "main").Message, "network")
	})
	if st.Phase != v1.PodPending {
		s.Errorf("status: %s", describe(st))
	}
	if err := os.WriteFile(found[0], config, 0o600); err != nil { // containerd takes no notice of a rename
		s.Fatal(err)
	}
	s.awaitRunning("pod", "main")
	for _, name := range []string{"host", "pod"} {
		s.remove(name + ".yaml")
		s.awaitGone(name)
	}
}

// networkWord returns nil when the runtime's word on its network is want.
func (s *stage) networkWord(want bool) error {
	r, err := s.node.Runtime.Status(s.Context(), &cri.StatusRequest{})
	if err != nil {
		return err
	}
	for _, c := range r.Status.Conditions {
		if c.Type == cri.NetworkReady && c.Status == want {
			return nil
		}
	}
	return fmt.Errorf("network ready is not %v", want)
}

// TestF27_LostContainersComeBack: whatever takes a pod down behind the agent's
// back, it comes back by its restart policy, in the old sandbox where there is
// one, and as one.
func TestF27_LostContainersComeBack(t *testing.T) {
	s := parallelStage(t)
	faults := map[string]func(box string, main running) error{
		"process": func(_ string, main running) error { return unix.Kill(main.pid, unix.SIGKILL) },
		"stop": func(_ string, main running) error {
			_, err := s.node.Runtime.StopContainer(t.Context(), &cri.StopContainerRequest{ContainerId: main.id})
			return err
		},
		"remove": func(_ string, main running) error {
			_, err := s.node.Runtime.RemoveContainer(t.Context(), &cri.RemoveContainerRequest{ContainerId: main.id})
			return err
		},
		"sandbox": func(box string, _ running) error {
			_, err := s.node.Runtime.StopPodSandbox(t.Context(), &cri.StopPodSandboxRequest{PodSandboxId: box})
			return err
		},
		"all": func(box string, _ running) error {
			_, err := s.node.Runtime.RemovePodSandbox(t.Context(), &cri.RemovePodSandboxRequest{PodSandboxId: box})
			return err
		},
	}
	for name := range faults {
		s.write(name+".yaml", manifest(name, []string{
			container("main", "append, /x/"+name+", forever", scratchMount), container("side", "forever"),
		}, s.scratchVolume()))
	}
	s.serve()
	for name, fault := range faults {
		was := s.awaitRunning(name, "main", "side")
		s.awaitReady(name, true)
		box := s.sandbox(name).Id
		s.eventually(func() error { return fault(box, was["main"]) }) // the agent may be faster than a fault of many steps
		var now map[string]running
		s.eventually(func() (err error) {
			now, err = s.runningNow(name, "main", "side")
			if err == nil && now["main"].id == was["main"].id {
				err = errors.New("the old container still runs")
			}
			return err
		})
		s.awaitReady(name, true)
		s.untouched(name, now)
		if whole := name == "sandbox" || name == "all"; whole {
			if now["side"] == was["side"] {
				t.Errorf("%s: side is the same", name)
			}
			continue // the agent may have begun to mend what was still being destroyed
		}
		if now["side"] != was["side"] {
			t.Errorf("%s: side was %+v, is %+v", name, was["side"], now["side"])
		}
		s.awaitStamps(name, 2)
		if now["main"].attempt != 1 {
			t.Errorf("%s: main is attempt %d, want 1", name, now["main"].attempt)
		}
		if st := s.status(name).Status; containerStatus(st, "main").RestartCount != 1 {
			t.Errorf("%s: status: %s", name, describe(st))
		}
	}
}

// TestF5_AgentStopped: an agent that stood still for a while catches up when it
// goes on.
func TestF5_AgentStopped(t *testing.T) {
	s := parallelStage(t)
	s.write("web.yaml", manifest("web", []string{container("main", "append, /x/web, forever", scratchMount)}, s.scratchVolume()))
	a := s.serve()
	was := s.awaitRunning("web", "main")["main"]
	kept := s.keep()
	s.write("go.yaml", simple("go"))
	s.awaitReady("web", true)
	s.awaitRunning("go", "main")
	if err := a.cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(was.pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.write("new.yaml", simple("new"))
	s.remove("go.yaml")
	<-time.After(3 * time.Second)
	if err := a.cmd.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	s.awaitRunning("new", "main")
	s.awaitGone("go")
	s.awaitStamps("web", 2)
	s.untouched("keep", kept)
}

// TestStartsAreBounded: of many pods that come at once, about as many start at a
// time as there are cores, the first one long before the last.
func TestStartsAreBounded(t *testing.T) {
	s := parallelStage(t)
	var mu sync.Mutex
	now, most := 0, 0
	count := func(c criproxy.Call, d int) {
		if c.Method != "RunPodSandbox" && c.Method != "StartContainer" && c.Method != "CreateContainer" {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		now += d
		most = max(most, now)
	}
	s.through(criproxy.Hooks{
		Before: func(c criproxy.Call) { count(c, 1) },
		After:  func(c criproxy.Call, _ error) { count(c, -1) },
	})
	const pods = 12
	for i := range pods {
		s.write(fmt.Sprint("p", i, ".yaml"), simple(fmt.Sprint("p", i)))
	}
	s.serve()
	var first, last time.Time
	for i := range pods {
		s.awaitReady(fmt.Sprint("p", i), true)
	}
	for _, l := range lives.of(s.name) {
		if first.IsZero() {
			first = l.from
		}
		last = l.from
	}
	mu.Lock()
	defer mu.Unlock()
	if limit := runtime.GOMAXPROCS(0); most > limit || most == 0 {
		t.Errorf("%d pods were starting at once, want at most %d", most, limit)
	}
	if last.Sub(first) < 100*time.Millisecond {
		t.Errorf("all pods started within %s", last.Sub(first))
	}
}
