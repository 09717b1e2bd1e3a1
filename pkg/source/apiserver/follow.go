package apiserver

import (
	"context"
	"errors"
	"net/url"
	"sync"
	"time"
)

// follow watches from the newest resource version that was seen. due says that the
// watch ended when it was to end, or that a list has to come at once. Where one before
// was cut, the server's data may have been replaced meanwhile, and one page of a list
// has to say that time goes on. The error says why the watch was refused.
func (r *run) follow(ctx context.Context) (due bool, err error) {
	way, err := r.enter()
	if err != nil {
		return false, err
	}
	if r.on.host != way.host {
		r.on = ground{}
		return true, nil
	}
	asked, start := r.span(), time.Now()
	// Nobody hears of a connection that is dead without a word: pings end it
	// where HTTP/2 is spoken, keep-alives elsewhere, and this deadline where
	// something in between answers both.
	ctx, stop := context.WithTimeout(ctx, asked+r.grace)
	var reader sync.WaitGroup
	defer reader.Wait()
	defer stop()
	stream, err := way.watch(ctx, podsOf(r.cfg.Node), r.seen, asked)
	if err != nil {
		r.on, r.cut = r.after(r.on, err), true
		if errors.Is(err, errGone) {
			err = nil // a list tells what happened
		}
		return false, err
	}
	defer stream.Close()
	if r.cut {
		newest := r.newestHeard()
		now, err := way.page(ctx, podsOf(r.cfg.Node), url.Values{"limit": {"1"}})
		if err != nil {
			r.on = r.after(r.on, err)
			return false, err
		}
		if r.setBackTo(now.rv, newest) {
			r.fail(errBackInTime)
			r.on = ground{}
			return true, nil
		}
		r.cut = older(now.rv, r.newestHeard()) // was it said before that, or is it set back?
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
	r.on, due = r.ended(ctx, r.on, end, asked, lasted)
	r.cut = r.cut || !due
	return due, nil
}

// drain takes events, and what is told of objects, into the set and yields it when
// no more of them come at once, and when it could not be looked at before. It returns
// why there are no events any more.
func (r *run) drain(ctx context.Context, events <-chan event) error {
	linger := time.NewTimer(time.Hour)
	defer linger.Stop()
	linger.Stop()
	lingers, waits := false, false
	for !r.left {
		if (r.set.Dirty() || r.said != "") && (!lingers || waits && r.wait() == 0) {
			linger.Reset(r.linger)
			lingers, waits = true, false
		}
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
			r.on.heard = time.Now()
			r.take(e, r.flush)
			r.settle()
		}
	}
	return nil
}
