//go:build linux

package cmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/bundle"
	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/image"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/test/wait"
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

// saidOn returns the text written to a stream.
func saidOn(t *testing.T, o *output) string {
	t.Helper()
	b, err := os.ReadFile(o.file.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// written returns a program whose conversation goes to a file.
func written(t *testing.T) *program {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return &program{err: newOutput(f)}
}

// pullTwo pulls r.io/app:1 and r.io/missing:1 one after the other and shows them on to; it
// calls during in the middle of each.
func pullTwo(t *testing.T, to pullLines, during func()) {
	t.Helper()
	gate, news := make(gated), newPullNews()
	n := &node{news: news, puller: image.New(image.Config{Runtime: gate, Dir: t.TempDir(), Told: news.hear})}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer func() {
		cancel()
		wg.Wait()
	}()
	wg.Go(func() { n.puller.Run(ctx) })
	wg.Go(func() { news.follow(ctx, n.puller, bundle.NewDownloads("unix:///nowhere.sock"), to) })
	for _, name := range []string{"r.io/app:1", "r.io/missing:1"} {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: name}}}}
		done := make(chan error, 1) // the pull sends its end
		wg.Go(func() { done <- n.puller.PullImage(ctx, &pod.Spec{Key: pod.KeyOf(p), Pod: p}, "c", nil) })
		during()
		gate <- struct{}{}
		if err := <-done; (err == nil) != (name == "r.io/app:1") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Off a terminal a pull has one line when it begins and one when it ends, and
// nothing that only a terminal understands.
func TestPullsOffATerminal(t *testing.T) {
	t.Parallel()
	p := written(t)
	g := newProgress(p, &podconfig.Merged{})
	n := 0
	pullTwo(t, g, func() {
		n++
		wait.Until(t, fmt.Sprintf("pull %d is reported", n), func() (string, bool) {
			text := saidOn(t, p.err)
			return text, strings.Count(text, "pulling") == n
		})
	})
	g.end()
	text := saidOn(t, p.err)
	var words []string
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		words = append(words, strings.Join(f[:len(f)-1], " ")) // the last one is the time
	}
	if got := strings.Join(words, "\n"); strings.Contains(text, "\x1b") ||
		got != "image r.io/app:1 pulling\nimage r.io/app:1 pulled\nimage r.io/missing:1 pulling\nimage r.io/missing:1 not pulled" {
		t.Errorf("%q", text)
	}
}

// On a terminal a pull has a line below all other text, which is kept up to date and
// disappears with the pull.
func TestPullsOnATerminal(t *testing.T) {
	t.Parallel()
	p := written(t)
	s := &serveLines{p: p, foot: newLiveLines(p.err)}
	n := 0
	pullTwo(t, s, func() {
		n++
		name := []string{"r.io/app:1", "r.io/missing:1"}[n-1]
		wait.Until(t, "the pull of "+name+" is reported", func() (string, bool) {
			text := shown(saidOn(t, p.err))
			return text, strings.Contains(text, "image "+name+"   pulling")
		})
		if _, err := io.WriteString(p.err, "a line of the log\n"); err != nil {
			t.Error(err)
		}
		if got := shown(saidOn(t, p.err)); !strings.HasPrefix(got, strings.Repeat("a line of the log\n", n)+"image "+name+"   pulling") || strings.Count(got, "\n") != n+1 {
			t.Errorf("%q", got)
		}
	})
	if got := shown(saidOn(t, p.err)); got != strings.Repeat("a line of the log\n", 2) {
		t.Errorf("at the end: %q", got)
	}
}

// Events that arrive together with the end are shown, also of pulls that the end cancels.
func TestLastPullsAreTold(t *testing.T) {
	t.Parallel()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for range 200 {
		news, to := newPullNews(), make(events, 2)
		news.hear(image.Event{})
		news.hear(image.Event{Over: true})
		news.follow(over, image.New(image.Config{}), bundle.NewDownloads("unix:///nowhere.sock"), to)
		if len(to) != 2 {
			t.Fatalf("%d of 2 events told", len(to))
		}
	}
	for range 20 {
		news, to := newPullNews(), make(events, 2)
		n := &node{
			news: news, runtime: cri.New(cri.Config{Endpoint: "unix:///nowhere.sock"}, nil, nil),
			puller: image.New(image.Config{Runtime: make(gated), Dir: t.TempDir(), Told: news.hear}),
		}
		leave := n.pulls(t.Context(), to)
		var wg sync.WaitGroup
		wg.Go(func() {
			p := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: "r.io/app:1"}}}}
			if n.puller.PullImage(t.Context(), &pod.Spec{Key: pod.KeyOf(p), Pod: p}, "c", nil) == nil {
				t.Error("pulled")
			}
		})
		if e := <-to; e.Over {
			t.Error("its end comes first")
		}
		leave()
		wg.Wait()
		if len(to) != 1 || !(<-to).Over {
			t.Fatal("the end of the pull is not told")
		}
	}
}

// events receives each event of pulls, and shows no progress.
type events chan image.Event

func (e events) event(x image.Event) { e <- x }

func (events) lines([]image.Pull, map[string]bundle.Download) bool { return false }

// Without a pull the runtime is not polled.
func TestPullsAreFollowedWithoutPolls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := written(t)
		s := &counted{serveLines: serveLines{p: p, foot: newLiveLines(p.err)}}
		news := newPullNews()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		news.follow(ctx, image.New(image.Config{}), bundle.NewDownloads("unix:///nowhere.sock"), s)
		if s.n != 1 {
			t.Errorf("%d looks, want the one at the end", s.n)
		}
	})
}

type counted struct {
	serveLines
	n int
}

func (c *counted) lines(pulls []image.Pull, far map[string]bundle.Download) bool {
	c.n++
	return c.serveLines.lines(pulls, far)
}

func TestPullText(t *testing.T) {
	t.Parallel()
	p := written(t)
	now := time.Now()
	pulls := []image.Pull{{Image: "r.io/app:1", Since: now.Add(-time.Minute)}, {Image: "r.io/b:1", Since: now, Waiting: true}}
	got := pullText(p, pulls, map[string]bundle.Download{"r.io/app:1": {Bytes: 12_340_000, Total: 45_600_000}})
	since := regexp.MustCompile(`^image r\.io/app:1   pulling 12\.3 MB of 45\.6 MB   (\d+\.\d)s\nimage r\.io/b:1   waiting for other images of its registry   (\d+\.\d)s\n$`).FindStringSubmatch(got)
	if since == nil {
		t.Fatalf("%q", got)
	}
	for i, least := range []float64{60, 0} {
		n, err := strconv.ParseFloat(since[i+1], 64)
		if err != nil || n < least || n > least+time.Since(now).Seconds()+0.1 {
			t.Errorf("%q", got)
		}
	}
	if got := pullText(p, make([]image.Pull, 25), nil); strings.Count(got, "\n") != 11 || !strings.Contains(got, "and 15 images more") {
		t.Errorf("%q", got)
	}
	if got := pullText(p, nil, nil); got != "" {
		t.Errorf("%q", got)
	}
}

// shown returns text as a terminal shows it; it knows lines and the two sequences of
// ui.View.Redraw.
func shown(text string) string {
	var lines []string
	for text != "" {
		if rest, ok := strings.CutPrefix(text, "\x1b[1A\x1b[2K"); ok {
			lines, text = lines[:len(lines)-1], rest
			continue
		}
		line, rest, _ := strings.Cut(text, "\n")
		lines, text = append(lines, line+"\n"), rest
	}
	return strings.Join(lines, "")
}
