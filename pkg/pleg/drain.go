package pleg

import (
	"context"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
)

const (
	firstPause = 100 * time.Millisecond // before the stream is opened again; doubles
	lastPause  = time.Second
	// againAfter is how often a runtime without events is relisted before it is
	// asked for events again: it may have been starting, or replaced.
	againAfter = 60
)

// drain keeps the event stream open. While a stream stands it is read and
// nothing else is done here: a subscriber that lingers stalls containerd for
// the whole node (F6).
func (p *PLEG) drain(ctx context.Context, d *dirty, ask, subscribed chan<- struct{}) {
	pause, failing := firstPause, false
	for {
		stood, err := p.read(ctx, d, ask, subscribed)
		if ctx.Err() != nil {
			return
		}
		if stood {
			pause, failing = firstPause, false
		}
		if unsupported(err) {
			if !failing {
				p.cfg.Log.Warn("Container runtime has no events; pods are relisted instead", "every", p.cfg.Fallback)
			}
			failing = true
			for range againAfter {
				trigger(ask)
				if !sleep(ctx, p.cfg.Fallback) {
					return
				}
			}
			continue
		}
		if !failing {
			p.cfg.Log.Warn("Container runtime events ended; trying again", "error", err)
		}
		failing = true
		if !sleep(ctx, pause) {
			return
		}
		// Nothing is heard meanwhile, so the lists have to tell.
		trigger(ask)
		pause = min(2*pause, lastPause)
	}
}

// read reads one stream to its end; stood says that it was opened at all.
func (p *PLEG) read(ctx context.Context, d *dirty, ask, subscribed chan<- struct{}) (stood bool, err error) {
	for e, err := range p.cfg.Runtime.Events(ctx) {
		switch {
		case err != nil:
			return stood, err
		case !stood:
			stood = true
			trigger(subscribed)
		case e.Key == pod.Key{}:
			trigger(ask) // somebody's; the lists say whose
		default:
			d.add(e.Key)
		}
	}
	return stood, ctx.Err()
}

// sleep reports whether it slept for d before ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
