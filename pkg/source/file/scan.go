package file

import (
	"context"
	"crypto/sha256"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/source"
)

// scan is the state of one run of Sets. A full scan of Path lists its directories and checks all
// of its files.
type scan struct {
	*Source
	ctx context.Context

	set     source.Builder
	entries map[string]*entry    // the state of the reading of each file of the set, by path
	pending map[string]*pending  // files whose newest state is not accepted yet
	gone    map[string]time.Time // files of the set that are missing, each with the time of the first failed lookup
	fresh   []string             // files accepted in this round

	dropping bool // checkGone runs: vanish removes the files that are still missing

	names    map[string]*name   // the content of the directories, by path
	folders  map[string]*folder // the directories that the source reads, by path
	turn     uint64             // counts full looks
	skips    int                // how many names the last full look skipped
	buf, key []byte             // buffers for listing
	cost     cost

	parents  map[string]bool // directories watched for changes of Path itself
	targets  map[string]bool // Path and the target of its links, for events in parents
	dirty    map[string]bool // files that events named
	wantFull bool
	nextFull time.Time
	budget   budget

	watch     watcher
	unwatched string // why changes cannot be watched; "" if they can
	warned    string // the reason in the last warning about that
	overflown bool   // the loss of events was logged once

	err       error     // why the last full scan failed
	lastError string    // the error last yielded, "" after a set
	yielded   bool      // a set was yielded
	withheld  bool      // Path is missing, but not for long enough to report it
	missing   time.Time // when Path was first found missing; zero: it exists
}

// cost counts the work since Sets began: directories listed, names looked at, files opened,
// files read.
type cost struct{ listed, looked, opened, read int }

// entry is the state of a file that was read.
type entry struct {
	id        identity
	trusted   bool // as long as the identity stays the same, the content does, too
	linked    bool // the path of the file has a link, which may change without an event
	read      bool // sum is the sum of the reading in the set
	sum       [sha256.Size]byte
	violation violation // the last violation of its permissions
}

func newScan(ctx context.Context, s *Source) *scan {
	return &scan{
		Source: s, ctx: ctx,
		entries: map[string]*entry{}, pending: map[string]*pending{}, gone: map[string]time.Time{},
		names: map[string]*name{}, folders: map[string]*folder{}, buf: make([]byte, 32<<10), parents: map[string]bool{}, targets: map[string]bool{}, dirty: map[string]bool{},
	}
}

func (l *scan) checkDirty() {
	names := slices.Sorted(maps.Keys(l.dirty))
	clear(l.dirty)
	l.checkAll(names)
}

// checkGone removes the files that have been missing for long enough.
func (l *scan) checkGone() {
	if len(l.gone) == 0 {
		return
	}
	if l.stat(filepath.Clean(l.cfg.Path)).kind == absent {
		// Path is missing, and not only the files.
		l.wantFull = true
		return
	}
	if due := l.goneDue(time.Now()); len(due) > 0 {
		l.dropping = true
		l.checkAll(due)
		l.dropping = false
	}
}

// goneDue returns the files that have been missing for long enough, sorted. A command like rm removes
// files one after the other. So all of them wait until the last one has been missing for vanishHold, but
// at most for twice vanishHold after the first one. Otherwise several sets would remove their pods, and
// the pods would not stop in the order of their dependencies.
func (l *scan) goneDue(now time.Time) []string {
	if at, some := l.goneAt(); !some || at.After(now) {
		return nil
	}
	var due []string
	for path, since := range l.gone {
		if !since.Add(l.vanishing).After(now) {
			due = append(due, path)
		}
	}
	slices.Sort(due)
	return due
}

// goneAt returns when the missing files are due; some is false if there are none.
func (l *scan) goneAt() (at time.Time, some bool) {
	var first, last time.Time
	for _, since := range l.gone {
		if !some || since.Before(first) {
			first = since
		}
		if !some || since.After(last) {
			last = since
		}
		some = true
	}
	return earlier(last.Add(l.vanishing), first.Add(2*l.vanishing)), some
}

// checkAll updates the readings of the files at paths, which is sorted. It looks up all files of a
// directory through one descriptor.
func (l *scan) checkAll(paths []string) {
	var d *dir
	var bad violation
	var err error
	done := func() {
		if d != nil {
			d.close()
		}
	}
	at := ""
	for _, path := range paths {
		if dir := filepath.Dir(path); at != dir {
			done()
			at = dir
			d, bad, err = l.enter(at)
		}
		switch {
		case d != nil:
			base := filepath.Base(path)
			l.cost.looked++
			l.check(d, base, path, d.stat(base, path), bad)
		case isAbsent(err):
			l.vanish(path, time.Now())
		case err != nil:
			l.refuse(path, identity{}, cannotRead(path, err), time.Now())
		}
	}
	done()
}

// enter opens the directory path to look up names in it. If the directory is new or its permissions have
// changed, it requests a full look, and returns neither a directory nor an error.
func (l *scan) enter(path string) (*dir, violation, error) {
	d, err := l.openDir(path, false)
	if err != nil {
		return nil, violation{}, err
	}
	l.cost.looked++
	st, err := d.state()
	bad := l.cfg.judge(path, &st)
	if known := l.folders[path]; err == nil && (known == nil || known.violation != bad) {
		l.wantFull = true
	} else if err == nil {
		return d, bad, nil
	}
	d.close()
	return nil, violation{}, err
}

// openDir opens a directory that the source reads. Path may be a link to a directory. The source reads no
// links to directories below Path, so there openDir does not follow a link.
func (l *scan) openDir(path string, list bool) (*dir, error) {
	if root := filepath.Clean(l.cfg.Path); len(path) > len(root) && strings.HasPrefix(path, root) {
		return openBelow(path, list)
	}
	return openDir(path, list)
}

func (l *scan) stat(path string) state {
	l.cost.looked++
	return statPath(path)
}

// check updates the reading of one file. st is the state of base, a name in d, whose path is path. bad is
// the violation of d. The first row that matches decides.
//
//	the file                          | effect
//	is in a directory with violations | a problem; its previous reading stays
//	is missing                        | removed once it has been missing for vanishHold
//	has the identity last read        | none
//	is not a regular file             | a problem; its previous reading stays
//	could be written by other users   | a problem; its previous reading stays
//	is open for writing               | its previous reading stays; checked again soon
//	has the bytes last read           | none
//	is broken, or loses pods          | accepted once unchanged for worseHold
//	else                              | accepted
func (l *scan) check(d *dir, base, path string, st state, bad violation) {
	if !bad.none() && l.cfg.Permissions == Refuse {
		l.putUntrusted(path, st, bad.of(d.path))
		return
	}
	e := l.entries[path]
	follow := e != nil && e.linked && l.cfg.Permissions != Ignore
	if e != nil && e.trusted && e.id == st.id && !follow {
		delete(l.gone, path)
		delete(l.pending, path)
		return
	}
	now := time.Now()
	switch st.kind {
	case absent:
		l.vanish(path, now)
		return
	case directory:
		// Only a full scan can report on a directory.
		l.vanish(path, now)
		l.wantFull = true
		return
	}
	delete(l.gone, path)
	if st.problem != nil {
		l.refuse(path, st.id, st.problem, now)
		return
	}
	l.cost.opened++
	f, c, problem := d.open(base, path, l.cfg.judgePath)
	if problem != nil {
		if d.stat(base, path).kind == absent {
			l.vanish(path, now)
			return
		}
		l.refuse(path, st.id, problem, now)
		return
	}
	defer f.close()
	if !c.none() && l.cfg.Permissions == Refuse {
		problem := c.at(path, Refuse)
		l.refuse(path, f.id, &problem, now)
		return
	}
	if e != nil && e.trusted && e.id == f.id && e.violation == c {
		delete(l.pending, path)
		return
	}
	l.read(f, c, now)
}

// putUntrusted notes a problem for a file in a directory with a violation. A file of the set stays in the
// set even if the directory no longer has the file.
func (l *scan) putUntrusted(path string, st state, bad violation) {
	delete(l.gone, path)
	delete(l.pending, path)
	if st.kind == absent && !l.set.Has(path) {
		return
	}
	l.entries[path] = &entry{id: st.id}
	l.set.Put(source.File{File: path, Incomplete: true, Problems: []pod.Problem{bad.at(path, Refuse)}}, nil)
}

// read reads f, and accepts the content or keeps the previous reading for now. c is the violation of
// the permissions of f.
func (l *scan) read(f *opened, c violation, now time.Time) {
	path := f.path
	if !l.quiet(path, f.id, l.quietTime(f), now) {
		return
	}
	l.cost.read++
	data, stable, problem := f.readAll()
	if problem != nil {
		l.refuse(path, f.id, problem, now)
		return
	}
	if !stable {
		l.postpone(path, l.undecided(path, f.id, now), time.Second, now)
		return
	}
	sum := sha256.Sum256(data)
	e := &entry{id: f.id, trusted: !f.id.racy(now), linked: f.linked, read: true, sum: sum, violation: c}
	if was := l.entries[path]; was != nil && was.read && was.sum == sum && was.violation == c {
		l.accept(path, e)
		return
	}
	reading, notices := l.parse(data, path)
	if l.set.IsWorse(reading) && !l.quiet(path, f.id, l.worse, now) {
		return
	}
	if !c.none() {
		notices = append(slices.Clip(notices), c.at(path, Warn))
	}
	l.accept(path, e)
	l.set.Put(reading, notices)
}

func (l *scan) accept(path string, e *entry) {
	l.entries[path] = e
	l.fresh = append(l.fresh, path)
	delete(l.pending, path)
}

func (l *scan) parse(data []byte, path string) (source.File, []pod.Problem) {
	reading, notices := l.cfg.Parse(data, path)
	reading.File = path
	return reading, notices
}

// refuse notes that path exists but cannot be read.
func (l *scan) refuse(path string, id identity, problem *pod.Problem, now time.Time) {
	if !l.quiet(path, id, l.worse, now) {
		return
	}
	delete(l.pending, path)
	// The entry is not trusted, so that every check tries to read the file again.
	l.entries[path] = &entry{id: id}
	l.set.Put(source.File{File: path, Incomplete: true, Problems: []pod.Problem{*problem}}, nil)
}

// vanish notes that path is missing; checkGone removes it later.
func (l *scan) vanish(path string, now time.Time) {
	delete(l.pending, path)
	if !l.set.Has(path) {
		return
	}
	switch _, known := l.gone[path]; {
	case !known:
		l.gone[path] = now
	case l.dropping:
		l.drop(path)
	}
}

func (l *scan) drop(path string) {
	delete(l.gone, path)
	delete(l.entries, path)
	l.set.Remove(path)
}

// dropMoved removes a missing file at once if this round has accepted its inode under another name. Such
// a file was renamed, and the set must not have its pods twice. On a system without inode numbers,
// dropMoved compares the content.
func (l *scan) dropMoved() {
	if len(l.gone) == 0 || len(l.fresh) == 0 {
		return
	}
	type inode struct {
		dev, ino uint64
		sum      [sha256.Size]byte
	}
	of := func(e *entry) inode {
		if e.id.ino != 0 {
			return inode{dev: e.id.dev, ino: e.id.ino}
		}
		return inode{sum: e.sum}
	}
	seen := map[inode]bool{}
	for _, path := range l.fresh {
		seen[of(l.entries[path])] = true
	}
	for path := range l.gone {
		if e := l.entries[path]; e != nil && seen[of(e)] {
			l.drop(path)
		}
	}
}
