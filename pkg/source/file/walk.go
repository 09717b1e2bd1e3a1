package file

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/pkg/pod"
)

// lookError is why the source could not be looked at, in words for people.
type lookError struct {
	text  string
	cause error
}

func (e *lookError) Error() string { return e.text }
func (e *lookError) Unwrap() error { return e.cause }

// full looks at everything: it renews the watches, lists the directories and
// checks every file, opening only those whose identity changed.
func (l *look) full() {
	l.wantFull = false
	clear(l.dirty)
	l.held = false
	l.err = l.walk()
	now := time.Now()
	if l.err != nil && errors.Is(l.err, fs.ErrNotExist) && l.heard && l.said == "" {
		// What is replaced by two renames is missing for a moment.
		if l.missing.IsZero() {
			l.missing = now
		}
		if left := l.vanishing - now.Sub(l.missing); left > 0 {
			l.err, l.held = nil, true
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
	if l.err == nil && !l.heard {
		l.settle(now)
	}
}

// settle gives files that are being written while the source starts a moment
// to be finished; those that are not are shown as being written, so that
// nobody takes their pods for removed.
func (l *look) settle(start time.Time) {
	for len(l.pending) > 0 && time.Since(start) < firstWait {
		next := start.Add(firstWait)
		for _, p := range l.pending {
			next = earlier(next, p.next)
		}
		timer := time.NewTimer(time.Until(next))
		select {
		case <-timer.C:
		case <-l.ctx.Done():
			timer.Stop()
			return
		}
		l.checkDue()
	}
	for path, p := range l.pending {
		l.tell(path, p)
	}
}

func (l *look) walk() error {
	l.arm()
	root := filepath.Clean(l.cfg.Path)
	_, kind, problem := probe(root)
	switch kind {
	case absent:
		return &lookError{"does not exist", fs.ErrNotExist}
	case regular, refused:
		var st unix.Stat_t
		if err := unix.Stat(root, &st); err != nil {
			if errors.Is(err, fs.ErrNotExist) && problem != nil {
				return &lookError{problem.Msg, fs.ErrNotExist}
			}
			return &lookError{reason(err), err}
		}
		clear(l.dirs)
		l.check(root)
		l.sweep(map[string]bool{root: true})
		l.set.Skip(nil)
		return nil
	}
	w := &walker{look: l, seen: map[string]bool{}, dirs: map[string]bool{}}
	if err := w.dir(root); err != nil {
		return err
	}
	mount := l.mountID(root)
	if len(w.seen) == 0 && l.mount != 0 && mount != 0 && mount != l.mount {
		return &lookError{"is empty and not on the file system it was read from; is it unmounted?", nil}
	}
	if len(w.seen) > 0 {
		l.mount = mount
	}
	l.dirs = w.dirs
	l.sweep(w.seen)
	l.set.Skip(w.skipped)
	return l.ctx.Err()
}

// sweep lets go of files that the look did not see.
func (l *look) sweep(seen map[string]bool) {
	now := time.Now()
	for _, path := range l.set.Files() {
		if !seen[path] {
			l.vanish(path, now)
		}
	}
	for path := range l.pending {
		if !seen[path] {
			delete(l.pending, path)
		}
	}
}

type walker struct {
	*look
	seen    map[string]bool // candidates that are there
	dirs    map[string]bool
	skipped []pod.Problem
}

// dir checks the candidates of one directory and, where asked, of those below.
func (w *walker) dir(path string) error {
	unarmed := w.arming(path) // before the list, so that nothing happens unseen in between
	w.dirs[path] = true
	names, err := list(path)
	if err != nil {
		if path != filepath.Clean(w.cfg.Path) {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return &lookError{path + ": " + reason(err), err}
		}
		return &lookError{reason(err), err}
	}
	if unarmed != nil {
		w.cannotWatch(unarmed)
	}
	for _, d := range names {
		if err := w.ctx.Err(); err != nil {
			return err
		}
		if err := w.entry(filepath.Join(path, d.Name()), d); err != nil {
			return err
		}
	}
	return nil
}

func (w *walker) entry(path string, d fs.DirEntry) error {
	why := passedOver(d.Name())
	switch {
	case strings.HasPrefix(d.Name(), ".."):
		// The inside of a mounted ConfigMap: its files are reached by their links.
	case d.IsDir() && why == hidden:
		w.skip(path, "hidden directory", "")
	case d.IsDir() && w.cfg.Recursive:
		return w.dir(path)
	case d.IsDir():
		w.skip(path, "directory", "use -R to read directories below")
	case why != "":
		w.skip(path, why, "")
	default:
		if d.Type()&fs.ModeSymlink != 0 {
			if _, kind, _ := probe(path); kind == directory {
				w.skip(path, "symbolic link to a directory", "")
				return nil
			}
		}
		w.seen[path] = true
		w.check(path)
	}
	return nil
}

func (w *walker) skip(path, why, hint string) {
	w.skipped = append(w.skipped, pod.Problem{File: path, Msg: "skipped: " + why, Hint: hint})
}

const hidden = "hidden file"

// passedOver says why a file of this name is not read; "" when it is. Unlike
// the kubelet's source (C-1.6.4), only manifests by name are.
func passedOver(name string) string {
	switch ext := filepath.Ext(name); {
	case strings.HasPrefix(name, "."):
		return hidden
	case strings.HasSuffix(name, "~"), ext == ".bak", ext == ".swp":
		return "backup file"
	case ext == ".yaml", ext == ".yml", ext == ".json":
		return ""
	}
	return "not .yaml, .yml or .json"
}

// list returns the entries of a directory, sorted by name.
func list(path string) ([]fs.DirEntry, error) {
	fd, err := retryEINTR(func() (int, error) {
		return unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, err
	}
	dir := os.NewFile(uintptr(fd), path)
	defer dir.Close()
	entries, err := dir.ReadDir(-1)
	sortByName(entries)
	return entries, err
}
