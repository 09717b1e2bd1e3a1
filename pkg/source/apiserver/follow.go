package apiserver

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"time"
)

// follow watches from the newest resource version that was seen. It reports
// whether the watch ended when it was to end, so that another may go on where it
// stopped. In any other case a list has to come first: the connection may have
// been cut because the server's data was replaced. The error says why the watch
// was refused.
func (r *run) follow(ctx context.Context) (again bool, err error) {
	way, err := r.enter()
	if err != nil {
		return false, err
	}
	asked := (r.watched + rand.N(r.watched)).Truncate(time.Second)
	start := time.Now()
	// Nobody hears of a connection that is dead without a word: pings end it
	// where HTTP/2 is spoken, keep-alives elsewhere, and this deadline where
	// something in between answers both.
	ctx, stop := context.WithTimeout(ctx, asked+r.grace)
	var reader sync.WaitGroup
	defer reader.Wait()
	defer stop()
	stream, err := way.watch(ctx, podsOf(r.cfg.Node), r.seen, asked)
	switch {
	case errors.Is(err, errGone):
		return false, nil
	case err != nil:
		return false, err
	}
	defer stream.Close()
	if r.said != "" {
		r.flush()
	}
	events := make(chan event) // cap 0: the reader sends, the loop below receives; the reader waits
	reader.Go(func() {
		for {
			e := stream.next()
			select {
			case events <- e:
			case <-ctx.Done():
				return
			}
			if e.err != nil {
				return
			}
		}
	})
	end := r.drain(ctx, events)
	lasted := time.Since(start)
	if lasted > 4*r.pause {
		r.pause = 0
	}
	r.cfg.Log.Debug("Watch ended", "kubeconfig", r.cfg.Kubeconfig, "resourceVersion", r.seen, "asked", asked, "lasted", lasted, "because", end)
	return errors.Is(end, io.EOF) && lasted >= asked, nil
}

// drain takes events, and what is told of objects, into the set and yields it when
// no more of them come at once. It returns why there are none any more.
func (r *run) drain(ctx context.Context, events <-chan event) error {
	linger := time.NewTimer(time.Hour)
	defer linger.Stop()
	linger.Stop()
	lingers, waits := false, false
	for !r.left {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-linger.C:
			if d := r.wait(); d > 0 { // a pod names what is being asked for
				linger.Reset(d)
				waits = true
				continue
			}
			lingers, waits = false, false
			r.flush()
		case n := <-r.news:
			r.hear(n)
		case e := <-events:
			if e.err != nil {
				if r.set.Dirty() {
					r.flush()
				}
				return e.err
			}
			r.take(e, r.flush)
			r.settle()
		}
		if r.set.Dirty() && (!lingers || waits && r.wait() == 0) {
			linger.Reset(r.linger)
			lingers, waits = true, false
		}
	}
	return nil
}
