//go:build full

package e2e

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/test/criproxy"
	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/wait"
)

// TestF6_StoppedAgentAndTheRuntime: a stopped agent receives no events. When the buffers
// between them are full, containerd blocks, for all its clients; that is containerd's fault,
// which nodectl cannot mend. Everything resumes when the service manager's watchdog ends the
// agent, and the next agent has lost nothing.
//
// Shows: F6
func TestF6_StoppedAgentAndTheRuntime(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	s := newStage(t, n)
	s.endpoint = n.Endpoint
	a := s.serve()
	kept := s.keep()
	s.awaitReady("keep", true)
	config := &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: "other", Namespace: "default", Uid: "other"},
		Linux: &cri.LinuxPodSandboxConfig{CgroupParent: n.CgroupParent, SecurityContext: &cri.LinuxSandboxSecurityContext{
			NamespaceOptions: &cri.NamespaceOption{Network: cri.NamespaceMode_NODE},
		}},
	}
	box, err := n.Runtime.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: config})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	// containerd buffers a hundred events, each as large as the labels of its container: with
	// these words, few more fit into the buffers between it and the agent.
	const others, held = 200, 100
	words := map[string]string{"words": strings.Repeat("x", 4<<10)}
	made := make(chan error) // of one container
	go func() {
		for i := range others {
			_, err := n.Runtime.CreateContainer(t.Context(), &cri.CreateContainerRequest{
				PodSandboxId: box.PodSandboxId, SandboxConfig: config,
				Config: &cri.ContainerConfig{
					Metadata: &cri.ContainerMetadata{Name: "c", Attempt: uint32(i)}, Image: &cri.ImageSpec{Image: node.Stamp}, Args: []string{"forever"}, Annotations: words,
				},
			})
			select {
			case made <- err:
			case <-t.Context().Done():
				return
			}
		}
	}()
	i := 0
	one := func() {
		t.Helper()
		if err := wait.Receive(t, fmt.Sprint("container ", i), made); err != nil {
			t.Fatalf("container %d: %v", i, err)
		}
		i++
	}
	for i < held {
		one()
	}
	if _, err := n.Runtime.ListContainers(t.Context(), &cri.ListContainersRequest{}); err != nil {
		t.Error(err)
	}
	a.killNow()
	for i < others { // more than the buffers hold: the runtime has waited
		one()
	}
	s.untouched("keep", kept)
	s.write("new.yaml", simple("new"))
	s.serve()
	s.awaitReady("new", true)
	s.awaitReady("keep", true)
	s.untouched("keep", kept)
	_, stop := n.Runtime.StopPodSandbox(t.Context(), &cri.StopPodSandboxRequest{PodSandboxId: box.PodSandboxId})
	_, remove := n.Runtime.RemovePodSandbox(t.Context(), &cri.RemovePodSandboxRequest{PodSandboxId: box.PodSandboxId})
	if err := errors.Join(stop, remove); err != nil {
		t.Error(err)
	}
}

// TestF84_RotationLosesNoLine: logs that grow while they are rotated keep every line once, in
// order, over all their files. A log file that is deleted, or is a link to elsewhere, causes
// no errors.
//
// Shows: F84
func TestF84_RotationLosesNoLine(t *testing.T) {
	s := parallelStage(t)
	const lines = 2200 // logs are looked at every ten seconds
	s.write("chatty.yaml", manifest("chatty", []string{
		container("main", fmt.Sprintf("count, %q, 10ms, print, done, forever", fmt.Sprint(lines)), secret),
		container("fast", fmt.Sprintf("count, %q, 0s, print, done, count, %q, 10ms, forever", "4000", fmt.Sprint(lines))),
	}))
	s.write("away.yaml", manifest("away", []string{container("main", fmt.Sprintf("count, %q, 10ms, forever", fmt.Sprint(lines)))}))
	s.write("link.yaml", manifest("link", []string{container("main", fmt.Sprintf("count, %q, 10ms, forever", fmt.Sprint(lines)))}))
	a := s.serve("--container-log-max-size", "8Ki", "--container-log-max-files", "20")
	was := s.awaitRunning("chatty", "main", "fast")
	s.awaitRunning("away", "main")
	s.awaitRunning("link", "main")
	dir := func(pod, container string) string {
		return filepath.Join(s.logs, "default_"+s.full(pod)+"_"+s.uid(pod), container)
	}
	if err := os.RemoveAll(dir("away", "main")); err != nil {
		t.Fatal(err)
	}
	precious := filepath.Join(s.scratch, "precious")
	link := filepath.Join(dir("link", "main"), "0.log")
	err := os.WriteFile(precious, bytes.Repeat([]byte("precious\n"), 4<<10), 0o600)
	if err == nil {
		err = errors.Join(os.Remove(link), os.Symlink(precious, link))
	}
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{"main": lines, "fast": 4000} {
		// A rotation under way is no loss: files are renamed while the test reads them, and
		// one exists twice while it is compressed.
		s.eventually(func() error {
			files, err := filepath.Glob(filepath.Join(dir("chatty", name), "*"))
			if err != nil {
				return err
			}
			numbers, done, err := numbersOf(files)
			switch {
			case err != nil:
				return fmt.Errorf("container %s: %w", name, err)
			case !done:
				return fmt.Errorf("container %s still writes, or its last line is lost", name)
			case len(files) < 3:
				return fmt.Errorf("container %s: files %v, want rotated ones", name, files)
			case len(numbers) < want:
				return fmt.Errorf("container %s: %d lines, want %d", name, len(numbers), want)
			}
			for i, n := range numbers[:want] {
				if n != i+1 {
					return fmt.Errorf("container %s: line %d is in place %d", name, n, i+1)
				}
			}
			return nil
		})
	}
	s.untouched("chatty", was)
	for _, pod := range []string{"away", "link"} {
		if c := s.containers(pod); len(c) != 1 || c[0].State != cri.ContainerState_CONTAINER_RUNNING {
			t.Errorf("pod %s: %v", pod, c)
		}
	}
	if text, err := os.ReadFile(precious); err != nil || len(text) != 4<<10*len("precious\n") {
		t.Errorf("what the link leads to has %d bytes: %v", len(text), err)
	}
	if said := a.linesWith("level=WARN", s.full("away")); len(said) > 0 {
		t.Errorf("of a log that is not there: %v", said)
	}
	s.invariants()
	for _, f := range s.files() {
		s.remove(f)
	}
	for _, pod := range []string{"chatty", "away", "link"} {
		s.awaitGone(pod)
	}
	s.nothingLeft()
}

// numbersOf returns the numbers of the lines in a container's logs, the oldest first: rotated
// files by their time, then the current one; and whether the container had printed all.
func numbersOf(files []string) (all []int, done bool, err error) {
	slices.SortFunc(files, func(a, b string) int {
		if (len(a) < len(b)) != (len(b) < len(a)) && (strings.HasSuffix(a, ".log") || strings.HasSuffix(b, ".log")) {
			return len(b) - len(a) // the current one has the shortest name
		}
		return strings.Compare(a, b)
	})
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err == nil && strings.HasSuffix(f, ".gz") {
			var z *gzip.Reader
			if z, err = gzip.NewReader(bytes.NewReader(text)); err == nil {
				text, err = io.ReadAll(z)
			}
		}
		if err != nil {
			return nil, false, err
		}
		done = done || strings.Contains(string(text), "F done\n")
		for line := range strings.Lines(string(text)) {
			if m := counted.FindStringSubmatch(line); m != nil {
				n, _ := strconv.Atoi(m[1])
				all = append(all, n)
			}
		}
	}
	return all, done, nil
}

// TestF81_ManyCommands: of many commands that hang, no more run at once than the limits of
// the node and of a pod allow. Other work continues, and no command is left after its
// timeout.
//
// Shows: F81
func TestF81_ManyCommands(t *testing.T) {
	s := parallelStage(t)
	p := s.through(criproxy.Hooks{})
	var now, most atomic.Int32
	held := p.Fault(criproxy.Rule{Method: "ExecSync", Hang: true})
	const pods, each = 5, 4 // with two commands a container: 40
	probe := func(kind string, timeout int) string {
		return fmt.Sprintf("%s: {exec: {command: [/app, forever, asked]}, periodSeconds: 1, timeoutSeconds: %d, failureThreshold: 99}", kind, timeout)
	}
	for i := range pods {
		var list []string
		for j := range each {
			list = append(list, container(fmt.Sprint("c", j), "forever", probe("readinessProbe", 20), probe("livenessProbe", 20)))
		}
		name := fmt.Sprint("p", i)
		s.write(name+".yaml", manifest(name, list, "hostNetwork: true"))
	}
	s.serve()
	running := func() map[string]int {
		count := make(map[string]int)
		for _, c := range held.Calls() {
			if c.Ended.IsZero() {
				count[c.Pod]++
				count[""]++
			}
		}
		return count
	}
	s.eventually(func() error {
		n := running()
		now.Store(int32(n[""]))
		most.Store(max(most.Load(), now.Load()))
		for pod, n := range n {
			if pod != "" && n > 8 {
				t.Errorf("%d commands of pod %s run at once", n, pod)
			}
		}
		if now.Load() < 32 {
			return fmt.Errorf("%d commands run at once", now.Load())
		}
		return nil
	})
	s.write("next.yaml", simple("next"))
	s.awaitReady("next", true)
	s.remove("next.yaml")
	s.awaitGone("next")
	if n := running()[""]; max(n, int(most.Load())) > 32 {
		t.Errorf("%d commands run at once", max(n, int(most.Load())))
	}
	for i := range pods - 1 {
		s.remove(fmt.Sprint("p", i, ".yaml"))
	}
	for i := range pods - 1 {
		s.awaitGone(fmt.Sprint("p", i))
	}
	last := fmt.Sprint("p", pods-1)
	s.eventually(func() error { // those of removed pods have been cancelled
		for pod, n := range running() {
			if pod != "" && pod != s.full(last) && n > 0 {
				return fmt.Errorf("%d commands of pod %s are still waited for", n, pod)
			}
		}
		return nil
	})

	// And now without faults: eight commands of the last pod, a second each.
	var list []string
	for j := range each {
		list = append(list, container(fmt.Sprint("c", j), "forever", probe("readinessProbe", 1), probe("livenessProbe", 1)))
	}
	held.Lift()
	watch := p.Fault(criproxy.Rule{Method: "ExecSync"})
	s.write(last+".yaml", manifest(last, list, "hostNetwork: true"))
	s.eventually(func() error {
		if n := len(watch.Calls()); n < 24 {
			return fmt.Errorf("%d commands ran", n)
		}
		return nil
	})
	var names []string
	for j := range each {
		names = append(names, fmt.Sprint("c", j))
	}
	was := s.awaitRunning(last, names...)
	s.eventually(func() error { // some may be exiting; leaked ones would be seen each time
		commands := 0
		for _, r := range was {
			for _, p := range s.node.Processes(r.id) {
				if slices.Contains(p.Args, "asked") { // and not the process that starts it
					commands++
				}
			}
		}
		if commands > 8 {
			return fmt.Errorf("%d commands live in a pod that may have 8", commands)
		}
		return nil
	})
	// Without probes, only the containers are left.
	list = nil
	for j := range each {
		list = append(list, container(fmt.Sprint("c", j), "forever"))
	}
	s.write(last+".yaml", manifest(last, list, "hostNetwork: true"))
	s.eventually(func() error {
		now, err := s.runningNow(last, slices.Clone(names)...)
		for name, r := range now {
			if all := s.node.Processes(r.id); len(all) != 1 {
				err = errors.Join(err, fmt.Errorf("container %s has processes %v", name, all))
			}
		}
		return err
	})
}

// TestF22_HungAndSlowPodsDelayNoOther: the calls of one pod hang from the first on, those of
// another while it runs, and each call of a third takes two seconds. Other pods start and
// restart as fast as without them, and the agent does not pile up waiting work.
//
// Shows: F22
func TestF22_HungAndSlowPodsDelayNoOther(t *testing.T) {
	t.Parallel()
	bad := newStage(t, shared)
	p := bad.through(criproxy.Hooks{})
	a := bad.serve()
	bad.write("stuck.yaml", simple("stuck"))
	stuck := bad.awaitRunning("stuck", "main")["main"]
	bad.awaitReady("stuck", true)

	var hung []*criproxy.Fault
	for _, name := range []string{"hung", "stuck"} {
		hung = append(hung, p.Fault(criproxy.Rule{Pod: bad.full(name), Hang: true}))
	}
	slow := p.Fault(criproxy.Rule{Pod: bad.full("slow"), Delay: 2 * time.Second})
	asked := func(f *criproxy.Fault) {
		t.Helper()
		bad.happens(f, 1)
	}
	bad.crash(stuck.id)
	bad.write("hung.yaml", simple("hung"))
	for _, f := range hung {
		asked(f)
	}
	bad.write("slow.yaml", simple("slow"))
	asked(slow)
	const samples = 5
	for i := range samples {
		name := fmt.Sprint("p", i)
		bad.write(name+".yaml", simple(name))
		bad.crash(bad.awaitLives(name, 1)[0].id)
		bad.awaitLives(name, 2)
		bad.remove(name + ".yaml")
	}
	// No call is under way when the agent exits.
	for i := range samples {
		bad.awaitGone(fmt.Sprint("p", i))
	}
	bad.awaitReady("slow", true)
	// A Go program that gets SIGQUIT prints the stack of each goroutine.
	a.asked.Store(true)
	if err := a.cmd.Process.Signal(syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	<-a.done
	a.read.Wait()
	if n := len(regexp.MustCompile(`(?m)^goroutine \d+`).FindAllString(a.said(), -1)); n == 0 || n > 100 {
		t.Errorf("the agent had %d goroutines with three pods in trouble", n)
	}
	a.dropStacks() // many goroutines wait at the same place, which I5 would count
	for _, f := range append(hung, slow) {
		f.Lift()
	}
	bad.serve()
	for _, name := range []string{"hung", "slow", "stuck"} {
		bad.awaitReady(name, true)
	}
}

// TestF23_SlowRuntime_TwoSeconds: as TestF23_SlowRuntime, but every call takes two seconds.
//
// Shows: F23
func TestF23_SlowRuntime_TwoSeconds(t *testing.T) { parallelStage(t).slowRuntime(2 * time.Second) }

// TestC_1_37_SubPathRace_ManyTurns: as TestC_1_37_SubPathRace, five times as often. More
// turns would make the agent log one line more often than I5 allows.
//
// Shows: C-1.37
func TestC_1_37_SubPathRace_ManyTurns(t *testing.T) { parallelStage(t).subPathRace(20) }

// TestF47_F49_StormsAndFlips: many touches beside good manifests, thousands of files, and one
// file that is removed and restored with the same content again and again. The result is the
// desired set at the end: one pod, one container, and never two at once.
//
// Shows: F47, F49
func TestF47_F49_StormsAndFlips(t *testing.T) {
	s := parallelStage(t)
	s.write("web.yaml", simple("web"))
	s.serve()
	kept := s.keep()
	s.awaitRunning("web", "main")
	for i := range 2000 {
		path := filepath.Join(s.manifests, fmt.Sprintf("note-%c%c.yaml", 'a'+i%50/10, 'a'+i%10)) // each its own in the log (I5)
		s.must(os.WriteFile(path, []byte("# nothing\n"), 0o600))
		if i%3 == 0 {
			s.must(os.Remove(path))
		}
	}
	// Thousands of files stay there: the agent sees an edit among them at once (F48).
	for i := range 3000 {
		name := fmt.Sprintf("config%d", i)
		text := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + "}\n"
		s.must(os.WriteFile(filepath.Join(s.manifests, name+".yaml"), []byte(text), 0o600))
	}
	s.write("web.yaml", labelled(simple("web"), "among-thousands"))
	s.awaitLabel("web", "among-thousands")
	s.untouched("keep", kept)
	s.excuse("web") // an edit may end a container that has just started
	for i := range 20 {
		s.remove("web.yaml")
		if i%3 == 0 { // longer than an editor's replacement takes, else shorter
			s.awaitEnded("web", "main", len(s.ended("web", "main"))+1)
		}
		s.write("web.yaml", simple("web"))
		if i%3 < 2 {
			s.awaitRunning("web", "main")
		}
	}
	s.write("web.yaml", labelled(simple("web"), "last"))
	s.awaitLabel("web", "last")
	web := s.awaitRunning("web", "main")
	s.awaitReady("web", true)
	s.untouched("web", web)
	s.sandbox("web") // exactly one is left
	s.untouched("keep", kept)
	s.remove("web.yaml")
	s.awaitGone("web")
	s.untouched("keep", kept)
}
