package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	adapter "github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/logs"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/test/node"
)

// A bare is a pod that a test starts and stops through the runtime adapter, without an agent.
// It shows how the adapter works on a real containerd.
type bare struct {
	*stage
	rt      *adapter.Runtime
	want    *pod.Spec
	sandbox *pod.Sandbox
	links   string
}

// newBare makes a pod's sandbox. Containers are made by run.
func newBare(s *stage, name string, containers ...v1.Container) *bare {
	s.Helper()
	b := &bare{stage: s, links: filepath.Join(s.dir, "containers")}
	rt, err := adapter.Dial(adapter.Config{
		Endpoint: s.node.Endpoint, Node: s.name, RootDir: s.root, PodLogsDir: s.logs, ContainerLogsDir: b.links, CgroupParent: s.node.CgroupParent,
	})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = rt.Close() })
	b.rt = rt
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: s.full(name), UID: types.UID("uid-" + s.full(name))}}
	for _, c := range containers {
		c.Image, c.ImagePullPolicy, c.TerminationMessagePath = node.Stamp, v1.PullIfNotPresent, "/dev/termination-log"
		p.Spec.Containers = append(p.Spec.Containers, c)
	}
	b.want = &pod.Spec{Key: pod.KeyOf(p), Pod: p, Hash: "v1-x", SandboxHash: "v1-x", ContainerHashes: map[string]string{}}
	id, err := rt.RunSandbox(s.Context(), pod.SandboxRequest{Want: b.want, Instance: 1, Attempt: 0})
	if err != nil {
		s.Fatal(err)
	}
	b.sandbox = &pod.Sandbox{ID: id, Instance: 1}
	return b
}

// run makes and starts a container of the pod, and returns its ID.
func (b *bare) run(name string) string {
	b.Helper()
	id, err := b.rt.CreateContainer(b.Context(), pod.CreateRequest{Want: b.want, Container: name, Sandbox: b.sandbox})
	if err == nil {
		err = b.rt.StartContainer(b.Context(), id)
	}
	if err != nil {
		b.Fatal(err)
	}
	return id
}

// ended returns a container when it has exited.
func (b *bare) ended(name string) (c pod.Container) {
	b.Helper()
	b.eventually(func() error {
		a, err := b.rt.Pod(b.Context(), b.want.Key)
		if c = a.Containers[name]; err == nil && c.State != pod.StateExited {
			err = fmt.Errorf("container %s is %s", name, c.State)
		}
		return err
	})
	return c
}

func (b *bare) logFile(name string) string {
	return filepath.Join(b.logs, b.want.Namespace+"_"+b.want.Name+"_"+b.want.UID(), name, "0.log")
}

// logged waits until a log file contains text.
func (b *bare) logged(path, text string) {
	b.Helper()
	b.eventually(func() error {
		got, err := os.ReadFile(path)
		if err == nil && !strings.Contains(string(got), text) {
			err = fmt.Errorf("%s lacks %q: %q", path, text, got)
		}
		return err
	})
}

// TestC_1_26_11_MessagesOfARealRuntime: the adapter reads a container's termination message,
// or its log if that is empty; both are removed with the container.
//
// Shows: C-1.26.11
func TestC_1_26_11_MessagesOfARealRuntime(t *testing.T) {
	fallback := v1.TerminationMessageFallbackToLogsOnError
	b := newBare(parallelStage(t), "message",
		v1.Container{Name: "says", Args: []string{"write", "/dev/termination-log", "no database", "exit", "3"}},
		v1.Container{Name: "logs", Args: []string{"print", "the last words", "exit", "4"}, TerminationMessagePolicy: fallback},
		v1.Container{Name: "fine", Args: []string{"print", "the last words"}, TerminationMessagePolicy: fallback},
		v1.Container{Name: "cannot", Command: []string{"/no-such-command"}},
	)
	for _, name := range []string{"says", "logs", "fine"} {
		b.run(name)
	}
	id, err := b.rt.CreateContainer(b.Context(), pod.CreateRequest{Want: b.want, Container: "cannot", Sandbox: b.sandbox})
	if err == nil {
		err = b.rt.StartContainer(b.Context(), id)
	}
	if start := (*pod.StartError)(nil); !errors.As(err, &start) || start.Reason != "RunContainerError" {
		t.Errorf("a missing command: %v", err)
	}
	says := b.ended("says")
	if says.Message != "no database\n" || says.ExitCode != 3 {
		t.Errorf("%+v", says)
	}
	if c := b.ended("logs"); !strings.HasPrefix(c.Message, "started ") || !strings.HasSuffix(c.Message, "\nthe last words\n") || c.ExitCode != 4 {
		t.Errorf("%+v", c)
	}
	if c := b.ended("fine"); c.Message != "" || c.Reason != "Completed" {
		t.Errorf("%+v", c)
	}
	if c := b.ended("cannot"); c.Reason != "StartError" || !strings.Contains(c.Message, "no-such-command") {
		t.Errorf("%+v", c)
	}
	link := filepath.Join(b.links, b.want.Name+"_default_says-"+says.ID+".log")
	b.logged(link, " stdout F started ")
	files := []string{link, b.logFile("says"), filepath.Join(b.root, "pods", b.want.UID(), "containers", "says", "0")}
	for _, path := range files {
		if _, err := os.Lstat(path); err != nil {
			t.Error(err)
		}
	}
	if err := b.rt.RemoveContainer(t.Context(), says.ID, false); err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		if _, err := os.Lstat(path); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", path, err)
		}
	}
}

// TestC_1_43_1_RotationOfARealRuntime: the log is renamed, later lines are in a new file, and
// no line is lost; the adapter undoes a rotation that the runtime cannot follow.
//
// Shows: C-1.43.1
func TestC_1_43_1_RotationOfARealRuntime(t *testing.T) {
	s := parallelStage(t)
	b := newBare(s, "rotate", v1.Container{Name: "main", Args: []string{"print", "one", "wait", "/x/go", "print", "two", "forever"}})
	id, err := b.rt.CreateContainer(t.Context(), pod.CreateRequest{
		Want: b.want, Container: "main", Sandbox: b.sandbox, Mounts: []pod.Mount{{HostPath: s.scratch, ContainerPath: "/x"}},
	})
	if err == nil {
		err = b.rt.StartContainer(t.Context(), id)
	}
	if err != nil {
		t.Fatal(err)
	}
	log := b.logFile("main")
	b.logged(log, " F one\n")
	r := logs.New(logs.Config{Dir: s.logs, MaxSize: 1})
	reopen := func(ctx context.Context) error { return b.rt.ReopenLog(ctx, id) }
	if err := r.Rotate(t.Context(), log, reopen); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.scratch, "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	b.logged(log, " F two\n")
	rotated, err := filepath.Glob(log + ".*")
	if err != nil || len(rotated) != 1 {
		t.Fatalf("rotated: %v, %v", rotated, err)
	}
	b.logged(rotated[0], " F one\n")
	if text, err := os.ReadFile(log); err != nil || strings.Contains(string(text), " F one\n") {
		t.Errorf("the new log: %q, %v", text, err)
	}

	if err := b.rt.StopContainer(t.Context(), id, time.Second); err != nil {
		t.Fatal(err)
	}
	b.ended("main")
	if err := r.Rotate(t.Context(), log, reopen); err == nil {
		t.Error("the log of an exited container was rotated")
	}
	b.logged(log, " F two\n")
	if err := b.rt.RemoveContainer(t.Context(), id, false); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(filepath.Dir(log)); err != nil || len(left) != 0 {
		t.Errorf("left of the logs: %v, %v", left, err)
	}
}

// TestEphemeralContainerSeesItsTarget: it is in the process namespace of its target
// container.
//
// Shows: C-1.19.4
func TestEphemeralContainerSeesItsTarget(t *testing.T) {
	b := newBare(parallelStage(t), "debug", v1.Container{Name: "main", Args: []string{"forever"}}, v1.Container{Name: "other", Args: []string{"forever"}})
	b.want.Pod.Spec.EphemeralContainers = []v1.EphemeralContainer{{
		EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "debug", Image: node.Stamp, ImagePullPolicy: v1.PullNever, Args: []string{"forever"}},
		TargetContainerName:      "main",
	}}
	b.want.Pod.Spec.InitContainers = []v1.Container{{
		Name: "side", Image: node.Stamp, Args: []string{"forever"}, RestartPolicy: ptr.To(v1.ContainerRestartPolicyAlways),
	}}
	namespace := map[string]string{}
	for _, name := range []string{"side", "main", "other", "debug"} {
		processes := b.node.Processes(b.run(name))
		if len(processes) == 0 {
			t.Fatalf("%s has no process", name)
		}
		ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", processes[0].Pid))
		if err != nil {
			t.Fatal(err)
		}
		namespace[name] = ns
	}
	if namespace["debug"] != namespace["main"] || namespace["debug"] == namespace["other"] || namespace["debug"] == namespace["side"] {
		t.Errorf("process namespaces: %v", namespace)
	}
}
