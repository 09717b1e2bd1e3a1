package pleg

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/nodectl/nodectl/pkg/backoff"
	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/wakeup"
)

const (
	// The back-off before drain opens the stream again doubles from minBackoff to maxBackoff.
	minBackoff = 100 * time.Millisecond
	maxBackoff = time.Second
	// relistsWithoutEvents is how many relists drain requests, if the runtime has no events, before
	// it tries to subscribe again. The runtime may have been upgraded to a version with events.
	relistsWithoutEvents = 60
)

// drain opens the event stream, reads it to its end, and opens it again. It does nothing that could
// delay the reading: a subscriber that does not read stalls containerd for the whole node
// (F6). If the runtime has no events, drain requests a relist every Fallback period instead.
func (p *PLEG) drain(ctx context.Context, d *dirty, ask, subscribed wakeup.Signal) {
	pause := minBackoff
	lastLogged := "" // how the last logged try ended: "none" (no events) or "ended"; the same end is not logged again
	for {
		opened := time.Now()
		err := p.read(ctx, d, ask, subscribed)
		switch {
		case ctx.Err() != nil:
			return
		case time.Since(opened) > maxBackoff: // the stream was probably open: log its end, and begin the back-off again
			pause, lastLogged = minBackoff, ""
		}
		if unsupported(err) {
			if lastLogged != "none" {
				p.cfg.Log.Warn("Container runtime has no event stream, relisting pods instead", "every", p.cfg.Fallback)
			}
			lastLogged = "none"
			for range relistsWithoutEvents {
				ask.Send()
				if !backoff.Sleep(ctx, p.cfg.Fallback) {
					return
				}
			}
			continue
		}
		if lastLogged != "ended" {
			level := slog.LevelWarn
			if errors.Is(err, pod.ErrUnavailable) {
				level = slog.LevelDebug // the engine logs that the runtime does not answer
			}
			p.cfg.Log.Log(ctx, level, "Container runtime events ended; retrying", "error", err)
		}
		lastLogged = "ended"
		if !backoff.Sleep(ctx, pause) {
			return
		}
		// No event reported the changes while the stream was closed: relist.
		ask.Send()
		pause = backoff.Next(pause, minBackoff, maxBackoff)
	}
}

// read subscribes once, and reads the stream to its end.
func (p *PLEG) read(ctx context.Context, d *dirty, ask, subscribed wakeup.Signal) error {
	defer p.busy.Store(0)
	for e, err := range p.cfg.Runtime.Events(ctx) {
		p.busy.Store(time.Now().UnixNano())
		switch {
		case err != nil:
			return err
		case e.Type == cri.EventSubscribed:
			subscribed.Send()
		case e.Key == pod.Key{}:
			ask.Send() // the event names no pod: relist
		default:
			d.add(e.Key)
		}
		p.busy.Store(0)
	}
	return ctx.Err()
}

// drainLimit is the time limit for handling one event.
const drainLimit = 2 * time.Second

// Healthy returns an error if drain has been handling one event for longer than drainLimit (F6,
// F7). Until drain reads the next event, it stalls the runtime.
func (p *PLEG) Healthy(context.Context) error {
	if since := p.busy.Load(); since != 0 && time.Since(time.Unix(0, since)) > drainLimit {
		return errors.New("the events of the container runtime are not handled in time")
	}
	return nil
}
