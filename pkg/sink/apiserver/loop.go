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
	orphans time.Time // from then on, the loop deletes orphaned mirrors; zero before Synced
	limit   *bucket
	busy    int // requests in flight

	// The pause of all requests while the server is unavailable.
	pausedUntil    time.Time     // until then nothing is sent
	pauseRequested bool          // the server demanded this pause by Retry-After
	pause          time.Duration // the length of the last pause; 0 while the server answers
}

const (
	// The first pause after a failure, and the longest after failures of one pod and of the server.
	firstPause         = 500 * time.Millisecond
	lastPause          = 30 * time.Second
	longestOutagePause = 8 * time.Second
	// refusedPause is the longest pause after a refusal: a person has to remove the cause.
	refusedPause = 2 * time.Minute
	// orphanGrace is how long after Synced a mirror without a report is not deleted yet.
	orphanGrace = 10 * time.Second
	// awaitPause is how often the loop looks again at an entry with the verb await. An example is a
	// mirror that waits for the Node's UID (C-1.13.4).
	awaitPause = 250 * time.Millisecond
)

func newLoop(s *Sink) *loop {
	return &loop{Sink: s, entries: make(map[pod.Key]*entry), limit: newBucket(s.cfg.QPS, s.cfg.Burst, time.Now())}
}

// run works until ctx ends and the last request has ended.
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
		case <-l.inputQueued:
			l.readInbox(time.Now())
		case a := <-answers:
			l.busy--
			l.handleAnswer(a, time.Now())
		case <-reconcile.C:
			for key, e := range l.entries {
				if e.reconcile(time.Now()); e.isDone() {
					delete(l.entries, key)
				}
			}
		case <-again.C:
		}
	}
}

// readInbox applies the content of the inbox to the entries.
func (l *loop) readInbox(now time.Time) {
	in := l.takeInbox()
	if len(in.seen) > 0 && !l.pauseRequested {
		l.pausedUntil = time.Time{} // the watch reaches the server
	}
	for key, s := range in.seen {
		l.entry(key).see(s, now)
	}
	for key, r := range in.reports {
		l.entry(key).setReport(r, now)
	}
	if in.synced && l.orphans.IsZero() {
		l.orphans = now.Add(orphanGrace)
		for _, e := range l.entries {
			e.mark(l.orphans, false)
		}
	}
	for key, e := range l.entries {
		if e.isDone() {
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

// work sends the due requests within the limits. wait is the time until the next ones; ok is false
// if they follow only from new input.
func (l *loop) work(now time.Time, send func(request)) (wait time.Duration, ok bool) {
	limit := maxInFlight
	if l.pause > 0 {
		limit = 1 // one request finds out whether the server is available again
	}
	for l.busy < limit {
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
			e.due = now.Add(awaitPause)
		default:
			e.busy, e.seen, e.deletedMeanwhile = true, false, ""
			send(q)
		}
	}
	return 0, false // the next answer calls work again
}

// first returns the entry to look at next: an urgent one first, then the one that has waited
// longest. If none is due, wait is the time until one will be; ok is false if none has a time.
func (l *loop) first(now time.Time) (best *entry, wait time.Duration, ok bool) {
	if d := l.pausedUntil.Sub(now); d > 0 {
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

// maxOvertaken is how long urgent entries go before an entry that is not urgent.
const maxOvertaken = 5 * time.Second

func before(a, b *entry, now time.Time) bool {
	ua, ub := a.urgent || now.Sub(a.due) > maxOvertaken, b.urgent || now.Sub(b.due) > maxOvertaken
	if ua != ub {
		return ua
	}
	return a.due.Before(b.due)
}
