package apiserver

import (
	"context"
	"sync"
	"time"

	"github.com/nodectl/nodectl/pkg/apiclient"
)

// follow watches from the newest resource version that was seen. due says that the watch has ended at its
// requested end, or that the caller has to list at once. If the last watch was interrupted, the server's
// data may have been replaced meanwhile. Then follow also gets the server's current version, which must
// not be lower. The error says why the server refused the watch.
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
	// A dead connection may give no error. Pings end it on HTTP/2, keep-alives elsewhere, and
	// this deadline if a proxy answers both.
	ctx, stop := context.WithTimeout(ctx, asked+r.reader.Tuning.WatchGrace)
	var reader sync.WaitGroup
	defer reader.Wait()
	defer stop()
	pods := apiclient.PodsOf(r.cfg.Node)
	stream, err := transport.Watch(ctx, pods, r.seen, asked)
	if err != nil {
		r.at, r.cut = r.reader.PositionAfterRefusal(r.at, err), true
		if apiclient.IsGone(err) {
			err = nil // a list shows the current state
		}
		return false, err
	}
	defer stream.Close()
	if r.cut {
		newest := r.reader.NewestVersion()
		now, err := transport.Version(ctx, pods)
		if err != nil {
			r.at = r.reader.PositionAfterRefusal(r.at, err)
			return false, err
		}
		if r.reader.IsRolledBack(now, r.seen, newest) {
			r.fail(errBackInTime)
			r.at = apiclient.Position{}
			return true, nil
		}
		r.cut = apiclient.Older(now, r.reader.NewestVersion()) // another reader has seen a newer version meanwhile, or the server is set back
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
	r.cfg.Log.Debug("Watch ended", "kubeconfig", r.cfg.Kubeconfig, "resourceVersion", r.seen, "asked", asked, "lasted", lasted, "reason", end)
	r.at, due = r.reader.PositionAfterEnd(ctx, r.at, end, asked, lasted)
	r.cut = r.cut || !due
	return due, nil
}

// drain applies events, and the answers of readers, to the set. It yields the set when linger has passed
// since a change, and before it returns an error. It returns why the events have ended.
func (r *run) drain(ctx context.Context, events <-chan apiclient.Event) error {
	linger := time.NewTimer(time.Hour)
	defer linger.Stop()
	linger.Stop()
	retry := time.NewTimer(time.Hour)
	defer retry.Stop()
	retry.Stop()
	lingers, waits, retries := false, false, false
	for !r.left {
		if r.moved && !retries {
			retry.Reset(r.again)
			retries = true
		}
		if (r.isDirty() || r.lastError != "") && (!lingers || waits && r.wait() == 0) {
			linger.Reset(r.linger)
			lingers, waits = true, false
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-linger.C:
			if d := r.wait(); d > 0 { // pods wait for the first answer about an object
				linger.Reset(d)
				waits = true
				continue
			}
			lingers, waits = false, false
			r.flush()
		case <-retry.C:
			retries = false
			r.retry()
			r.syncReaders()
		case a := <-r.answers:
			r.takeAnswer(a)
		case e := <-events:
			if e.Err != nil {
				if r.isDirty() {
					r.flush()
				}
				return e.Err
			}
			r.at.LastMessage = time.Now()
			r.take(e, r.flush)
			r.syncReaders()
		}
	}
	return nil
}
