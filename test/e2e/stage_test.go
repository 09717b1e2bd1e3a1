package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/sink/journal"
	"github.com/nodectl/nodectl/test/criproxy"
	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/wait"
)

// A stage has the private objects of one scenario: a node name, directories, and the agents it
// starts.
type stage struct {
	*testing.T
	node      *node.Node
	name      string // of the node: pods are called <pod>-<name>
	dir       string // holds all of these
	root      string
	manifests string
	logs      string
	scratch   string // for hostPath volumes and sockets
	endpoint  string // for the commands; "" is front, made when it is needed
	front     *criproxy.Proxy
	lives     *witness // of node
	often     bool     // its agents are oftenSynced
	nextBuild string   // of the program, for upgraded

	promised // input of invariants
	belongings
}

var stages atomic.Int32

// parallelStage is newStage on the shared node, for a parallel test.
func parallelStage(t *testing.T) *stage {
	t.Parallel()
	return newStage(t, shared)
}

// newStage makes a stage. At the end of the test, while its last agent runs, all invariants
// are checked (see invariants); then its pods are removed by CRI, and nothing else of it may
// be left.
func newStage(t *testing.T, n *node.Node) *stage {
	t.Helper()
	name := fmt.Sprintf("e%d", stages.Add(1))
	dir := filepath.Join(filepath.Dir(n.RootDir), name)
	s := &stage{
		T: t, node: n, name: name, dir: dir,
		root: filepath.Join(dir, "root"), manifests: filepath.Join(dir, "manifests"),
		logs: filepath.Join(dir, "logs"), scratch: filepath.Join(dir, "scratch"), lives: lives,
	}
	for _, d := range []string{s.manifests, s.scratch} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if n != shared {
		var err error
		if s.lives, err = observe(n); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.lives.close)
	}
	t.Cleanup(s.clear)
	return s
}

// clear ends the processes that the scenario left, and fails for forbidden remains.
func (s *stage) clear() {
	s.judge()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	for _, line := range s.lives.twice(s.name) {
		s.Error(line)
	}
	if s.Failed() {
		s.Logf("in the end:\n%s", s.everything(ctx))
	}
	boxes, err := s.node.Runtime.ListPodSandbox(ctx, s.ours())
	if err != nil {
		s.Errorf("take the pods away: %v", err)
	}
	for _, b := range boxes.GetItems() {
		_, stop := s.node.Runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: b.Id})
		_, remove := s.node.Runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: b.Id})
		if err := errors.Join(stop, remove); err != nil {
			s.Errorf("take pod %s away: %v", b.Metadata.GetName(), err)
		}
	}
	for _, m := range slices.Backward(node.Mounts()) {
		switch {
		case strings.HasPrefix(m, s.root+"/pods/"): // volumes of the pods that clear has removed
			s.must(unix.Unmount(m, unix.MNT_DETACH))
		case strings.HasPrefix(m, s.dir+"/"):
			s.Errorf("mount left behind: %s", m)
		}
	}
	s.node.RemovePodGroups(s.name)
	s.node.RemoveTiers(s.name)
	if err := os.RemoveAll(s.dir); err != nil {
		s.Error(err)
	}
	s.nothingIsLeft()
}

// everything describes the state of the stage's pods, for the search for a failure's cause.
func (s *stage) everything(ctx context.Context) string {
	var b strings.Builder
	if r, err := s.node.Runtime.ListPodSandbox(ctx, s.ours()); err == nil {
		for _, box := range r.Items {
			fmt.Fprintf(&b, "sandbox %.12s %s attempt %d %s\n", box.Id, box.Metadata.Name, box.Metadata.Attempt, box.State)
		}
	}
	for _, l := range s.lives.of(s.name) {
		fmt.Fprintf(&b, "%s from %s to %s: %d %s\n", l, l.from.Format(clock), l.to.Format(clock), l.exit, l.reason)
	}
	entries, err := journal.Read(filepath.Join(s.root, "journal.jsonl"))
	for key, e := range entries {
		fmt.Fprintf(&b, "%s: %s\n", key, describe(e.Pod.Status))
	}
	if err != nil {
		fmt.Fprintln(&b, err)
	}
	logs, _ := filepath.Glob(filepath.Join(s.logs, "*/*/*.log"))
	for _, f := range logs {
		text, _ := os.ReadFile(f)
		fmt.Fprintf(&b, "%s:\n%s", strings.TrimPrefix(f, s.logs+"/"), text)
	}
	return b.String()
}

func (s *stage) ours() *cri.ListPodSandboxRequest {
	return &cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{LabelSelector: map[string]string{pod.LabelNode: s.name}}}
}

// through puts a proxy with these hooks before the stage's runtime. Otherwise the first
// command does that, without hooks, so that a scenario knows when a call of its agent is
// under way.
func (s *stage) through(hooks criproxy.Hooks) *criproxy.Proxy {
	s.Helper()
	front := s.proxy(filepath.Join(s.scratch, "cri.sock"), hooks)
	s.front, s.endpoint = front, front.Endpoint()
	s.Cleanup(func() {
		if err := front.Close(); err != nil {
			s.Error(err)
		}
	})
	return front
}

// proxy listens on a socket, which its caller closes. The stage notes the calls for the
// checks at the scenario's end.
func (s *stage) proxy(sock string, hooks criproxy.Hooks) *criproxy.Proxy {
	s.Helper()
	p, err := criproxy.New(s.node.Endpoint, sock, s.noting(hooks))
	if err != nil {
		s.Fatal(err)
	}
	s.listen(p)
	return p
}

// happens returns once a fault has affected n calls.
func (s *stage) happens(f *criproxy.Fault, n int) {
	s.Helper()
	ctx, stop := context.WithTimeout(s.Context(), wait.Limit)
	defer stop()
	if err := f.Await(ctx, n); err != nil {
		s.Fatal(err)
	}
}

// eventually calls f until it returns nil.
func (s *stage) eventually(f func() error, options ...wait.Option) {
	s.Helper()
	wait.NoError(s.T, f, options...)
}

// write writes a manifest as careful programs do: whole, by a rename.
func (s *stage) write(file, text string) {
	s.Helper()
	s.noteWrite(file, text)
	tmp := filepath.Join(s.dir, "."+file)
	err := os.WriteFile(tmp, []byte(text), 0o600)
	if err == nil {
		err = os.Rename(tmp, filepath.Join(s.manifests, file))
	}
	if err != nil {
		s.Fatal(err)
	}
}

// keep starts a pod that a fault of other pods must not touch.
func (s *stage) keep() map[string]running {
	s.Helper()
	s.write("keep.yaml", simple("keep"))
	return s.awaitRunning("keep", "main")
}

func (s *stage) remove(file string) {
	s.Helper()
	s.noteRemove(file)
	if err := os.Remove(filepath.Join(s.manifests, file)); err != nil {
		s.Fatal(err)
	}
}

// manifest returns a pod's manifest; lines are of its spec, beside containers.
func manifest(name string, containers []string, lines ...string) string {
	text := "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + "}\nspec:\n"
	if !strings.Contains(strings.Join(lines, "\n"), "terminationGracePeriodSeconds") {
		text += "  terminationGracePeriodSeconds: 2\n"
	}
	for _, l := range lines {
		text += "  " + l + "\n"
	}
	return text + "  containers:\n  " + strings.Join(containers, "\n  ") + "\n"
}

// container returns a container of the tests' image. more is YAML between
// commas.
func container(name, args string, more ...string) string {
	all := append([]string{"name: " + name, "image: " + node.Stamp, "imagePullPolicy: IfNotPresent", "args: [" + args + "]"}, more...)
	return "- {" + strings.Join(all, ", ") + "}"
}

// simple is the manifest of a pod of one container that runs forever.
func simple(name string) string {
	return manifest(name, []string{container("main", "forever")})
}

// full returns a pod's name on this node.
func (s *stage) full(name string) string { return name + "-" + s.name }

// status returns the last pod that nodectl has reported: nil for none.
func (s *stage) status(name string) *v1.Pod {
	s.Helper()
	all, err := journal.Read(filepath.Join(s.root, "journal.jsonl"))
	if err != nil {
		s.Fatal(err)
	}
	return all[pod.Key{Namespace: "default", Name: s.full(name)}].Pod
}

// awaitStatus returns the status of a pod as soon as ok accepts it.
func (s *stage) awaitStatus(name, what string, ok func(v1.PodStatus) bool, options ...wait.Option) v1.PodStatus {
	s.Helper()
	var last v1.PodStatus
	s.eventually(func() error {
		p := s.status(name)
		if p == nil {
			return fmt.Errorf("pod %s: %s: not reported", name, what)
		}
		if last = p.Status; !ok(last) {
			return fmt.Errorf("pod %s: %s: is %s", name, what, describe(last))
		}
		return nil
	}, options...)
	return last
}

func (s *stage) awaitPhase(name string, phase v1.PodPhase, options ...wait.Option) v1.PodStatus {
	s.Helper()
	return s.awaitStatus(name, "phase "+string(phase), func(st v1.PodStatus) bool { return st.Phase == phase }, options...)
}

// awaitReady returns the status of a pod when its Ready is want.
func (s *stage) awaitReady(name string, want bool) v1.PodStatus {
	s.Helper()
	return s.awaitStatus(name, fmt.Sprintf("ready %v", want), func(st v1.PodStatus) bool { return ready(st) == want })
}

func ready(st v1.PodStatus) bool {
	for _, c := range st.Conditions {
		if c.Type == v1.PodReady {
			return c.Status == v1.ConditionTrue
		}
	}
	return false
}

// describe writes a status on one line.
func describe(st v1.PodStatus) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s ready=%v %s %s", st.Phase, ready(st), st.Reason, st.Message)
	for _, c := range append(st.InitContainerStatuses, st.ContainerStatuses...) {
		fmt.Fprintf(&b, "; %s restarts=%d ", c.Name, c.RestartCount)
		switch {
		case c.State.Waiting != nil:
			fmt.Fprintf(&b, "waiting %s %q", c.State.Waiting.Reason, c.State.Waiting.Message)
		case c.State.Running != nil:
			b.WriteString("running")
		case c.State.Terminated != nil:
			fmt.Fprintf(&b, "terminated %d %s", c.State.Terminated.ExitCode, c.State.Terminated.Reason)
		}
	}
	return b.String()
}

func containerStatus(st v1.PodStatus, name string) v1.ContainerStatus {
	for _, c := range append(st.InitContainerStatuses, st.ContainerStatuses...) {
		if c.Name == name {
			return c
		}
	}
	return v1.ContainerStatus{}
}
