package pleg_test

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/pleg"
	"github.com/nodectl/nodectl/pkg/pod"
)

func key(name string) pod.Key { return pod.Key{Namespace: "default", Name: name} }

// run starts a pod of one container.
func run(t *testing.T, r *cri.Runtime, name string, command ...string) {
	t.Helper()
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "app", Image: "busybox:1", Command: command}}},
	}
	want := &pod.Spec{Key: pod.KeyOf(p), Pod: p}
	id, err := r.RunSandbox(t.Context(), pod.SandboxRequest{Want: want, Instance: 1, Attempt: 0})
	if err != nil {
		t.Fatal(err)
	}
	c, err := r.CreateContainer(t.Context(), pod.CreateRequest{Want: want, Container: "app", Sandbox: &pod.Sandbox{ID: id, Instance: 1}})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.StartContainer(t.Context(), c); err != nil {
		t.Fatal(err)
	}
}

// received are the hints that a caller of Hints received.
type received struct {
	mu   sync.Mutex // guards keys
	keys []pod.Key
}

// listen receives the hints of r until the bubble's test ends.
func listen(t *testing.T, r pleg.Runtime) *received { return listenTo(t, pleg.Config{Runtime: r}) }

func listenTo(t *testing.T, cfg pleg.Config) *received {
	h := &received{}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for k := range pleg.New(cfg).Hints(ctx) {
			h.mu.Lock()
			h.keys = append(h.keys, k)
			h.mu.Unlock()
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return h
}

// take returns the hints since its last call, once all goroutines are idle.
func (h *received) take() string {
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	var names []string
	for _, k := range h.keys {
		names = append(names, k.Name)
	}
	h.keys = nil
	slices.Sort(names)
	return strings.Join(slices.Compact(names), " ")
}

func (h *received) expect(t *testing.T, when, want string) {
	t.Helper()
	if got := h.take(); got != want {
		t.Errorf("%s: hints %q, want %q", when, got, want)
	}
}

// settle waits for the relists after the stream was opened, and drops their hints.
func settle(h *received) {
	time.Sleep(3 * time.Second)
	h.take()
}

// A pod of another program gives no hint.
func TestHints_PodChanges_IsYielded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := critest.New()
		r := rt.CRI(cri.Config{Node: "n1"})
		run(t, r, "a")
		run(t, r, "b")
		if err := rt.RunForeign(key("theirs"), "x"); err != nil {
			t.Fatal(err)
		}
		h := listen(t, r)
		h.expect(t, "at start", "a b")
		settle(h)
		rt.Exit(key("b"), "app", 1)
		h.expect(t, "at once after a crash", "b")
		rt.Exit(key("theirs"), "x", 1)
		h.expect(t, "after a crash in a pod of another program", "")
		run(t, r, "c")
		h.expect(t, "after a start", "c")
	})
}

// Half an hour without changes costs one relist a minute and no hint.
//
// Shows: I5
func TestIdleIsQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := critest.New()
		r := rt.CRI(cri.Config{Node: "n1"})
		run(t, r, "a")
		h := listen(t, r)
		settle(h)
		rt.Reset()
		time.Sleep(30 * time.Minute)
		h.expect(t, "after half an hour", "")
		if n := rt.Calls()["ListContainers"]; n < 29 || n > 31 {
			t.Errorf("%d relists in 30 min, want about 30", n)
		}
		for name, n := range rt.Calls() {
			if name != "ListContainers" && name != "ListPodSandbox" {
				t.Errorf("%d calls of %s while idle", n, name)
			}
		}
	})
}

// Shows: F25
func TestF25_LostEventsAreFoundByRelist(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := critest.New()
		r := rt.CRI(cri.Config{Node: "n1"})
		run(t, r, "a")
		run(t, r, "b")
		h := listen(t, r)
		settle(h)
		rt.Fault(critest.Fault{Method: "Events", Pod: key("a"), Drop: true})
		rt.Exit(key("a"), "app", 1)
		h.expect(t, "with the event lost", "")
		time.Sleep(time.Minute)
		h.expect(t, "after the relist", "a")
		rt.Forget(key("b"), "")
		time.Sleep(time.Minute)
		h.expect(t, "after b vanished", "b")
	})
}

// Shows: F25
func TestF25_RepeatedEventsAreHarmless(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := critest.New()
		r := rt.CRI(cri.Config{Node: "n1"})
		run(t, r, "a")
		h := listen(t, r)
		settle(h)
		rt.Fault(critest.Fault{Method: "Events", Repeat: true})
		rt.Exit(key("a"), "app", 1)
		h.expect(t, "after a repeated event", "a")
	})
}

// Shows: F25
func TestF25_EventWithoutSandboxIsTracedByRelist(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := critest.New()
		r := rt.CRI(cri.Config{Node: "n1"})
		run(t, r, "a")
		run(t, r, "b")
		h := listen(t, r)
		settle(h)
		rt.Fault(critest.Fault{Method: "Events", NoSandbox: true})
		rt.Exit(key("a"), "app", 1)
		time.Sleep(100 * time.Millisecond)
		h.expect(t, "within 100 ms", "a")
	})
}

// Shows: C-1.28.1
func TestC_1_28_1_RuntimeWithoutEventsIsRelistedEverySecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := critest.New()
		rt.NoEvents()
		r := rt.CRI(cri.Config{Node: "n1"})
		run(t, r, "a")
		var log bytes.Buffer
		h := listenTo(t, pleg.Config{Runtime: r, Log: slog.New(slog.NewTextHandler(&log, nil))})
		settle(h)
		rt.Exit(key("a"), "app", 1)
		time.Sleep(1100 * time.Millisecond)
		h.expect(t, "after a second", "a")
		rt.Reset()
		time.Sleep(10 * time.Minute)
		if n := rt.Calls()["GetContainerEvents"]; n > 11 {
			t.Errorf("asked %d times for events in 10 min", n)
		}
		if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), "has no event stream") {
			t.Errorf("the log:\n%s", log.String())
		}
	})
}

// Shows: F21
func TestF21_RuntimeRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := critest.New()
		r := rt.CRI(cri.Config{Node: "n1"})
		run(t, r, "a")
		run(t, r, "b")
		var log bytes.Buffer
		h := listenTo(t, pleg.Config{Runtime: r, Log: slog.New(slog.NewTextHandler(&log, nil))})
		settle(h)
		rt.Crash()
		time.Sleep(time.Hour)
		h.expect(t, "while the runtime is down", "")
		if log.Len() > 0 { // the engine logs that
			t.Errorf("the log of an hour:\n%s", log.String())
		}
		rt.Exit(key("a"), "app", 1) // the container exits while no event can be sent
		if err := rt.Restart(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(1100 * time.Millisecond)
		h.expect(t, "a second after the restart", "a")
		settle(h)
		rt.Exit(key("b"), "app", 1)
		h.expect(t, "events flow again", "b")
	})
}

// A caller that is stuck over a hint does not stall the runtime. The fake stalls like
// containerd if a subscriber leaves 100 events unread.
//
// Shows: F6
func TestF6_StuckCallerStallsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := critest.New()
		r := rt.CRI(cri.Config{Node: "n1"})
		run(t, r, "first")
		ctx, cancel := context.WithCancel(t.Context())
		stuck, done := make(chan struct{}), make(chan struct{})
		var names []string
		go func() {
			defer close(done)
			for k := range pleg.New(pleg.Config{Runtime: r}).Hints(ctx) {
				<-stuck
				names = append(names, k.Name)
			}
		}()
		time.Sleep(3 * time.Second)
		rt.Exit(key("first"), "app", 1)
		start := time.Now()
		for range 100 {
			name := "p" + time.Since(start).String()
			run(t, r, name)
			time.Sleep(time.Millisecond)
		}
		if took := time.Since(start); took > 200*time.Millisecond {
			t.Errorf("100 pods took %s beside a stuck caller", took)
		}
		close(stuck)
		synctest.Wait()
		if len(names) != 102 {
			t.Errorf("the caller got %d hints, want the one over which it was stuck and one for each of 101 pods", len(names))
		}
		cancel()
		<-done
	})
}

// The fake runtime stalls behind a subscriber that does not read: the test above would fail
// if PLEG did not read.
//
// Shows: F6
func TestF6_FakeStallsBehindAnUnreadStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := critest.New()
		r := rt.CRI(cri.Config{Node: "n1"})
		ctx, cancel := context.WithCancel(t.Context())
		hang, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			for range r.Events(ctx) {
				<-hang
			}
		}()
		synctest.Wait()
		started := 0
		go func() {
			for i := range 60 {
				run(t, r, "p"+string(rune('A'+i)))
				started++
			}
		}()
		time.Sleep(time.Minute)
		synctest.Wait()
		if started >= 60 {
			t.Error("60 pods started behind a stream without a reader")
		}
		close(hang)
		synctest.Wait()
		if started != 60 {
			t.Errorf("%d pods started once the stream was read, want 60", started)
		}
		cancel()
		<-done
	})
}

func TestHints_CallerLeavesTheLoop_GoroutinesEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := critest.New()
		r := rt.CRI(cri.Config{Node: "n1"})
		run(t, r, "a")
		for range pleg.New(pleg.Config{Runtime: r}).Hints(t.Context()) {
			break
		}
		// synctest fails the test if a goroutine is left.
	})
}

// The hints of a runtime behind a gRPC socket are those of the in-process fake.
func TestHints_OverGRPC(t *testing.T) {
	rt := critest.New()
	r, err := cri.Dial(cri.Config{Endpoint: critest.Serve(t, rt), Node: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	run(t, r, "a")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	hints := make(chan pod.Key)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for k := range pleg.New(pleg.Config{Runtime: r, Relist: time.Hour}).Hints(ctx) {
			hints <- k
		}
	}()
	expect := func(when, name string) {
		t.Helper()
		for {
			select {
			case k := <-hints:
				if k.Name == name {
					return
				}
			case <-ctx.Done():
				t.Fatalf("%s: no hint of %s", when, name)
			}
		}
	}
	expect("at start", "a")
	run(t, r, "b")
	expect("after a start", "b")
	rt.Exit(key("b"), "app", 1)
	expect("after a crash", "b")
	rt.Crash()
	rt.Exit(key("a"), "app", 1)
	if err := rt.Restart(); err != nil {
		t.Fatal(err)
	}
	expect("after the runtime's restart", "a")
	cancel()
	for {
		select {
		case <-hints:
		case <-done:
			return
		}
	}
}
