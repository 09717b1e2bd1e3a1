package engine

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/feed"
	"github.com/nodectl/nodectl/pkg/pod"
)

// updateText formats an update of pods as one line.
func updateText(u feed.Update) string {
	line := fmt.Sprintf("%s %s", u.Op, u.Source)
	for _, s := range u.Pods {
		line += " " + s.Name
	}
	return line
}

func TestLive_ShowsARunningEngine(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.src.set(mkpod("web"))
		ctx, cancel := context.WithCancel(context.Background())
		e := New(m.config(m.rt.Connect()))
		var got []string
		var wg sync.WaitGroup
		wg.Go(func() {
			for u := range e.Live().Watch(context.Background(), feed.WatchOptions{}) { // ends with the engine
				got = append(got, updateText(u))
			}
		})
		wg.Go(func() {
			if err := e.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		m.pass(time.Second)
		pods := e.Live().Pods()
		if len(pods) != 1 || pods[0].Name != "web" || pods[0].Status.Phase != v1.PodRunning {
			t.Errorf("pods: %+v", pods)
		}
		if s := e.Live().Sources(); len(s) != 1 || !s[0].Ready || s[0].Pods != 1 {
			t.Errorf("sources: %+v", s)
		}
		m.src.set()
		m.pass(40 * time.Second)
		if pods := e.Live().Pods(); len(pods) != 0 {
			t.Errorf("of a pod that is gone there is still %+v", pods)
		}
		cancel()
		wg.Wait()
		if want := []string{"ADD file web", "REMOVE file web"}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// TestLive_StatusOfEveryPodIsKnown_ReadersHaveAllPods: once "Status of every pod is known" is
// logged, a new reader sees all pods, and a watching one has received them. That holds even if
// the disk for statuses hangs.
func TestLive_StatusOfEveryPodIsKnown_ReadersHaveAllPods(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.src.set(mkpod("one"), mkpod("two"), mkpod("three"))
		ctx, cancel := context.WithCancel(context.Background())
		cfg := m.config(m.rt.Connect())
		stands := make(stuckSink)
		cfg.Sinks = append([]Sink{stands}, cfg.Sinks...)
		var ready countingSink
		cfg.Listeners = []Sink{&ready}
		var e *Engine
		seen, reported := -1, -1
		cfg.Synced = func() { seen, reported = len(e.Live().Pods()), len(ready) }
		e = New(cfg)
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := e.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		m.pass(10 * time.Second)
		if seen != 3 || reported != 3 {
			t.Errorf("%d pods are shown and %d were reported when all are reported, want 3", seen, reported)
		}
		close(stands)
		cancel()
		wg.Wait()
	})
}

// TestLive_PodsAreNotObserved_IsNotComplete: readers do not get the pods as complete before they were
// observed, however long the runtime is down. One pod over which the runtime hangs does not
// delay that forever.
func TestLive_PodsAreNotObserved_IsNotComplete(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		lift := m.rt.Fault(critest.Fault{Err: status.Error(codes.Unavailable, "no such socket")})
		m.src.set(mkpod("one"), mkpod("two"))
		ctx, cancel := context.WithCancel(context.Background())
		e := New(m.config(m.rt.Connect()))
		var mu sync.Mutex
		var got []string
		var wg sync.WaitGroup
		wg.Go(func() {
			for how, p := range e.Live().WatchPods(ctx) {
				mu.Lock()
				if how != feed.PodModified {
					got = append(got, how+" "+p.Name)
				}
				mu.Unlock()
			}
		})
		wg.Go(func() {
			if err := e.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		m.pass(time.Hour)
		mu.Lock()
		if len(got) > 0 {
			t.Errorf("sent before the runtime answered: %q", got)
		}
		mu.Unlock()
		select {
		case <-e.Live().PodsObserved():
			t.Error("it has read its pods, and the runtime does not answer")
		default:
		}
		lift()
		m.pass(time.Minute)
		<-e.Live().PodsObserved()
		cancel()
		wg.Wait()
		slices.Sort(got[:min(2, len(got))])
		if want := []string{"ADDED one", "ADDED two", "BOOKMARK "}; !slices.Equal(got, want) {
			t.Errorf("sent %q, want %q", got, want)
		}
	})
	bubble(t, func(t *testing.T, m *machine) {
		m.rt.Fault(critest.Fault{Pod: mkpod("hung").Key, Hang: true})
		m.src.set(mkpod("hung"), mkpod("well"))
		ctx, cancel := context.WithCancel(context.Background())
		e := New(m.config(m.rt.Connect()))
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := e.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		<-e.Live().PodsObserved()
		if _, ok := e.Live().Pod(mkpod("well").Key); !ok {
			t.Error("the pod over which nothing hangs was not looked at")
		}
		cancel()
		wg.Wait()
	})
}

// countingSink keeps the newest status of each pod. Only the sync loop uses it.
type countingSink map[pod.Key]pod.StatusReport

func (s *countingSink) Report(r pod.StatusReport) error {
	if *s == nil {
		*s = countingSink{}
	}
	(*s)[pod.KeyOf(r.Pod)] = r
	return nil
}

// stuckSink blocks until it is closed.
type stuckSink chan struct{}

func (s stuckSink) Report(pod.StatusReport) error { <-s; return nil }
