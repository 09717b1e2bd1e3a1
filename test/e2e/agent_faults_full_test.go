//go:build full

package e2e

import (
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	adapter "github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/test/criproxy"
	"github.com/nodectl/nodectl/test/wait"
)

// TestF3_ReplyOfRunPodSandboxIsLost: the runtime has made a sandbox, and its connection
// breaks before it answers. The agent adopts that sandbox and makes no second one.
//
// Shows: F3
func TestF3_ReplyOfRunPodSandboxIsLost(t *testing.T) {
	s := parallelStage(t)
	sock := filepath.Join(s.scratch, "cri.sock")
	s.endpoint = "unix://" + sock
	made, gone := make(chan struct{}), make(chan struct{})
	var once sync.Once
	front := s.proxy(sock, criproxy.Hooks{After: func(c criproxy.Call, _ error) {
		if c.Method == "RunPodSandbox" {
			once.Do(func() { close(made) })
			<-gone // the answer never arrives
		}
	}})
	s.write("web.yaml", simple("web"))
	a := s.serve()
	wait.Receive(t, "the call for a sandbox", made)
	box := s.sandbox("web").Id
	closed := make(chan error, 1)
	go func() { closed <- front.Close() }()
	a.await("Container runtime is not ready")
	close(gone)
	s.must(<-closed)
	again := s.through(criproxy.Hooks{})
	s.awaitReady("web", true)
	if now := s.sandbox("web").Id; now != box {
		t.Errorf("the sandbox was %s, is %s", box, now)
	}
	if got := strings.Join(again.Mutations(), " "); got != "CreateContainer StartContainer" {
		t.Errorf("calls after the loss: %s", got)
	}
	s.awaitBegun(1)
}

// TestF3_SandboxAfterItsDeadline: the runtime creates a sandbox and answers after the
// client's deadline. The client finds the sandbox by its labels. Another request for the same
// sandbox returns the same one.
//
// Shows: F3
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
		Timeouts: adapter.Timeouts{Call: 20 * time.Second}, // more than any sandbox takes
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rt.Close() })
	if err := b.rt.StopSandbox(t.Context(), b.sandbox.ID); err != nil {
		t.Fatal(err)
	}
	late, err := rt.RunSandbox(t.Context(), pod.SandboxRequest{Want: b.want, Instance: 1, Attempt: 1})
	if err != nil {
		t.Fatal(err)
	}
	free()
	again, err := rt.RunSandbox(t.Context(), pod.SandboxRequest{Want: b.want, Instance: 1, Attempt: 1})
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
