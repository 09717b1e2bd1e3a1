package cri_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/pod"
)

// These run over a real gRPC connection on a unix socket.

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

// until calls f until it is nil or ten seconds have passed.
func until(t *testing.T, f func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for {
		err := f()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatal(err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// stopwatch returns how long it is since it was called, without the pauses in which
// this process did not run: a machine is busy, or stands still.
func stopwatch(t *testing.T) (elapsed func() time.Duration) {
	t.Helper()
	const every, pause = 50 * time.Millisecond, 250 * time.Millisecond
	begin := time.Now()
	var mu sync.Mutex
	var lost time.Duration
	last := begin
	elapsed = func() time.Duration {
		mu.Lock()
		defer mu.Unlock()
		now := time.Now()
		if gap := now.Sub(last); gap > pause {
			lost += gap - every
		}
		last = now
		return now.Sub(begin) - lost
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait() })
	wg.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				elapsed()
			case <-ctx.Done():
				return
			}
		}
	})
	return elapsed
}

func TestF20_SocketAbsentThenThere(t *testing.T) {
	t.Parallel()
	rt := critest.New()
	endpoint := critest.Serve(t, rt)
	rt.Crash()
	r := dial(t, cri.Config{Endpoint: endpoint, Timeouts: cri.Timeouts{Read: 2 * time.Minute}})
	began := time.Now()
	_, err := r.Ready(t.Context())
	if !errors.Is(err, cri.ErrUnavailable) {
		t.Fatalf("error %v", err)
	}
	if want := "container runtime at " + endpoint + " does not answer: connect: no such file or directory"; err.Error() != want {
		t.Errorf("error %q, want %q", err, want)
	}
	if took := time.Since(began); took > time.Minute {
		t.Errorf("it took %s to say so", took)
	}
	if err := rt.Restart(); err != nil {
		t.Fatal(err)
	}
	until(t, func() error { _, err := r.Ready(t.Context()); return err })
}

func TestF21_RestartedRuntimeIsFoundWithinASecond(t *testing.T) {
	t.Parallel()
	rt := critest.New()
	r := dial(t, cri.Config{Endpoint: critest.Serve(t, rt)})
	start(t, r, wanted("web", "sleep"), 0)
	rt.Crash()
	if _, err := r.Pods(t.Context()); !errors.Is(err, cri.ErrUnavailable) {
		t.Fatalf("error %v", err)
	}
	// Let the back-off reach its end, so that its longest pause is what counts.
	for down := time.Now(); time.Since(down) < 2*time.Second; {
		_, _ = r.Pods(t.Context())
		<-time.After(10 * time.Millisecond)
	}
	if err := rt.Restart(); err != nil {
		t.Fatal(err)
	}
	took := stopwatch(t)
	until(t, func() error {
		all, err := r.Pods(t.Context())
		if err == nil && (len(all) != 1 || len(all[0].Containers) != 1) {
			t.Fatalf("after the restart: %+v", all)
		}
		return err
	})
	if took := took(); took > 2500*time.Millisecond {
		t.Errorf("found after %s", took)
	}
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

// Lists of very many containers are past gRPC's 4 MiB and CRI's usual 16 MiB.
func TestF24_ListsPast16MiB(t *testing.T) {
	t.Parallel()
	rt := critest.New()
	r := dial(t, cri.Config{Endpoint: critest.Serve(t, rt)})
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
	if err == nil || !strings.Contains(err.Error(), "speaks no CRI v1") {
		t.Errorf("error %v", err)
	}
}
