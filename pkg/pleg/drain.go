package pleg

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/nodectl/nodectl/pkg/backoff"
	"github.com/nodectl/nodectl/pkg/cri"
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
	pause, told := firstPause, "" // told is what the log last said
	for {
		opened := time.Now()
		err := p.read(ctx, d, ask, subscribed)
		switch {
		case ctx.Err() != nil:
			return
		case time.Since(opened) > lastPause: // it stood: what comes now is new
			pause, told = firstPause, ""
		}
		if unsupported(err) {
			if told != "none" {
				p.cfg.Log.Warn("Container runtime has no events; pods are relisted instead", "every", p.cfg.Fallback)
			}
			told = "none"
			for range againAfter {
				trigger(ask)
				if !backoff.Sleep(ctx, p.cfg.Fallback) {
					return
				}
			}
			continue
		}
		if told != "ended" {
			level := slog.LevelWarn
			if errors.Is(err, pod.ErrUnavailable) {
				level = slog.LevelDebug // whoever watches the runtime says so
			}
			p.cfg.Log.Log(ctx, level, "Container runtime events ended; trying again", "error", err)
		}
		told = "ended"
		if !backoff.Sleep(ctx, pause) {
			return
		}
		// Nothing is heard meanwhile, so the lists have to tell.
		trigger(ask)
		pause = backoff.Next(pause, firstPause, lastPause)
	}
}

// read reads one stream to its end.
func (p *PLEG) read(ctx context.Context, d *dirty, ask, subscribed chan<- struct{}) error {
	defer p.busy.Store(0)
	for e, err := range p.cfg.Runtime.Events(ctx) {
		p.busy.Store(time.Now().UnixNano())
		switch {
		case err != nil:
			return err
		case e.Type == cri.EventSubscribed:
			trigger(subscribed)
		case e.Key == pod.Key{}:
			trigger(ask) // somebody's; the lists say whose
		default:
			d.add(e.Key)
		}
		p.busy.Store(0)
	}
	return ctx.Err()
}

// drainLimit is how long one event may take to be put down.
const drainLimit = 2 * time.Second

// Beat returns nil while the event stream is drained, for F6 and F7: an event
// that was taken is put down at once, or the runtime stalls with us.
func (p *PLEG) Beat(context.Context) error {
	if since := p.busy.Load(); since != 0 && time.Since(time.Unix(0, since)) > drainLimit {
		return errors.New("the event stream is not drained")
	}
	return nil
}
