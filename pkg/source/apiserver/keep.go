package apiserver

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/watch"
)

// verdict is what a listener wants next.
type verdict int

const (
	goOn   verdict = iota
	again          // list once more, after a moment
	enough         // nothing any more
)

// listener hears what a collection holds. Its functions are called by one
// goroutine.
type listener struct {
	list   func(all []object) verdict
	event  func(e event) verdict // added, modified or deleted
	failed func(err error)       // the collection could not be read
}

// ground is what a watch stands on: one complete list, and every event after it.
type ground struct {
	host  string          // whose list it is; "" for none: a list comes first
	epoch context.Context // done when that server's data were set back
	heard time.Time       // its last word
}

// after returns what the next watch stands on when one has ended by err. It goes on
// where that one stopped if that was cut, or if the server is down or busy, and not
// for long: what a server withholds that says nothing else is told by a list.
func (s *Source) after(on ground, err error) ground {
	refused := (*refusal)(nil)
	switch {
	case errors.Is(err, errGone), errors.Is(err, errPartial), errors.Is(err, errNotAPI), errors.Is(err, errSilent),
		errors.As(err, &refused) && refused.status != http.StatusTooManyRequests && refused.status < 500,
		time.Since(on.heard) > s.doubt:
		return ground{}
	}
	return on
}

// ended is after for a watch that there was; due says that it ended when it was to.
func (s *Source) ended(ctx context.Context, on ground, err error, asked, lasted time.Duration) (next ground, due bool) {
	due = errors.Is(err, io.EOF) && lasted >= asked
	if refused := (*refusal)(nil); ctx.Err() != nil || errors.As(err, &refused) {
		err = errSilent
	}
	if lasted > s.grace { // it lived until a moment ago
		on.heard = time.Now()
	}
	return s.after(on, err), due
}

// errSilent says that a watch was given up by either side.
var errSilent = errors.New("the watch was given up")

// span returns for how long a watch is asked.
func (s *Source) span() time.Duration {
	return (s.watched + rand.N(s.watched)).Truncate(time.Second)
}

// keep tells l of c until ctx ends or l has enough: a complete list, and what changes
// after it. It tries again for as long as it must.
func (s *Source) keep(ctx context.Context, c collection, l listener) {
	k := keeper{Source: s, of: c, to: l}
	for ctx.Err() == nil {
		said, err := k.once(ctx)
		if said == enough || ctx.Err() != nil {
			return
		}
		d := s.confirm
		if said == again {
			k.on = ground{}
		} else {
			d = s.delay(&k.pause, s.retry/8, err)
		}
		if err != nil {
			l.failed(err)
		}
		if !sleep(ctx, d) {
			return
		}
	}
}

// keeper is one run of keep.
type keeper struct {
	*Source
	of    collection
	to    listener
	on    ground
	seen  string        // where the next watch begins
	pause time.Duration // before the newest try
}

// once lists where a list has to come first, and watches for as long as watches end
// when they are to end. The error says why there is no list, or no watch.
func (k *keeper) once(ctx context.Context) (verdict, error) {
	for {
		way, err := k.enter()
		if err != nil {
			return goOn, err
		}
		if k.on.host != way.host || k.on.epoch.Err() != nil {
			on := ground{way.host, k.epoch(), time.Now()}
			all, err := way.list(ctx, k.of, k.pageSize)
			if err != nil {
				return goOn, err
			}
			if said := k.to.list(all.objects); said != goOn {
				return said, nil
			}
			k.on, k.seen = on, all.rv
			k.saw(on.epoch, all.rv)
		}
		if said, due, err := k.watch(ctx, way); said != goOn || !due {
			return said, err
		}
	}
}

// watch tells of what happens after k.seen until the watch ends. due says that it
// ended when it was to end; the error, why there was none.
func (k *keeper) watch(ctx context.Context, way access) (said verdict, due bool, err error) {
	asked, start := k.span(), time.Now()
	ctx, stop := context.WithTimeout(ctx, asked+k.grace)
	defer stop()
	defer context.AfterFunc(k.on.epoch, stop)()
	stream, err := way.watch(ctx, k.of, k.seen, asked)
	if err != nil {
		k.on = k.after(k.on, err)
		if errors.Is(err, errGone) {
			err = nil // a list tells what happened
		}
		return goOn, false, err
	}
	defer stream.Close()
	for said == goOn {
		e := stream.next()
		if e.err != nil {
			lasted := time.Since(start)
			if lasted > 4*k.pause {
				k.pause = 0
			}
			k.on, due = k.ended(ctx, k.on, e.err, asked, lasted)
			return goOn, due, nil
		}
		k.on.heard = time.Now()
		if rv := e.object.GetResourceVersion(); rv != "" {
			k.seen = rv
			k.saw(k.on.epoch, rv)
		}
		if e.kind != watch.Bookmark {
			said = k.to.event(e)
		}
	}
	return said, false, nil
}

// epoch returns a context that is done when the server's data turn out to have been
// set back: a watch that begins at a resource version of the future is agreed to, and
// hears nothing.
func (s *Source) epoch() context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.data == nil {
		s.data, s.setBack = context.WithCancel(context.Background())
	}
	return s.data
}

// newEpoch has everything listed anew.
func (s *Source) newEpoch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.data != nil {
		s.setBack()
		s.data = nil
	}
	s.newest = ""
}

// saw notes the newest resource version that any watch has heard of. One of an epoch
// that is over says nothing of the server's data of now.
func (s *Source) saw(epoch context.Context, rv string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if epoch != s.data {
		return
	}
	if s.newest == "" || older(s.newest, rv) {
		s.newest = rv
	}
}

// newestHeard returns the newest resource version that any watch of objects has heard
// of; "" for none.
func (s *Source) newestHeard() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.newest
}
