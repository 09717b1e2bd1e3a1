package file

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/fsnotify/fsnotify"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/wakeup"
)

// event is one event of a watcher: a path and its change. If lost is set, it reports lost
// events instead.
type event struct {
	name string
	op   fsnotify.Op
	lost bool
}

// watcher reports changes in directories. It is an interface, so that tests can set the limits
// of the system.
type watcher interface {
	// add watches the directory path. A second call renews the watch.
	add(path string) error
	// events returns the channel of events. It is not closed before close is called.
	events() <-chan event
	close()
}

// fsWatcher is a watcher that uses inotify. Its channel out has capacity 0: pump sends, and the look
// receives. If the look does not receive for long, the kernel's queue overflows, and pump sends an event
// with lost.
type fsWatcher struct {
	w    *fsnotify.Watcher
	out  chan event
	lost wakeup.Signal // drainErrors signals lost events
	done chan struct{} // capacity 0, closed by close
	wg   sync.WaitGroup
}

func newFSWatcher() (watcher, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	f := &fsWatcher{w: w, out: make(chan event), lost: wakeup.New(), done: make(chan struct{})}
	f.wg.Go(f.pump)
	f.wg.Go(f.drainErrors)
	return f, nil
}

func (f *fsWatcher) add(path string) error { return f.w.Add(path) }

func (f *fsWatcher) events() <-chan event { return f.out }

func (f *fsWatcher) close() {
	close(f.done)
	_ = f.w.Close()
	f.wg.Wait()
}

// drainErrors receives the errors of fsnotify in a goroutine of its own: fsnotify sends some of them while
// it holds the lock that add and close need.
func (f *fsWatcher) drainErrors() {
	for range f.w.Errors {
		f.lost.Send()
	}
}

func (f *fsWatcher) pump() {
	for {
		var e event
		select {
		case <-f.done:
			return
		case <-f.lost:
			e = event{lost: true}
		case raw, ok := <-f.w.Events:
			if !ok {
				return
			}
			e = event{name: filepath.Clean(raw.Name), op: raw.Op}
		}
		select {
		case f.out <- e:
		case <-f.done:
			return
		}
	}
}

// openWatcher opens the watcher if there is none. If Path is a file, a link or missing, it watches the
// closest existing directory above. It runs before the full look, so that an event reports each later
// change.
func (l *scan) openWatcher() {
	if l.watch == nil {
		w, err := l.newWatcher()
		if err != nil {
			l.cannotWatch(err)
			return
		}
		l.watch = w
	}
	l.unwatched = ""
	clear(l.parents)
	clear(l.targets)
	root := filepath.Clean(l.cfg.Path)
	l.targets[root] = true
	l.cost.looked++
	if at, err := os.Lstat(root); err == nil && at.IsDir() {
		return
	}
	l.watchNearest(root)
	if target, err := filepath.EvalSymlinks(root); err == nil && target != root {
		l.targets[target] = true
		l.watchNearest(target)
	}
}

// watchNearest watches the closest existing directory above path.
func (l *scan) watchNearest(path string) {
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		err := l.watchDir(dir)
		if err == nil {
			l.parents[dir] = true
			return
		}
		if !isAbsent(err) {
			l.cannotWatch(err)
			return
		}
		if dir == filepath.Dir(dir) {
			return
		}
	}
}

// watchDir watches one directory, if there is a watcher.
func (l *scan) watchDir(dir string) error {
	if l.watch == nil {
		return nil
	}
	return l.watch.add(dir)
}

// cannotWatch makes the source poll, and logs each new reason once until watching works again.
func (l *scan) cannotWatch(err error) {
	why := reason(err)
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EMFILE) {
		why = limitReached
	}
	if l.warned != why {
		l.cfg.Log.Warn("Cannot watch manifests, polling instead", "path", l.cfg.Path, "every", l.poll, "reason", why)
	}
	l.unwatched, l.warned = why, why
}

const limitReached = "a limit of inotify is reached"

// noteWatching logs, after cannotWatch has logged a failure, that the source watches again.
func (l *scan) noteWatching() {
	if l.unwatched == "" && l.warned != "" {
		l.cfg.Log.Info("Watching manifests again", "path", l.cfg.Path)
		l.warned = ""
	}
}

// polled returns the notice that the source finds changes only by polling, if it does.
func (l *scan) polled() []pod.Problem {
	if l.unwatched == "" {
		return nil
	}
	p := pod.Problem{File: l.cfg.Path, Msg: "changes are found by polling every " + l.poll.String() + ": " + l.unwatched}
	if l.unwatched == limitReached {
		p.Hint = "raise fs.inotify.max_user_watches or fs.inotify.max_user_instances (sysctl)"
	}
	return []pod.Problem{p}
}

// missed requests a full scan, because events were lost.
func (l *scan) missed() {
	l.wantFull = true
	if !l.overflown {
		l.overflown = true
		l.cfg.Log.Info("Lost events of changed manifests, scanning all manifests", "path", l.cfg.Path)
	}
}

func (l *scan) unwatch() {
	if l.watch != nil {
		l.watch.close()
	}
}

// handle handles an event: it notes a file to check, or requests a full look.
func (l *scan) handle(e event) {
	dir, base := filepath.Split(e.name)
	dir = filepath.Clean(dir)
	folder := l.folders[dir]
	listed := folder != nil && folder.listed
	switch {
	case e.lost:
		l.missed()
	case l.folders[e.name] != nil:
		l.wantFull = l.wantFull || e.op&^fsnotify.Write != 0
	case listed && base == "..data":
		l.wantFull = true // a mounted ConfigMap was swapped (C-1.6.16)
	case listed && whySkipped(base) == "":
		l.dirty[e.name] = true
	case listed:
		if l.cfg.Recursive && e.op.Has(fsnotify.Create) && !strings.HasPrefix(base, ".") {
			l.wantFull = l.wantFull || l.stat(e.name).kind == directory
		}
	}
	if l.parents[dir] && (base == "..data" || l.concerns(e.name)) {
		l.wantFull = true
	}
}

// concerns reports whether name is Path, the target of its links, or a directory above one of
// them.
func (l *scan) concerns(name string) bool {
	for target := range l.targets {
		if target == name || strings.HasPrefix(target, name+string(filepath.Separator)) {
			return true
		}
	}
	return false
}
