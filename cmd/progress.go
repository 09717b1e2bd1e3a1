//go:build linux

package cmd

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/bundle"
	"github.com/nodectl/nodectl/pkg/image"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/status"
)

// progress shows the progress of pods and image pulls. On a terminal it updates one line for each
// pod and pull. Elsewhere it prints one line for each change. It is an engine.Sink.
type progress struct {
	p     *program
	live  bool // each pod has a line that is updated
	began time.Time
	keys  []pod.Key
	foot  *liveLines // nil without a terminal

	mu    sync.Mutex
	shown map[pod.Key]string
	pulls string // the lines of image pulls
}

// mostLines is the maximum number of pods that have a line each. With more, each change is a line.
const mostLines = 20

func newProgress(p *program, set *podconfig.Merged) *progress {
	g := &progress{p: p, began: time.Now(), shown: make(map[pod.Key]string)}
	if p.err.terminal() {
		g.live, g.foot = set.Pods.Len() <= mostLines, newLiveLines(p.err)
	}
	for spec := range set.Pods.All() {
		g.keys = append(g.keys, spec.Key)
	}
	return g
}

// Report implements engine.Sink.
func (g *progress) Report(r pod.StatusReport) error {
	p, gone := r.Pod, r.Gone
	key := pod.KeyOf(p)
	text := "gone"
	if !gone {
		l := status.Summary(*p)
		text = l.Status + " " + l.ReadyText()
		if why := waitMessage(&p.Status); why != "" {
			text += ": " + why
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shown[key] == text {
		return nil
	}
	if _, known := g.shown[key]; !known && !slices.Contains(g.keys, key) { // a pod of a workload
		g.keys = append(g.keys, key)
		g.live = g.live && len(g.keys) <= mostLines
	}
	g.shown[key] = text
	if g.live {
		g.draw()
	} else {
		g.p.say(g.p.err.Progress([][2]string{{key.String(), text}}, time.Since(g.began)))
	}
	return nil
}

// waitMessage returns why a pod does not start, or "": it is rejected, waits for another pod, or
// a step fails.
func waitMessage(s *v1.PodStatus) string {
	if s.Phase == v1.PodPending && s.Message != "" {
		return s.Message
	}
	for _, c := range slices.Concat(s.InitContainerStatuses, s.ContainerStatuses) {
		if w := c.State.Waiting; w != nil && w.Message != "" && w.Reason != "CrashLoopBackOff" { // its reason is clear without the message
			return w.Message
		}
	}
	return ""
}

// draw replaces all lines on the terminal. The caller holds mu.
func (g *progress) draw() {
	text := ""
	if g.live {
		var rows [][2]string
		for _, key := range g.keys {
			rows = append(rows, [2]string{key.String(), g.shown[key]})
		}
		text = g.p.err.Progress(rows, time.Since(g.began))
	}
	g.foot.show(text + g.pulls)
}

// Event implements agent.PullLines. Without a terminal it prints one line.
func (g *progress) Event(e image.Event) {
	if g.foot != nil {
		return
	}
	text := "pulling"
	if e.Over && e.Err == nil {
		text = "pulled"
	} else if e.Over {
		text = "not pulled"
	}
	g.p.say(g.p.err.Progress([][2]string{{"image " + e.Image, text}}, time.Since(g.began)))
}

// Lines implements agent.PullLines.
func (g *progress) Lines(pulls []image.Pull, downloads map[string]bundle.Download) bool {
	if g.foot == nil {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	text := pullText(g.p, pulls, downloads)
	if text != "" || g.pulls != "" {
		g.pulls = text
		g.draw()
	}
	return true
}

// end leaves the screen as it is.
func (g *progress) end() {
	if g.foot != nil {
		g.foot.end()
	}
}

// mostPulls is the maximum number of pulls that have a line each.
const mostPulls = 10

// pullText returns one line for each pull, with its progress and duration.
func pullText(p *program, pulls []image.Pull, downloads map[string]bundle.Download) string {
	var b strings.Builder
	for i, pull := range pulls {
		if i == mostPulls {
			b.WriteString(p.err.Progress([][2]string{{fmt.Sprintf("and %d images more", len(pulls)-i), "pulling"}}, time.Since(pull.Since)))
			break
		}
		text := "pulling"
		if d, ok := downloads[pull.Image]; ok {
			text = fmt.Sprintf("pulling %s of %s", megabytes(d.Bytes), megabytes(d.Total))
		} else if pull.Waiting {
			text = "waiting for other images of its registry"
		}
		b.WriteString(p.err.Progress([][2]string{{"image " + pull.Image, text}}, time.Since(pull.Since)))
	}
	return b.String()
}

func megabytes(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }

// serveLines shows pulls below serve's log on a terminal. Elsewhere only the log shows them.
type serveLines struct {
	p    *program
	foot *liveLines // nil without a terminal
}

func newServeLines(p *program) *serveLines {
	s := &serveLines{p: p}
	if p.err.terminal() {
		s.foot = newLiveLines(p.err)
	}
	return s
}

// Event implements agent.PullLines.
func (s *serveLines) Event(image.Event) {}

// Lines implements agent.PullLines.
func (s *serveLines) Lines(pulls []image.Pull, downloads map[string]bundle.Download) bool {
	if s.foot == nil {
		return false
	}
	s.foot.show(pullText(s.p, pulls, downloads))
	return true
}
