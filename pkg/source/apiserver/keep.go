package apiserver

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
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

// keep tells l of c until ctx ends or l has enough: complete lists, and what
// changes in between. It tries again for as long as it must.
func (s *Source) keep(ctx context.Context, c collection, l listener) {
	pause := time.Duration(0)
	for ctx.Err() == nil {
		said, err := s.keepOnce(ctx, c, l, &pause)
		if said == enough || ctx.Err() != nil {
			return
		}
		d := s.confirm
		if said == goOn {
			d = s.delay(&pause, s.retry/8, err)
		}
		if err != nil {
			l.failed(err)
		}
		if !sleep(ctx, d) {
			return
		}
	}
}

// keepOnce lists, and watches for as long as nothing is in doubt.
func (s *Source) keepOnce(ctx context.Context, c collection, l listener, pause *time.Duration) (verdict, error) {
	way, err := s.enter()
	if err != nil {
		return goOn, err
	}
	all, err := way.list(ctx, c, s.pageSize)
	if err != nil {
		return goOn, err
	}
	if said := l.list(all.objects); said != goOn {
		return said, nil
	}
	for seen := all.rv; ; {
		start := time.Now()
		asked := (s.watched + rand.N(s.watched)).Truncate(time.Second)
		said, err := s.watchOnce(ctx, c, l, &seen, asked)
		lasted := time.Since(start)
		if lasted > 4**pause {
			*pause = 0
		}
		switch {
		case said != goOn:
			return said, nil
		case errors.Is(err, io.EOF) && lasted >= asked: // it ended when it was to end
		case errors.Is(err, io.EOF), errors.Is(err, errGone), errors.Is(err, errPartial):
			return goOn, nil // a list tells what happened
		default:
			return goOn, err
		}
	}
}

// watchOnce tells l what happens after *seen until the watch ends, and why it did.
func (s *Source) watchOnce(ctx context.Context, c collection, l listener, seen *string, asked time.Duration) (verdict, error) {
	ctx, stop := context.WithTimeout(ctx, asked+s.grace)
	defer stop()
	way, err := s.enter()
	if err != nil {
		return goOn, err
	}
	stream, err := way.watch(ctx, c, *seen, asked)
	if err != nil {
		return goOn, err
	}
	defer stream.Close()
	for {
		e := stream.next()
		if e.err != nil {
			return goOn, e.err
		}
		if rv := e.object.GetResourceVersion(); rv != "" {
			*seen = rv
		}
		if e.kind == watch.Bookmark {
			continue
		}
		if said := l.event(e); said != goOn {
			return said, nil
		}
	}
}
