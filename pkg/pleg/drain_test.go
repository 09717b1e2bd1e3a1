package pleg

import (
	"context"
	"fmt"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/test/wait"
)

// oneEvent is a runtime whose stream has one event and ends.
type oneEvent struct{ Runtime }

func (oneEvent) Events(context.Context) iter.Seq2[cri.Event, error] {
	return func(yield func(cri.Event, error) bool) {
		yield(cri.Event{Type: cri.EventStarted, Key: pod.Key{Namespace: "default", Name: "web"}}, nil)
	}
}

// Healthy fails while drain is blocked over an event, and no longer when drain continues.
//
// Shows: F7
func TestF7_DrainIsBlocked_BeatFails(t *testing.T) {
	p := New(Config{Runtime: oneEvent{}})
	d := &dirty{keys: map[pod.Key]struct{}{}, wake: make(chan struct{}, 1)}
	if err := p.Healthy(t.Context()); err != nil {
		t.Errorf("before the first event: %v", err)
	}
	d.mu.Lock() // blocks the add of the event
	drained := make(chan error)
	go func() { drained <- p.read(t.Context(), d, make(chan struct{}, 1), make(chan struct{}, 1)) }()
	wait.True(t, "drain handles the event", func() bool { return p.busy.Load() != 0 })
	if err := p.Healthy(t.Context()); err != nil {
		t.Errorf("during an event that was just received: %v", err)
	}
	p.busy.Add(-int64(drainLimit)) // as if it was received that long ago
	if err := p.Healthy(t.Context()); err == nil || err.Error() != "the events of the container runtime are not handled in time" {
		t.Errorf("during an event that is not handled in time: %v", err)
	}
	d.mu.Unlock()
	if err := <-drained; err != nil {
		t.Error(err)
	}
	if err := p.Healthy(t.Context()); err != nil {
		t.Errorf("after the event: %v", err)
	}
	if keys := d.take(); len(keys) != 1 {
		t.Errorf("dirty pods: %v, want one", keys)
	}
}

// Healthy does not fail without events, while the caller of Hints is stuck, or while the runtime is
// down.
//
// Shows: F7
func TestF7_DrainWaitsForEvents_BeatSucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := critest.New()
		r := rt.CRI(cri.Config{Node: "n1"})
		p := New(Config{Runtime: r})
		ctx, cancel := context.WithCancel(t.Context())
		stuck, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			for range p.Hints(ctx) {
				<-stuck
			}
		}()
		checkHealthy := func(when string) {
			t.Helper()
			for range 10 {
				time.Sleep(time.Minute)
				synctest.Wait()
				if err := p.Healthy(ctx); err != nil {
					t.Errorf("%s: %v", when, err)
				}
			}
		}
		checkHealthy("without events")
		for i := range 3 {
			web := &v1.Pod{}
			web.Namespace, web.Name, web.UID = "default", fmt.Sprint("web", i), types.UID(fmt.Sprint("uid", i))
			if _, err := r.RunSandbox(ctx, pod.SandboxRequest{Want: &pod.Spec{Key: pod.KeyOf(web), Pod: web}, Instance: 1, Attempt: 0}); err != nil {
				t.Fatal(err)
			}
			checkHealthy("the caller is stuck")
			rt.Crash()
			checkHealthy("the runtime is down")
			if err := rt.Restart(); err != nil {
				t.Fatal(err)
			}
			checkHealthy("the runtime runs again")
		}
		close(stuck)
		cancel()
		<-done
	})
}
