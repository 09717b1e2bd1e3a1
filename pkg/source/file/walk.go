package file

import (
	"errors"
	"io/fs"
	"log/slog"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
)

// lookError is the error of a source that cannot be read; text is for users.
type scanError struct {
	text  string
	cause error
}

func (e *scanError) Error() string { return e.text }
func (e *scanError) Unwrap() error { return e.cause }

// full does a full look at Path: it renews the watches, lists the directories and checks every file. It
// opens only files whose identity has changed.
func (l *scan) full() {
	l.wantFull = false
	clear(l.dirty)
	l.withheld = false
	l.err = l.walk()
	now := time.Now()
	l.cfg.Log.LogAttrs(l.ctx, slog.LevelDebug, "Scanned manifests", slog.String("path", l.cfg.Path), slog.Int("directories_listed", l.cost.listed),
		slog.Int("names_checked", l.cost.looked), slog.Int("files_opened", l.cost.opened), slog.Int("files_read", l.cost.read))
	if l.err != nil && errors.Is(l.err, fs.ErrNotExist) && l.yielded && l.lastError == "" {
		// A directory that a user replaces with two renames is missing for a moment.
		if l.missing.IsZero() {
			l.missing = now
		}
		if left := l.vanishing - now.Sub(l.missing); left > 0 {
			l.err, l.withheld = nil, true
			l.nextFull = now.Add(left)
			return
		}
	} else if l.err == nil {
		l.missing = time.Time{}
	}
	every := l.cfg.CheckFrequency
	if l.err != nil || l.unwatched != "" {
		every = min(every, l.poll)
	}
	l.nextFull = now.Add(every)
	if l.err == nil && !l.yielded {
		l.awaitWriters(now)
	}
}

// awaitWriters waits at most firstWait for files that a process is writing when the source starts. It
// adds those that are still pending then to the set as problems, so that their pods do not count as
// removed.
func (l *scan) awaitWriters(start time.Time) {
	for len(l.pending) > 0 && time.Since(start) < firstWait {
		next, _ := l.nextCheck()
		timer := time.NewTimer(time.Until(earlier(next, start.Add(firstWait))))
		select {
		case <-timer.C:
		case <-l.ctx.Done():
			timer.Stop()
			return
		}
		l.checkPending()
		l.checkGone()
	}
	for path, p := range l.pending {
		l.reportPending(path, p)
	}
}

// folder is the state of a directory that the source reads, at the last full look.
type folder struct {
	listed    bool // the source reads all of it; false if Path is a file in it
	mount     uint64
	violation violation
	turn      uint64 // the last full look that found it
}

// name is a name in a directory that the source reads.
type name struct {
	path, base string
	why        string // why the source skips such names; "" if it does not
	candidate  bool   // the last full look that found it has checked it
	turn       uint64 // the last full look that found it
}

// walk scans Path and all directories that the source reads there.
func (l *scan) walk() error {
	l.turn++
	l.openWatcher()
	w := &walker{scan: l, root: filepath.Clean(l.cfg.Path), skipped: make([]pod.Problem, 0, l.skips+1)}
	if l.cfg.Permissions == Refuse && !knowsWriters {
		return &scanError{"its permissions cannot be checked on " + runtime.GOOS + " (" + insecureHint + ")", nil}
	}
	var err error
	switch st := l.stat(w.root); {
	case st.kind == absent:
		return &scanError{"does not exist", fs.ErrNotExist}
	case errors.Is(st.err, fs.ErrNotExist):
		return &scanError{st.problem.Msg, fs.ErrNotExist}
	case st.err != nil:
		return &scanError{reason(st.err), st.err}
	case st.kind == directory:
		err = w.directory(w.root)
	default:
		err = w.single()
	}
	if err == nil {
		err = l.ctx.Err()
	}
	if err != nil {
		return err
	}
	l.dropUnseen()
	l.skips = len(w.skipped)
	l.set.Skip(append(w.skipped, l.polled()...))
	l.noteWatching()
	return nil
}

// dropUnseen notes that the files that the walk did not find are missing. It drops their pending states,
// and the names and folders that the walk did not find.
func (l *scan) dropUnseen() {
	seen := func(path string) bool {
		n := l.names[path]
		return n != nil && n.candidate && n.turn == l.turn
	}
	for path := range l.pending {
		if !seen(path) {
			delete(l.pending, path)
		}
	}
	now := time.Now()
	for path := range l.entries {
		if seen(path) {
			continue
		}
		if f := l.folders[filepath.Dir(path)]; f != nil && f.turn == l.turn && !f.violation.none() && l.cfg.Permissions == Refuse {
			l.putUntrusted(path, state{}, f.violation.of(filepath.Dir(path)))
			continue
		}
		l.vanish(path, now)
	}
	for path, n := range l.names {
		if n.turn != l.turn {
			delete(l.names, path)
		}
	}
	for path, f := range l.folders {
		if f.turn != l.turn {
			delete(l.folders, path)
		}
	}
}

type walker struct {
	*scan
	root    string
	skipped []pod.Problem
}

// single checks Path if that is a file.
func (w *walker) single() error {
	at := filepath.Dir(w.root)
	d, err := openDir(at, false)
	if err != nil {
		return &scanError{reason(err), err}
	}
	defer d.close()
	f, bad, _, err := w.see(d)
	if err != nil {
		return err
	}
	f.listed = false
	if !bad.none() && w.cfg.Permissions == Refuse {
		return bad.of(at).err()
	}
	n := w.name([]byte(w.root), len(w.root)-len(filepath.Base(w.root)))
	n.candidate = true
	w.cost.looked++
	w.check(d, n.base, n.path, d.stat(n.base, n.path), violation{})
	return nil
}

// see notes that the walk has found a directory, and returns its folder, its violation and its mount.
func (w *walker) see(d *dir) (*folder, violation, uint64, error) {
	w.cost.looked++
	st, err := d.state()
	if err != nil {
		return nil, violation{}, 0, &scanError{reason(err), err}
	}
	f := w.folders[d.path]
	if f == nil {
		f = &folder{}
		w.folders[d.path] = f
	}
	f.turn, f.listed, f.violation = w.turn, true, w.judgeDirectory(d.path, &st)
	if !f.violation.none() && w.cfg.Permissions == Warn {
		w.skipped = append(w.skipped, f.violation.at(d.path, Warn))
	}
	return f, f.violation, w.mountOf(&st), nil
}

// judgeDirectory judges a directory and those above it. For a directory below Path, the walk
// has already judged those above it.
func (w *walker) judgeDirectory(path string, st *state) violation {
	above := w.folders[filepath.Dir(path)]
	if path == w.root || above == nil || above.turn != w.turn {
		return w.cfg.judgePath(path, st)
	}
	if c := w.cfg.judge(path, st); !c.none() || w.cfg.Permissions == Warn { // see has reported the violation above
		return c
	}
	return above.violation.of(filepath.Dir(path))
}

// name returns the record of path, whose last part begins at base.
func (w *walker) name(path []byte, base int) *name {
	n := w.names[string(path)]
	if n == nil {
		n = &name{path: string(path)}
		n.base = n.path[base:]
		n.why = whySkipped(n.base)
		w.names[n.path] = n
	}
	n.turn, n.candidate = w.turn, false
	return n
}

// directory checks the candidates of one directory and, if Recursive is set, of those below.
func (w *walker) directory(path string) error {
	watchErr := w.watchDir(path) // before the listing, so that an event reports each change after it
	below, err := w.list(path)
	if err != nil {
		if path == w.root {
			return err
		}
		if isAbsent(err) {
			return nil
		}
		return &scanError{path + ": " + err.Error(), err}
	}
	if watchErr != nil {
		w.cannotWatch(watchErr)
	}
	slices.Sort(below)
	for _, path := range below {
		if err := w.directory(path); err != nil {
			return err
		}
	}
	return nil
}

// list checks the candidates of one directory. It returns the directories in it that the source also
// reads.
func (w *walker) list(path string) (below []string, err error) {
	d, err := w.openDir(path, true)
	if err != nil {
		return nil, &scanError{reason(err), err}
	}
	defer d.close()
	f, bad, mount, err := w.see(d)
	if err != nil {
		return nil, err
	}
	if !bad.none() && w.cfg.Permissions == Refuse && path == w.root {
		return nil, bad.err()
	}
	w.cost.listed++
	w.key = append(w.key[:0], filepath.Join(path, "x")...)
	before := len(w.key) - 1
	found := 0
	err = d.each(w.buf, func(n *listed) error {
		w.key = append(w.key[:before], n.name()...)
		known := w.name(w.key, before)
		if w.entry(d, n, known, bad) {
			found++
			if n.kind == directory {
				below = append(below, known.path)
			}
		}
		return w.ctx.Err()
	})
	switch {
	case err != nil:
		return nil, &scanError{reason(err), err}
	case found > 0:
		f.mount = mount
	case f.mount != 0 && mount != 0 && mount != f.mount:
		return nil, &scanError{"is empty and not on the file system it was read from; is it unmounted?", nil}
	}
	return below, nil
}

// entry checks one name of a directory, or notes why the source skips it. It reports whether
// the source reads such a name.
func (w *walker) entry(d *dir, n *listed, known *name, bad violation) bool {
	switch {
	case strings.HasPrefix(known.base, ".."):
		// It is a part of a mounted ConfigMap. Links lead to its files, and the source reads the links.
		return false
	case n.kind == directory && known.why == hidden:
		return w.skip(known.path, "skipped: hidden directory", "")
	case n.kind == directory && w.cfg.Recursive:
		return true
	case n.kind == directory:
		return w.skip(known.path, "skipped: directory", "use -R to read directories below")
	case known.why != "":
		return w.skip(known.path, known.why, "")
	}
	w.cost.looked++
	st := n.stat(known.path)
	if n.kind == symlink && st.kind == directory {
		return w.skip(known.path, "skipped: symbolic link to a directory", "")
	}
	known.candidate = true
	w.check(d, known.base, known.path, st, bad)
	return true
}

func (w *walker) skip(path, why, hint string) bool {
	w.skipped = append(w.skipped, pod.Problem{File: path, Msg: why, Hint: hint})
	return false
}

const hidden = "skipped: hidden file"

// whySkipped returns why the source skips a file of this name; "" when it does not. Unlike the
// kubelet's source (C-1.6.4), it reads only files with the names of manifests.
func whySkipped(name string) string {
	switch ext := filepath.Ext(name); {
	case strings.HasPrefix(name, "."):
		return hidden
	case strings.HasSuffix(name, "~"), ext == ".bak", ext == ".swp":
		return "skipped: backup file"
	case ext == ".yaml", ext == ".yml", ext == ".json":
		return ""
	}
	return "skipped: not .yaml, .yml or .json"
}
