//go:build linux

package cmd

import (
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/status"
)

// progress tells a person how pods get on: one line for each change, or on a
// terminal one line per pod that is kept up to date. It is an engine.Sink.
type progress struct {
	p     *program
	live  bool
	began time.Time
	keys  []pod.Key
	said  map[pod.Key]string
	drawn int // lines on the screen
}

func newProgress(p *program, set *podconfig.Merged) *progress {
	g := &progress{p: p, live: p.err.terminal() && set.Pods.Len() <= 20, began: time.Now(), said: make(map[pod.Key]string)}
	for spec := range set.Pods.All() {
		g.keys = append(g.keys, spec.Key)
	}
	return g
}

// Report implements engine.Sink.
func (g *progress) Report(p *v1.Pod, _ pod.Origin, gone bool, _ time.Time) error {
	key := pod.KeyOf(p)
	text := "gone"
	if !gone {
		l := status.Summary(*p)
		text = l.Status + " " + l.ReadyText()
		if p.Status.Phase == v1.PodPending && p.Status.Message != "" { // refused, or waits for another pod
			text += ": " + p.Status.Message
		}
	}
	if g.said[key] == text {
		return nil
	}
	g.said[key] = text
	if g.live {
		g.draw()
	} else {
		g.p.say(g.p.err.Progress([][2]string{{key.String(), text}}, time.Since(g.began)))
	}
	return nil
}

// draw writes all lines anew over those drawn before.
func (g *progress) draw() {
	var rows [][2]string
	for _, key := range g.keys {
		rows = append(rows, [2]string{key.String(), g.said[key]})
	}
	g.p.say(g.p.err.Redraw(g.drawn) + g.p.err.Progress(rows, time.Since(g.began)))
	g.drawn = len(rows)
}

// end leaves the screen as it is.
func (g *progress) end() { g.drawn = 0 }
