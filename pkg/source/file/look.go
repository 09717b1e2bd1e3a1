package file

import (
	"context"
	"crypto/sha256"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/source"
)

// look is what one run of Sets knows.
type look struct {
	*Source
	ctx context.Context

	set     source.Builder
	entries map[string]*entry    // by path; what the set's reading was made from
	pending map[string]*pending  // files whose newest state is not believed yet
	gone    map[string]time.Time // files of the set that were not there, since when
	fresh   []string             // files accepted in this round

	dirs     map[string]bool // directories that are read; empty when Path is a file
	near     map[string]bool // directories watched for what happens to Path itself
	targets  map[string]bool // names that mean Path when heard from near
	mount    uint64          // mount of Path when it last held files
	dirty    map[string]bool // candidates that events named
	wantFull bool
	nextFull time.Time
	budget   budget

	watch     watcher
	unwatched string // why changes cannot be watched, "" when they are
	warned    string // what was last said about that

	err     error     // why it could not look in the last full look
	said    string    // the error last yielded, "" after a set
	heard   bool      // a set was yielded
	held    bool      // Path is missing, but not for long enough to say so
	missing time.Time // since when
}

// entry is what a reading was made from.
type entry struct {
	id      identity
	trusted bool // the same identity means the same content
	read    bool // sum is that of the reading in the set
	sum     [sha256.Size]byte
}

// pending is a state of a file that is not believed yet.
type pending struct {
	id    identity
	since time.Time // when this state was first seen
	first time.Time // since when the file has been undecided
	delay time.Duration
	next  time.Time
	told  bool // the set shows that it is being written
}

func newLook(ctx context.Context, s *Source) *look {
	return &look{
		Source: s, ctx: ctx,
		entries: map[string]*entry{}, pending: map[string]*pending{}, gone: map[string]time.Time{},
		dirs: map[string]bool{}, near: map[string]bool{}, targets: map[string]bool{}, dirty: map[string]bool{},
	}
}

func (l *look) checkDirty() {
	names := slices.Sorted(maps.Keys(l.dirty))
	clear(l.dirty)
	for _, path := range names {
		l.check(path)
	}
}

func (l *look) checkDue() {
	now := time.Now()
	for _, path := range slices.Sorted(maps.Keys(l.pending)) {
		if !l.pending[path].next.After(now) {
			l.check(path)
		}
	}
	if _, kind, _ := probe(filepath.Clean(l.cfg.Path)); len(l.gone) > 0 && kind == absent {
		// Not the files went: Path did.
		l.wantFull = true
		return
	}
	for _, path := range slices.Sorted(maps.Keys(l.gone)) {
		if !l.gone[path].Add(l.vanishing).After(now) {
			l.check(path)
		}
	}
}

// check brings the reading of one file up to date.
//
//	what is there            | what happens
//	nothing                  | removed once it has been away for vanishHold
//	the identity last read   | nothing
//	no regular file          | a problem; what was read from it stands
//	open for writing         | the reading before stands; looked at again soon
//	same bytes               | nothing
//	good news                | accepted
//	broken, or loses pods    | accepted once unchanged for badNewsHold
func (l *look) check(path string) {
	now := time.Now()
	id, kind, problem := probe(path)
	switch kind {
	case absent:
		l.vanish(path, now)
		return
	case directory:
		// Only a full look knows what to say of a directory.
		l.vanish(path, now)
		l.wantFull = true
		return
	}
	delete(l.gone, path)
	if problem != nil {
		l.refuse(path, id, problem, now)
		return
	}
	if e := l.entries[path]; e != nil && e.trusted && e.id == id {
		delete(l.pending, path)
		return
	}
	f, problem := openRegular(path)
	if problem != nil {
		if _, kind, _ := probe(path); kind == absent {
			l.vanish(path, now)
			return
		}
		l.refuse(path, id, problem, now)
		return
	}
	defer f.close()
	l.read(f, now)
}

// read accepts the content of f, or keeps the reading before for now.
func (l *look) read(f *open, now time.Time) {
	path := f.path
	if !l.quiet(path, f.id, l.patience(f), now) {
		return
	}
	data, stable, problem := f.read()
	if problem != nil {
		l.refuse(path, f.id, problem, now)
		return
	}
	if !stable {
		l.postpone(path, l.undecided(path, f.id, now), time.Second, now)
		return
	}
	sum := sha256.Sum256(data)
	e := &entry{id: f.id, trusted: !f.id.racy(now), read: true, sum: sum}
	if was := l.entries[path]; was != nil && was.read && was.sum == sum {
		l.entries[path] = e
		l.fresh = append(l.fresh, path)
		delete(l.pending, path)
		return
	}
	reading, notices := l.parse(data, path)
	if l.set.Worsens(reading) && !l.quiet(path, f.id, l.badNews, now) {
		return
	}
	l.entries[path] = e
	l.fresh = append(l.fresh, path)
	delete(l.pending, path)
	l.set.Put(reading, notices)
}

func (l *look) parse(data []byte, path string) (source.File, []pod.Problem) {
	reading, notices := l.cfg.Parse(data, path)
	reading.File = path
	return reading, notices
}

// patience is how long f must be unchanged before it is read.
func (l *look) patience(f *open) time.Duration {
	switch l.writerOf(f.fd) {
	case noWriter:
		return 0
	case unknownWriter:
		return badNewsHold
	}
	return time.Second
}

// quiet reports whether the state id of path has been there for as long as
// need. If not, the file is looked at again.
func (l *look) quiet(path string, id identity, need time.Duration, now time.Time) bool {
	p := l.undecided(path, id, now)
	unchanged := max(now.Sub(p.since), id.age(now))
	if unchanged >= need {
		return true
	}
	l.postpone(path, p, need-unchanged, now)
	return false
}

// undecided returns what is known of path's newest state, as of now.
func (l *look) undecided(path string, id identity, now time.Time) *pending {
	p := l.pending[path]
	if p == nil {
		p = &pending{first: now, since: now, id: id}
	} else if p.id != id {
		p.id, p.since, p.delay = id, now, 0
	}
	return p
}

// postpone has path looked at again: soon at first, then less often, and not
// later than most.
func (l *look) postpone(path string, p *pending, most time.Duration, now time.Time) {
	p.delay = min(max(2*p.delay, 10*time.Millisecond), 250*time.Millisecond)
	p.next = now.Add(min(p.delay, most))
	l.pending[path] = p
	if now.Sub(p.first) > 5*time.Second {
		l.tell(path, p)
	}
}

// tell shows that path is being written and that what was read before stands.
func (l *look) tell(path string, p *pending) {
	if p.told {
		return
	}
	p.told = true
	if e := l.entries[path]; e != nil {
		e.read, e.trusted = false, false
	}
	l.set.Put(source.File{File: path, Whole: true, Problems: []pod.Problem{{
		File: path, Msg: "is still being written",
		Hint: "it is read once its writer closes it",
	}}}, nil)
}

// refuse records that path is there but cannot be read.
func (l *look) refuse(path string, id identity, problem *pod.Problem, now time.Time) {
	if !l.quiet(path, id, l.badNews, now) {
		return
	}
	delete(l.pending, path)
	// Nothing vouches for a state that could not be read: it is tried again at
	// every look.
	l.entries[path] = &entry{id: id}
	l.set.Put(source.File{File: path, Whole: true, Problems: []pod.Problem{*problem}}, nil)
}

// vanish removes path once it has been away for vanishHold.
func (l *look) vanish(path string, now time.Time) {
	delete(l.pending, path)
	if !l.set.Has(path) {
		return
	}
	since, known := l.gone[path]
	switch {
	case !known:
		l.gone[path] = now
	case now.Sub(since) >= l.vanishing:
		l.drop(path)
	}
}

func (l *look) drop(path string) {
	delete(l.gone, path)
	delete(l.entries, path)
	l.set.Remove(path)
}

// dropMoved removes vanished files at once whose inode was read under another
// name in this round: they were renamed, and their pods must not be seen twice.
func (l *look) dropMoved() {
	if len(l.gone) == 0 {
		return
	}
	type inode struct{ dev, ino uint64 }
	seen := map[inode]bool{}
	for _, path := range l.fresh {
		id := l.entries[path].id
		seen[inode{id.dev, id.ino}] = true
	}
	for path := range l.gone {
		if e := l.entries[path]; e != nil && seen[inode{e.id.dev, e.id.ino}] {
			l.drop(path)
		}
	}
}
