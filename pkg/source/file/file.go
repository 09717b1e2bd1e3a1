// Package file reads manifests from a file or a directory. It finds changes by inotify, and
// by a rescan every CheckFrequency.
//
// It yields one source.File for each manifest. A file that is open for writing keeps its
// previous reading. A file that cannot be read is a problem of that file. A directory that
// cannot be read is an error.
//
// The source removes a file only after a lookup has not found it.
//
// All state belongs to the goroutine that ranges over Sets. Only the watcher has goroutines of its own,
// which end before Sets returns. It sends events on a channel of capacity 0 to the ranging goroutine.
// While that goroutine does not receive, the kernel queues events. If its queue overflows, the watcher
// reports that events were lost.
package file

import (
	"context"
	"iter"
	"log/slog"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/source"
)

// SizeLimit is the largest manifest that is read, in bytes.
const SizeLimit = 10 << 20

const (
	// linger is how long the source collects events after the first one. A rename is two events, and
	// an editor that saves a file may cause nine.
	linger = 300 * time.Microsecond
	// Between rescans, burst rounds may follow each other at once, and then one round every spacing.
	burst   = 3
	spacing = 100 * time.Millisecond
	// vanishHold is how long a file must be missing before it counts as removed: some editors rename
	// a file before they write the new one.
	vanishHold = 100 * time.Millisecond
	// worseHold is how long a file must be unchanged before the source accepts a reading
	// that is broken or loses pods.
	worseHold = 50 * time.Millisecond
	// writerHold is how long a file that a process has open for writing must be
	// unchanged before the source reads it.
	writerHold = time.Second
	// pollInterval replaces CheckFrequency while changes cannot be watched and while
	// the source cannot be read.
	pollInterval = 2 * time.Second
	// firstWait limits how long the first set waits for files that a process is writing.
	firstWait = 1200 * time.Millisecond
)

// Config is the configuration of a file source.
type Config struct {
	// Path is a file or a directory, as given by the user.
	Path string
	// Recursive says that the source reads the directories below Path, too.
	Recursive bool
	// CheckFrequency is the time between rescans. They find changes without inotify events, such as
	// those behind symbolic links and on network file systems. Zero is 20 s (C-1.6.1).
	CheckFrequency time.Duration
	// Permissions says how to treat manifests that other users could have written; zero
	// refuses them.
	Permissions Permissions
	// Owners are the users besides root that may own manifests: the caller and, under
	// sudo, the user that called it.
	Owners []int
	// Parse decodes one manifest. The second result has a notice for each part that Parse ignored on
	// purpose. Only one goroutine at a time calls it. Required.
	Parse func(data []byte, file string) (source.File, []pod.Problem)
	// Log receives a debug message for each scan, and messages about failed watches and lost events;
	// nil discards them.
	Log *slog.Logger
}

// Source is a file source.
type Source struct {
	cfg        Config
	newWatcher func() (watcher, error)
	mountOf    func(st *state) uint64
	writerOf   func(f *opened) writer
	poll       time.Duration // pollInterval
	vanishing  time.Duration // vanishHold
	worse      time.Duration // worseHold
	leftOpen   time.Duration // writerHold
}

var _ source.Source = (*Source)(nil)

// New returns the source of cfg.Path. It reads nothing before Sets.
func New(cfg Config) *Source {
	if cfg.CheckFrequency <= 0 {
		cfg.CheckFrequency = 20 * time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Source{
		cfg: cfg, newWatcher: newFSWatcher, mountOf: func(st *state) uint64 { return st.mount }, writerOf: writerOf,
		poll: pollInterval, vanishing: vanishHold, worse: worseHold, leftOpen: writerHold,
	}
}

// Name returns "file:" and the path as given.
func (s *Source) Name() string { return "file:" + s.cfg.Path }

// Sets implements source.Source. It never ends by itself.
func (s *Source) Sets(ctx context.Context) iter.Seq2[source.Snapshot, error] {
	return func(yield func(source.Snapshot, error) bool) {
		l := newScan(ctx, s)
		defer l.unwatch()
		for ctx.Err() == nil {
			l.round()
			if ctx.Err() != nil || !l.emit(yield) {
				return
			}
			l.wait()
		}
	}
}

// emit yields the changes of the last round, if any.
func (l *scan) emit(yield func(source.Snapshot, error) bool) bool {
	switch {
	case l.err != nil:
		if l.lastError == l.err.Error() {
			return true
		}
		l.lastError = l.err.Error()
		return yield(source.Snapshot{}, l.err)
	case l.withheld || (!l.set.Dirty() && l.lastError == "" && l.yielded):
		return true
	}
	l.lastError, l.yielded = "", true
	return yield(l.set.Snapshot(), nil)
}

// round does the work that is due: a full look, or a check of the files that events named and of those
// whose check was postponed.
func (l *scan) round() {
	now := time.Now()
	l.fresh = l.fresh[:0]
	full := !now.Before(l.nextFull)
	if !full && l.hasWork(now) && l.budget.take(now) {
		if full = l.wantFull || l.err != nil; !full {
			l.checkDirty()
			l.checkPending()
		}
	}
	if full {
		l.full()
	}
	if l.err == nil && !l.withheld {
		l.checkGone()
		l.dropMoved()
	}
}

// hasWork reports whether at now there is a reason for a round.
func (l *scan) hasWork(now time.Time) bool {
	next, some := l.nextCheck()
	return l.wantFull || len(l.dirty) > 0 || (some && !next.After(now) && l.err == nil && !l.withheld)
}

// wait returns when a round is due, when an event has come, or when ctx is done.
func (l *scan) wait() {
	for {
		timer := time.NewTimer(time.Until(l.nextDue()))
		var events <-chan event
		if l.watch != nil {
			events = l.watch.events()
		}
		select {
		case <-l.ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
			return
		case e := <-events:
			timer.Stop()
			if l.gather(e, events) {
				return
			}
		}
	}
}

// gather handles e, and the events that follow within linger. It reports whether a round is due.
func (l *scan) gather(e event, events <-chan event) bool {
	l.handle(e)
	timer := time.NewTimer(linger)
	defer timer.Stop()
	for {
		select {
		case e := <-events:
			l.handle(e)
		case <-timer.C:
			return (l.wantFull || len(l.dirty) > 0) && !l.budget.next().After(time.Now())
		case <-l.ctx.Done():
			return true
		}
	}
}

// nextDue returns when the next round is due, if no further event comes.
func (l *scan) nextDue() time.Time {
	due := l.nextFull
	if l.wantFull || len(l.dirty) > 0 {
		due = earlier(due, l.budget.next())
	}
	if l.err != nil || l.withheld {
		return due
	}
	if next, some := l.nextCheck(); some {
		due = earlier(due, later(next, l.budget.next()))
	}
	if at, some := l.goneAt(); some {
		due = earlier(due, at)
	}
	return due
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// budget is a token bucket of rounds: burst at once, then one every spacing.
type budget struct {
	full time.Time // when the bucket is full again
}

func (b *budget) take(now time.Time) bool {
	if b.next().After(now) {
		return false
	}
	if b.full.Before(now) {
		b.full = now
	}
	b.full = b.full.Add(spacing)
	return true
}

// next returns when the next round may begin.
func (b *budget) next() time.Time { return b.full.Add(-(burst - 1) * spacing) }
