package agent

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/bundle"
	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/image"
	"github.com/nodectl/nodectl/pkg/pod"
)

// gated is a runtime whose pulls block until the test releases them.
type gated chan struct{}

func (gated) FindImage(context.Context, *pod.Spec, string) (string, error) { return "", nil }

func (g gated) FetchImage(ctx context.Context, _ *pod.Spec, name, _, _ string) (string, error) {
	select {
	case <-g:
	case <-ctx.Done():
		return "", ctx.Err()
	}
	if strings.Contains(name, "missing") {
		return "", &pod.StartError{Reason: "ErrImagePull", Err: errors.New("not found")}
	}
	return "id", nil
}

// screen receives each event of pulls, and each set of lines.
type screen struct {
	events chan image.Event
	lines  chan []string
}

func (s screen) Event(e image.Event) { s.events <- e }

func (s screen) Lines(pulls []image.Pull, _ map[string]bundle.Download) bool {
	var names []string
	for _, p := range pulls {
		names = append(names, p.Image)
	}
	s.lines <- names
	return true
}

// A pull is shown from its start to its end, with lines in between.
func TestPulls_Pull_IsShownFromStartToEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		gate, news, to := make(gated), newPullEvents(), screen{make(chan image.Event), make(chan []string)}
		puller := image.New(image.Config{Runtime: gate, Dir: t.TempDir(), Observe: news.queue})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { puller.Run(ctx) })
		wg.Go(func() { news.follow(ctx, puller, bundle.NewDownloads("unix:///nowhere.sock"), to) })
		for _, name := range []string{"r.io/app:1", "r.io/missing:1"} {
			p := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: name}}}}
			done := make(chan error, 1) // the pull sends its end
			wg.Go(func() { done <- puller.PullImage(ctx, &pod.Spec{Key: pod.KeyOf(p), Pod: p}, "c", nil) })
			if e := <-to.events; e.Image != name || e.Over {
				t.Errorf("%s: first %+v", name, e)
			}
			for range 2 { // at once, and again while it lasts
				if lines := <-to.lines; !slices.Equal(lines, []string{name}) {
					t.Errorf("%s: lines %q", name, lines)
				}
			}
			gate <- struct{}{}
			if err := <-done; (err == nil) != (name == "r.io/app:1") {
				t.Errorf("%s: %v", name, err)
			}
			if e := <-to.events; e.Image != name || !e.Over || (e.Err == nil) != (name == "r.io/app:1") {
				t.Errorf("%s: last %+v", name, e)
			}
			if lines := <-to.lines; len(lines) != 0 {
				t.Errorf("%s: lines at its end: %q", name, lines)
			}
		}
		cancel()
		<-to.lines // the last ones
		wg.Wait()
	})
}

// Events that arrive together with the end are shown, also of pulls that the end cancels.
func TestPulls_EventsArriveWithTheEnd_AreShown(t *testing.T) {
	t.Parallel()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for range 200 {
		news, to := newPullEvents(), make(events, 2)
		news.queue(image.Event{})
		news.queue(image.Event{Over: true})
		news.follow(over, image.New(image.Config{}), bundle.NewDownloads("unix:///nowhere.sock"), to)
		if len(to) != 2 {
			t.Fatalf("%d of 2 events shown", len(to))
		}
	}
	for range 20 {
		news, to := newPullEvents(), make(events, 2)
		r := &containerRuntime{
			events: news, Runtime: cri.New(cri.Config{Endpoint: "unix:///nowhere.sock"}, nil, nil),
			puller: image.New(image.Config{Runtime: make(gated), Dir: t.TempDir(), Observe: news.queue}),
		}
		leave := r.pulls(t.Context(), to)
		var wg sync.WaitGroup
		wg.Go(func() {
			p := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: "r.io/app:1"}}}}
			if r.puller.PullImage(t.Context(), &pod.Spec{Key: pod.KeyOf(p), Pod: p}, "c", nil) == nil {
				t.Error("pulled")
			}
		})
		if e := <-to; e.Over {
			t.Error("its end comes first")
		}
		leave()
		wg.Wait()
		if len(to) != 1 || !(<-to).Over {
			t.Fatal("the end of the pull is not shown")
		}
	}
}

// events receives each event of pulls, and shows no progress.
type events chan image.Event

func (e events) Event(x image.Event) { e <- x }

func (events) Lines([]image.Pull, map[string]bundle.Download) bool { return false }

// Without a pull the runtime is not polled.
func TestPulls_NoPull_RuntimeIsNotPolled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &counted{}
		news := newPullEvents()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		news.follow(ctx, image.New(image.Config{}), bundle.NewDownloads("unix:///nowhere.sock"), s)
		if s.n != 1 {
			t.Errorf("%d looks, want the one at the end", s.n)
		}
	})
}

// counted counts how often lines are shown.
type counted struct {
	events
	n int
}

func (c *counted) Lines([]image.Pull, map[string]bundle.Download) bool {
	c.n++
	return true
}
