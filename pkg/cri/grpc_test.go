package cri_test

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/test/wait"
)

// These tests run over a real gRPC connection on a unix socket.

func dial(t testing.TB, cfg cri.Config) *cri.Runtime {
	t.Helper()
	cfg.Node = "n1"
	r, err := cri.Dial(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// Shows: F20
func TestF20_SocketAbsentThenThere(t *testing.T) {
	t.Parallel()
	rt := critest.New()
	endpoint := critest.Serve(t, rt)
	rt.Crash()
	r := dial(t, cri.Config{Endpoint: endpoint, Timeouts: cri.Timeouts{Read: 2 * time.Minute}})
	_, err := r.Ready(t.Context())
	if !errors.Is(err, cri.ErrUnavailable) { // not ErrTimeout: the call does not wait
		t.Fatalf("error %v", err)
	}
	if want := "container runtime at " + endpoint + " does not answer: connect: no such file or directory"; err.Error() != want {
		t.Errorf("error %q, want %q", err, want)
	}
	if err := rt.Restart(); err != nil {
		t.Fatal(err)
	}
	wait.NoError(t, func() error { _, err := r.Ready(t.Context()); return err })
}

// After a restart of the runtime the client reconnects within a second.
//
// Shows: F21
func TestF21_RestartedRuntimeIsFoundWithinASecond(t *testing.T) {
	t.Parallel()
	rt := critest.New()
	endpoint := critest.Serve(t, rt)
	r := dial(t, cri.Config{Endpoint: endpoint})
	start(t, r, wanted("web", "sleep"), 0)
	rt.Crash()
	if _, err := r.Pods(t.Context()); !errors.Is(err, cri.ErrUnavailable) {
		t.Fatalf("error %v", err)
	}

	// Another server listens meanwhile, and hangs up at once. It runs outside of the
	// bubble, whose time would stand still while it waits.
	l, err := net.Listen("unix", strings.TrimPrefix(endpoint, "unix://"))
	if err != nil {
		t.Fatal(err)
	}
	var tries atomic.Int32
	var wg sync.WaitGroup
	wg.Go(func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			tries.Add(1)
			_ = c.Close()
		}
	})
	synctest.Test(t, func(t *testing.T) {
		r := dial(t, cri.Config{Endpoint: endpoint})
		for range 1000 { // a hundred seconds
			if _, err := r.Pods(t.Context()); !errors.Is(err, cri.ErrUnavailable) {
				t.Fatalf("error %v", err)
			}
			time.Sleep(100 * time.Millisecond)
		}
	})
	_ = l.Close()
	wg.Wait()
	if n := tries.Load(); n < 75 || n > 130 { // a fifth of jitter; asked every 100 ms
		t.Errorf("tried %d times in a hundred seconds", n)
	}

	if err := rt.Restart(); err != nil {
		t.Fatal(err)
	}
	wait.NoError(t, func() error {
		all, err := r.Pods(t.Context())
		if err == nil && (len(all) != 1 || len(all[0].Containers) != 1) {
			t.Fatalf("after the restart: %+v", all)
		}
		return err
	})
}

func TestCallsOverGRPC(t *testing.T) {
	t.Parallel()
	rt := critest.New()
	var mu sync.Mutex
	calls := map[string]int{}
	r := dial(t, cri.Config{Endpoint: critest.Serve(t, rt), OnCall: func(m string) {
		mu.Lock()
		defer mu.Unlock()
		calls[m]++
	}})
	l := start(t, r, wanted("web", "sleep", "sleep"), 0)
	calls = map[string]int{}
	if _, err := r.Pods(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(calls), "map[ContainerStatus:2 ListContainers:1 ListPodSandbox:1 PodSandboxStatus:1]"; got != want {
		t.Errorf("one look: %s, want %s", got, want)
	}
	if _, _, err := r.ExecSync(t.Context(), l.containers["c0"], []string{"sleep", "60"}, time.Second); !errors.Is(err, cri.ErrExecTimeout) {
		t.Errorf("exec: %v", err)
	}
	if err := r.StopContainer(t.Context(), l.containers["c0"], time.Second); err != nil {
		t.Error(err)
	}
	if err := r.RemoveSandbox(t.Context(), l.sandbox); err != nil {
		t.Error(err)
	}
	if got := rt.State(); got != "" {
		t.Errorf("left over:\n%s", got)
	}
}

// A command that prints without end costs the agent 16 MiB and no more, which is the kubelet's
// limit too: the answer is refused before it is read. One below it keeps its exit code.
//
// Shows: D2, C-1.29.13
func TestExecSync_EndlessOutput_IsRefusedUnread(t *testing.T) {
	t.Parallel()
	rt := critest.New()
	var printed string
	rt.OnExec(func(critest.Exec) (critest.Behaviour, bool) {
		return critest.Behaviour{Ends: true, Code: 3, Output: printed}, true
	})
	r := dial(t, cri.Config{Endpoint: critest.Serve(t, rt)})
	l := start(t, r, wanted("web", "sleep"), 0)
	for size, refused := range map[int]bool{15 << 20: false, 16<<20 + 1: true, 40 << 20: true} {
		printed = strings.Repeat("x", size)
		code, out, err := r.ExecSync(t.Context(), l.containers["c0"], []string{"yes"}, time.Minute)
		if refused && (err == nil || !strings.Contains(err.Error(), "16 MiB")) || !refused && (err != nil || code != 3 || len(out) != size) {
			t.Errorf("%d bytes: exit code %d, %d bytes, %v", size, code, len(out), err)
		}
	}
}

func TestHungCallOverGRPC(t *testing.T) {
	t.Parallel()
	rt := critest.New()
	r := dial(t, cri.Config{Endpoint: critest.Serve(t, rt), Timeouts: cri.Timeouts{Call: 200 * time.Millisecond}})
	rt.Fault(critest.Fault{Method: "RunPodSandbox", Hang: true})
	_, err := r.RunSandbox(t.Context(), pod.SandboxRequest{Want: wanted("web", "sleep"), Instance: 1, Attempt: 0})
	if !errors.Is(err, cri.ErrTimeout) || !strings.Contains(err.Error(), "did not answer RunPodSandbox within 200ms") {
		t.Errorf("error %v", err)
	}
}

func TestNoEventsOverGRPC(t *testing.T) {
	t.Parallel()
	rt := critest.New()
	rt.NoEvents()
	r := dial(t, cri.Config{Endpoint: critest.Serve(t, rt)})
	var last error
	for _, err := range r.Events(t.Context()) {
		last = err
	}
	if !errors.Is(last, errors.ErrUnsupported) {
		t.Errorf("error %v", last)
	}
}

// Lists of very many containers exceed gRPC's 4 MiB and CRI's usual 16 MiB.
//
// Shows: F24
func TestF24_ListsPast16MiB(t *testing.T) {
	t.Parallel()
	rt := critest.New()
	// Two busy cores need more than the usual ten seconds for such a list.
	r := dial(t, cri.Config{Endpoint: critest.Serve(t, rt), Timeouts: cri.Timeouts{Read: 10 * time.Minute}})
	want := wanted("web", "sleep")
	want.Pod.Annotations = map[string]string{"padding": strings.Repeat("x", 3<<20)}
	for i := range uint32(6) {
		id, err := r.RunSandbox(t.Context(), pod.SandboxRequest{Want: want, Instance: 1, Attempt: i})
		if err != nil {
			t.Fatal(err)
		}
		if err := r.StopSandbox(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	if m, err := r.Relist(t.Context()); err != nil || len(m) != 1 {
		t.Errorf("Relist: %d pods, %v", len(m), err)
	}
}

func TestFiftyPodsAreReadOverGRPC(t *testing.T) {
	rt := critest.New()
	r := dial(t, cri.Config{Endpoint: critest.Serve(t, rt)})
	for i := range 50 {
		start(t, r, wanted(fmt.Sprintf("p%d", i), "sleep"), 0)
	}
	if all, err := r.Pods(t.Context()); err != nil || len(all) != 50 {
		t.Fatalf("%d pods, %v", len(all), err)
	}
}

func TestUnimplementedServiceIsExplained(t *testing.T) {
	rt := critest.New()
	r := dial(t, cri.Config{Endpoint: critest.Serve(t, rt)})
	rt.Fault(critest.Fault{Err: status.Error(codes.Unimplemented, "unknown service runtime.v1.RuntimeService")})
	_, err := r.Ready(t.Context())
	if err == nil || !strings.Contains(err.Error(), "does not support CRI v1") {
		t.Errorf("error %v", err)
	}
}
