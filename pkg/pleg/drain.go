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
	// againAfter is the number of relists of a runtime without events before the next try
	// to subscribe: it may have been starting, or may be replaced.
	againAfter = 60
)

// drain keeps the event stream open. It only reads the stream while it is open: a
// subscriber that does not read stalls containerd for the whole node (F6).
func (p *PLEG) drain(ctx context.Context, d *dirty, ask, subscribed chan<- struct{}) {
	pause, lastLogged := firstPause, "" // lastLogged is the last outcome that was logged
	for {
		opened := time.Now()
		err := p.read(ctx, d, ask, subscribed)
		switch {
		case ctx.Err() != nil:
			return
		case time.Since(opened) > lastPause: // it was open: log the next failure
			pause, lastLogged = firstPause, ""
		}
		if unsupported(err) {
			if lastLogged != "none" {
				p.cfg.Log.Warn("Container runtime has no event stream, relisting pods instead", "every", p.cfg.Fallback)
			}
			lastLogged = "none"
			for range againAfter {
				trigger(ask)
				if !backoff.Sleep(ctx, p.cfg.Fallback) {
					return
				}
			}
			continue
		}
		if lastLogged != "ended" {
			level := slog.LevelWarn
			if errors.Is(err, pod.ErrUnavailable) {
				level = slog.LevelDebug // another component logs that
			}
			p.cfg.Log.Log(ctx, level, "Container runtime events ended; retrying", "error", err)
		}
		lastLogged = "ended"
		if !backoff.Sleep(ctx, pause) {
			return
		}
		// Changes may have been missed meanwhile: relist.
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
			trigger(ask) // the event names no pod: relist
		default:
			d.add(e.Key)
		}
		p.busy.Store(0)
	}
	return ctx.Err()
}

// drainLimit is the time limit for adding one event to the dirty set.
const drainLimit = 2 * time.Second

// Beat returns nil while drain handles its events in time (F6, F7): an event that is read
// and not added stalls the runtime too.
func (p *PLEG) Beat(context.Context) error {
	if since := p.busy.Load(); since != 0 && time.Since(time.Unix(0, since)) > drainLimit {
		return errors.New("the events of the container runtime are not handled in time")
	}
	return nil
}
