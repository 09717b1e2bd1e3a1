package apiclient

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/nodectl/nodectl/pkg/backoff"
)

// Next says how a reflector goes on.
type Next int

const (
	Continue  Next = iota
	ListAgain      // after a moment
	Stop
)

// Listener gets the state of a collection. One goroutine calls its functions.
type Listener struct {
	List   func(all []Object) Next
	Event  func(e Event) Next // added, modified or deleted
	Failed func(err error)    // the collection could not be read
}

// Position is where the next watch of a collection begins: after one complete list, and
// every event since. A list has to come first for the zero value.
type Position struct {
	Host        string          // of the server that was listed
	LastMessage time.Time       // when that server sent something last
	epoch       context.Context // done when that server's data were set back; nil for never
}

// Reflect lists c, then watches it, and lists it again whenever a watch may have missed
// something. It retries until ctx ends or l says Stop.
func (r *Reader) Reflect(ctx context.Context, c Collection, l Listener) {
	f := reflector{Reader: r, of: c, to: l}
	sleep := func(d time.Duration, or <-chan struct{}) bool { return backoff.SleepOr(ctx, d, or) }
	for ctx.Err() == nil {
		returned := r.Recovered()
		next, err := f.once(ctx)
		if next == Stop || ctx.Err() != nil {
			return
		}
		d := r.Tuning.Confirm
		if next == ListAgain {
			f.at, returned = Position{}, nil
		} else {
			d = r.Delay(&f.pause, r.Tuning.FirstRetry/8, err)
		}
		if err != nil {
			l.Failed(err)
		}
		if !r.Wait(d, returned, sleep) {
			return
		}
	}
}

// reflector is one run of Reflect.
type reflector struct {
	*Reader
	of      Collection
	to      Listener
	at      Position
	version string        // after which the next watch begins
	pause   time.Duration // before the newest try
}

// once lists if a list has to come first, and watches for as long as watches end when
// they are due. The error says why there is no list, or no watch.
func (f *reflector) once(ctx context.Context) (Next, error) {
	for {
		transport, err := f.Transport()
		if err != nil {
			return Continue, err
		}
		if f.at.Host != transport.Host() || f.at.epoch.Err() != nil {
			at := Position{Host: transport.Host(), LastMessage: time.Now(), epoch: f.client.Epoch()}
			all, err := f.list(ctx, transport)
			if err != nil {
				return Continue, err
			}
			if next := f.to.List(all.Objects); next != Continue {
				return next, nil
			}
			f.at, f.version = at, all.Version
			f.client.epoch.saw(at.epoch, all.Version)
		}
		if next, due, err := f.watch(ctx, transport); next != Continue || !due {
			return next, err
		}
	}
}

// list lists the collection in its turn.
func (f *reflector) list(ctx context.Context, transport *Transport) (List, error) {
	done, err := f.limit.acquire(ctx, f.of.namespace)
	if err != nil {
		return List{}, err
	}
	defer done()
	return transport.List(ctx, f.of, f.Tuning.PageSize)
}

// watch passes on the events after f.version until the watch ends. due says that it ended
// when it was due. The error says why there was no watch.
func (f *reflector) watch(ctx context.Context, transport *Transport) (next Next, due bool, err error) {
	asked, start := f.WatchTime(), time.Now()
	ctx, stop := context.WithTimeout(ctx, asked+f.Tuning.WatchGrace)
	defer stop()
	defer context.AfterFunc(f.at.epoch, stop)()
	stream, err := transport.Watch(ctx, f.of, f.version, asked)
	if err != nil {
		f.at = f.PositionAfterRefusal(f.at, err)
		if IsGone(err) {
			err = nil // a list shows the current state
		}
		return Continue, false, err
	}
	defer stream.Close()
	for next == Continue {
		e := stream.Next()
		if e.Err != nil {
			lasted := time.Since(start)
			if lasted > 4*f.pause {
				f.pause = 0
			}
			f.at, due = f.PositionAfterEnd(ctx, f.at, e.Err, asked, lasted)
			return Continue, due, nil
		}
		f.at.LastMessage = time.Now()
		if version := e.Object.GetResourceVersion(); version != "" {
			f.version = version
			f.client.epoch.saw(f.at.epoch, version)
		}
		if e.Type != watch.Bookmark {
			next = f.to.Event(e)
		}
	}
	return next, false, nil
}

// IsGone reports whether a watch was refused because the server no longer keeps its
// resource version. A list has to come first.
func IsGone(err error) bool { return errors.Is(err, errGone) }

// WatchTime returns for how long the next watch is asked for.
func (r *Reader) WatchTime() time.Duration {
	return (r.Tuning.Watch + rand.N(r.Tuning.Watch)).Truncate(time.Second)
}

// PositionAfterRefusal returns the position of the next watch after one at p was refused. It stays
// where the connection was cut, or the server is down or busy. That holds for Tuning.MaxSilence: a
// list shows the state of a server that sends nothing else.
func (r *Reader) PositionAfterRefusal(p Position, err error) Position {
	refused := (*statusError)(nil)
	switch {
	case errors.Is(err, errGone), errors.Is(err, errPartial), errors.Is(err, errNotAPI), errors.Is(err, errAbandoned),
		errors.As(err, &refused) && refused.status != http.StatusTooManyRequests && refused.status < 500,
		time.Since(p.LastMessage) > r.Tuning.MaxSilence:
		return Position{}
	}
	return p
}

// PositionAfterEnd returns the position of the next watch after one at p has ended by err, and
// whether it ended when it was due.
func (r *Reader) PositionAfterEnd(ctx context.Context, p Position, err error, asked, lasted time.Duration) (next Position, due bool) {
	due = errors.Is(err, io.EOF) && lasted >= asked
	if refused := (*statusError)(nil); ctx.Err() != nil || errors.As(err, &refused) {
		err = errAbandoned
	}
	if lasted > r.Tuning.WatchGrace { // the connection worked until a moment ago
		p.LastMessage = time.Now()
	}
	return r.PositionAfterRefusal(p, err), due
}

// errAbandoned says that either side gave up a watch.
var errAbandoned = errors.New("the watch was stopped")
