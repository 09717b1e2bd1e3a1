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

// A drain that does not add a read event is blocked, and the runtime stalls behind it: Beat
// fails until the drain continues.
//
// Shows: F7
func TestF7_ADrainThatStandsStillHasNoPulse(t *testing.T) {
	p := New(Config{Runtime: oneEvent{}})
	d := &dirty{keys: map[pod.Key]struct{}{}, wake: make(chan struct{}, 1)}
	if err := p.Beat(t.Context()); err != nil {
		t.Errorf("before the first event: %v", err)
	}
	d.mu.Lock() // blocks the add of the event
	drained := make(chan error)
	go func() { drained <- p.read(t.Context(), d, make(chan struct{}, 1), make(chan struct{}, 1)) }()
	wait.True(t, "it says that it is busy", func() bool { return p.busy.Load() != 0 })
	if err := p.Beat(t.Context()); err != nil {
		t.Errorf("over an event that was just taken: %v", err)
	}
	p.busy.Add(-int64(drainLimit)) // as if it had lasted long
	if err := p.Beat(t.Context()); err == nil || err.Error() != "the events of the container runtime are not handled in time" {
		t.Errorf("over an event that is not put down: %v", err)
	}
	d.mu.Unlock()
	if err := <-drained; err != nil {
		t.Error(err)
	}
	if err := p.Beat(t.Context()); err != nil {
		t.Errorf("after it: %v", err)
	}
	if keys := d.take(); len(keys) != 1 {
		t.Errorf("put down %v", keys)
	}
}

// No events, a runtime that is down and a slow caller are not failures of the drain.
//
// Shows: F7
func TestF7_WaitingIsNotStandingStill(t *testing.T) {
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
		lives := func(when string) {
			t.Helper()
			for range 10 {
				time.Sleep(time.Minute)
				synctest.Wait()
				if err := p.Beat(ctx); err != nil {
					t.Errorf("%s: %v", when, err)
				}
			}
		}
		lives("nothing happens")
		for i := range 3 {
			web := &v1.Pod{}
			web.Namespace, web.Name, web.UID = "default", fmt.Sprint("web", i), types.UID(fmt.Sprint("uid", i))
			if _, err := r.RunSandbox(ctx, pod.SandboxRequest{Want: &pod.Spec{Key: pod.KeyOf(web), Pod: web}, Instance: 1, Attempt: 0}); err != nil {
				t.Fatal(err)
			}
			lives("the caller does not come back")
			rt.Crash()
			lives("the runtime is down")
			if err := rt.Restart(); err != nil {
				t.Fatal(err)
			}
			lives("the runtime is back")
		}
		close(stuck)
		cancel()
		<-done
	})
}
