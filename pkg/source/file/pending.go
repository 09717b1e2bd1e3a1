package file

import (
	"slices"
	"time"

	"github.com/nodectl/nodectl/pkg/backoff"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/source"
)

// pending is a state of a file that is not accepted yet.
type pending struct {
	id       identity
	since    time.Time // when this state was first seen
	first    time.Time // when the file first had a state that was not accepted
	delay    time.Duration
	next     time.Time
	reported bool // the set has the problem that the file is being written
}

// checkPending checks again the pending files whose next check is due.
func (l *scan) checkPending() {
	now := time.Now()
	var due []string
	for path, p := range l.pending {
		if !p.next.After(now) {
			due = append(due, path)
		}
	}
	slices.Sort(due)
	l.checkAll(due)
}

// nextCheck returns when the next check of a pending file is due; some is false if no file is pending.
func (l *scan) nextCheck() (first time.Time, some bool) {
	for _, p := range l.pending {
		if !some || p.next.Before(first) {
			first, some = p.next, true
		}
	}
	return first, some
}

// quietTime returns how long f must be unchanged before the source reads it.
func (l *scan) quietTime(f *opened) time.Duration {
	switch l.writerOf(f) {
	case noWriter:
		return 0
	case unknownWriter:
		return worseHold
	}
	return l.leftOpen
}

// quiet reports whether path has been in state id for as long as need. If not, it schedules
// another check.
func (l *scan) quiet(path string, id identity, need time.Duration, now time.Time) bool {
	p := l.undecided(path, id, now)
	unchanged := max(now.Sub(p.since), id.age(now))
	if unchanged >= need {
		return true
	}
	l.postpone(path, p, need-unchanged, now)
	return false
}

// undecided returns the pending state of path. If id is another state than before, its time begins now.
func (l *scan) undecided(path string, id identity, now time.Time) *pending {
	p := l.pending[path]
	if p == nil {
		p = &pending{first: now, since: now, id: id}
	} else if p.id != id {
		p.id, p.since, p.delay = id, now, 0
	}
	return p
}

// postpone schedules the next check of path, at the latest after most. The delay doubles with each
// check of the same state. After 5 s without an accepted state, it calls reportPending.
func (l *scan) postpone(path string, p *pending, most time.Duration, now time.Time) {
	p.delay = backoff.Next(p.delay, 10*time.Millisecond, 250*time.Millisecond)
	p.next = now.Add(min(p.delay, most))
	l.pending[path] = p
	if now.Sub(p.first) > 5*time.Second {
		l.reportPending(path, p)
	}
}

// reportPending adds the problem that path is being written to the set; its last good pods stay.
func (l *scan) reportPending(path string, p *pending) {
	if p.reported {
		return
	}
	p.reported = true
	l.entries[path] = &entry{id: p.id}
	l.set.Put(source.File{File: path, Incomplete: true, Problems: []pod.Problem{{
		File: path, Msg: "is still being written",
		Hint: "it is read once its writer closes it",
	}}}, nil)
}
