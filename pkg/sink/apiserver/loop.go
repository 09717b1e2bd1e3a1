package apiserver

import (
	"context"
	"sync"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
)

// loop decides the requests and their times. It belongs to the goroutine of Run.
type loop struct {
	*Sink
	entries map[pod.Key]*entry
	orphans time.Time // from then on mirrors without a static pod go; zero: not yet
	limit   *bucket
	busy    int // requests in flight

	// The pause of all requests while the server is unavailable.
	closed time.Time     // until then nothing is sent
	asked  bool          // because the server said so
	pause  time.Duration // the last one; 0: it answers
}

const (
	// The pauses after a failure of one pod, and of the server.
	firstPause = 500 * time.Millisecond
	lastPause  = 30 * time.Second
	awayPause  = 8 * time.Second
	// refusedPause is the longest after a refusal: a person has to remove its cause.
	refusedPause = 2 * time.Minute
	// orphanGrace is how long the last report may take to arrive after Synced.
	orphanGrace = 10 * time.Second
	// awaitUID is how often the Node's UID is asked for while a mirror waits for it
	// (C-1.13.4), and whether an orphan is one.
	awaitUID = 250 * time.Millisecond
)

func newLoop(s *Sink) *loop {
	return &loop{Sink: s, entries: make(map[pod.Key]*entry), limit: newBucket(s.cfg.QPS, s.cfg.Burst, time.Now())}
}

// run works until ctx ends and the last answer is in.
func (l *loop) run(ctx context.Context) {
	var requests sync.WaitGroup
	defer requests.Wait()
	answers := make(chan answer) // cap 0
	send := func(q request) {
		l.busy++
		requests.Go(func() {
			a := l.do(ctx, q)
			select {
			case answers <- a:
			case <-ctx.Done():
			}
		})
	}
	again := time.NewTimer(time.Hour)
	defer again.Stop()
	reconcile := time.NewTicker(reconcileEvery)
	defer reconcile.Stop()
	for {
		if wait, ok := l.work(time.Now(), send); ok {
			again.Reset(wait)
		} else {
			again.Stop()
		}
		select {
		case <-ctx.Done():
			return
		case <-l.wake:
			l.read(time.Now())
		case a := <-answers:
			l.busy--
			l.take(a, time.Now())
		case <-reconcile.C:
			for key, e := range l.entries {
				if e.reconcile(time.Now()); e.over() {
					delete(l.entries, key)
				}
			}
		case <-again.C:
		}
	}
}

// read takes the content of the inbox.
func (l *loop) read(now time.Time) {
	mail := l.empty()
	if len(mail.seen) > 0 && !l.asked {
		l.closed = time.Time{} // the watch reaches the server
	}
	for key, s := range mail.seen {
		l.entry(key).see(s, now)
	}
	for key, r := range mail.reports {
		l.entry(key).setReport(r, now)
	}
	if mail.synced && l.orphans.IsZero() {
		l.orphans = now.Add(orphanGrace)
		for _, e := range l.entries {
			e.mark(l.orphans, false)
		}
	}
	for key, e := range l.entries {
		if e.over() {
			delete(l.entries, key)
		}
	}
}

func (l *loop) entry(key pod.Key) *entry {
	e := l.entries[key]
	if e == nil {
		e = &entry{key: key}
		l.entries[key] = e
	}
	return e
}

// work sends the due requests within the limits, and returns the time of the next ones; ok is false
// if only new input leads to more.
func (l *loop) work(now time.Time, send func(request)) (wait time.Duration, ok bool) {
	atMost := atOnce
	if l.pause > 0 {
		atMost = 1 // one finds out whether the server is back
	}
	for l.busy < atMost {
		e, wait, ok := l.first(now)
		if e == nil {
			return wait, ok
		}
		if d := l.limit.take(now); d > 0 {
			return d, true
		}
		q := l.next(e, now)
		if q.verb == nothing || q.verb == await {
			l.limit.giveBack()
		}
		e.due, e.urgent = time.Time{}, false
		switch q.verb {
		case nothing:
			e.settled = true
		case await:
			e.due = now.Add(awaitUID)
		default:
			e.busy, e.seen, e.deletedMeanwhile = true, false, ""
			send(q)
		}
	}
	return 0, false // an answer comes
}

// first returns the entry to send next: urgent ones first, then the one that has waited
// longest. If none is due, it returns when one will be.
func (l *loop) first(now time.Time) (best *entry, wait time.Duration, ok bool) {
	if d := l.closed.Sub(now); d > 0 {
		return nil, d, true
	}
	var next time.Time
	for _, e := range l.entries {
		at, may := e.ready()
		switch {
		case !may:
		case at.After(now):
			if next.IsZero() || at.Before(next) {
				next = at
			}
		case best == nil || before(e, best, now):
			best = e
		}
	}
	if best != nil || next.IsZero() {
		return best, 0, false
	}
	return nil, next.Sub(now), true
}

// longEnough is how long an entry that is not urgent lets urgent ones go first.
const longEnough = 5 * time.Second

func before(a, b *entry, now time.Time) bool {
	ua, ub := a.urgent || now.Sub(a.due) > longEnough, b.urgent || now.Sub(b.due) > longEnough
	if ua != ub {
		return ua
	}
	return a.due.Before(b.due)
}
