package apiserver

import (
	"context"
	"sync"
	"time"

	"github.com/nodectl/nodectl/pkg/apiclient"
)

// follow watches from the newest resource version that was seen. due says that the
// watch ended when it was to end, or that a list has to come at once. Where one before
// was cut, the server's data may have been replaced meanwhile, and one page of a list
// has to say that time goes on. The error says why the watch was refused.
func (r *run) follow(ctx context.Context) (due bool, err error) {
	transport, err := r.reader.Transport()
	if err != nil {
		return false, err
	}
	if r.at.Host != transport.Host() {
		r.at = apiclient.Position{}
		return true, nil
	}
	asked, start := r.reader.WatchTime(), time.Now()
	// Nobody hears of a connection that is dead without a word: pings end it
	// where HTTP/2 is spoken, keep-alives elsewhere, and this deadline where
	// something in between answers both.
	ctx, stop := context.WithTimeout(ctx, asked+r.reader.Tuning.WatchGrace)
	var reader sync.WaitGroup
	defer reader.Wait()
	defer stop()
	pods := apiclient.PodsOf(r.cfg.Node)
	stream, err := transport.Watch(ctx, pods, r.seen, asked)
	if err != nil {
		r.at, r.cut = r.reader.Refused(r.at, err), true
		if apiclient.IsGone(err) {
			err = nil // a list shows what happened
		}
		return false, err
	}
	defer stream.Close()
	if r.cut {
		newest := r.reader.NewestVersion()
		now, err := transport.Version(ctx, pods)
		if err != nil {
			r.at = r.reader.Refused(r.at, err)
			return false, err
		}
		if r.reader.IsSetBack(now, r.seen, newest) {
			r.fail(errBackInTime)
			r.at = apiclient.Position{}
			return true, nil
		}
		r.cut = apiclient.Older(now, r.reader.NewestVersion()) // it was answered before that, or the server is set back
	}
	events := make(chan apiclient.Event) // cap 0: the reader sends, the loop below receives; the reader waits
	reader.Go(func() {
		for {
			e := stream.Next()
			select {
			case events <- e:
			case <-ctx.Done():
				return
			}
			if e.Err != nil {
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
	r.at, due = r.reader.Ended(ctx, r.at, end, asked, lasted)
	r.cut = r.cut || !due
	return due, nil
}

// drain takes events, and what is told of objects, into the set and yields it when
// no more of them come at once, and when it could not be looked at before. It returns
// why there are no events any more.
func (r *run) drain(ctx context.Context, events <-chan apiclient.Event) error {
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
			if e.Err != nil {
				if r.set.Dirty() {
					r.flush()
				}
				return e.Err
			}
			r.at.Heard = time.Now()
			r.take(e, r.flush)
			r.settle()
		}
	}
	return nil
}
