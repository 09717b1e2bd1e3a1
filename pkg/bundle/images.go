package bundle

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nodectl/nodectl/pkg/atomicfile"
	"github.com/nodectl/nodectl/pkg/trust"
)

const (
	settle = time.Second // a file that was written to more recently may be half there
	rescan = time.Minute // between two readings of the directory when nothing is heard of it
)

// Images imports the image archives of a directory into containerd: files that
// docker save, podman save, skopeo or buildah wrote, named *.tar, *.tar.gz,
// *.tgz or *.tar.zst. Any containerd of 1.7 or later will do, also one that is
// not ours.
//
// An archive is imported once. What was imported is remembered by device, inode,
// size and time of change, so that neither a restart nor a rename of the
// directory's neighbours costs anything; it is imported again when it changes,
// or when a new Images finds that the runtime has lost its images.
//
// An Images belongs to one goroutine.
type Images struct {
	dir      string
	endpoint string
	memory   string
	owners   []int
	insecure bool
	log      *slog.Logger

	known   map[string]archived // by file name; loaded by the first pass
	checked bool                // that the runtime still has what known says
	told    bool                // that this runtime imports no archives
	// distrusted holds what the last pass reported of archives that others can write, by
	// the path that they can write: one report for a directory, however many files are in
	// it. An archive is imported once only its owner can write it.
	distrusted map[string]string
}

// archived is what is remembered of one archive.
type archived struct {
	Dev, Ino uint64
	Size     int64
	Mtime    int64    // nanoseconds
	Images   []string // none: it could not be imported, and will not before it changes
	fails    bool     // not kept: a new process tries again, and says so again
}

func (a archived) same(b archived) bool {
	return a.Dev == b.Dev && a.Ino == b.Ino && a.Size == b.Size && a.Mtime == b.Mtime
}

// ImagesConfig says where archives are and where they go.
type ImagesConfig struct {
	Dir      string // the directory; it may be missing, then or now
	Endpoint string // the runtime's socket, with or without unix://
	Memory   string // the file that remembers what was imported; not in Dir
	// Owners are the users trusted beside root to own archives. An archive that others
	// could have written, or exchanged in a directory above it, is not imported: it
	// becomes the image of every pod that names it. See package trust.
	Owners []int
	// Insecure imports what others could have written.
	Insecure bool
	Log      *slog.Logger // nil discards
}

// NewImages returns an Images. It reads nothing yet.
func NewImages(cfg ImagesConfig) *Images {
	log := cfg.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Images{dir: cfg.Dir, endpoint: "unix://" + socketPath(cfg.Endpoint), memory: cfg.Memory, owners: cfg.Owners, insecure: cfg.Insecure, log: log, distrusted: map[string]string{}}
}

// Import imports what the directory holds and returns when the runtime lists
// it. A file that is being written is waited for while it grows, and so is a
// runtime that does not answer yet, as long as ctx lasts. The error joins one
// line for each archive that could not be imported; the others were.
func (m *Images) Import(ctx context.Context) error {
	var failed []error
	for {
		again, errs := m.pass(ctx)
		failed = append(failed, errs...)
		if again == 0 || ctx.Err() != nil {
			return errors.Join(append(failed, ctx.Err())...)
		}
		if err := pause(ctx, again); err != nil {
			return errors.Join(append(failed, err)...)
		}
	}
}

// Watch imports archives as they appear or change, until ctx ends, which is no
// error. It logs what Import would return, one line for each archive and each
// change of it.
func (m *Images) Watch(ctx context.Context) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch %s: %w", m.dir, err)
	}
	defer w.Close()
	for {
		_ = w.Add(m.dir) // again each time: the directory may be another one by now
		again, errs := m.pass(ctx)
		for _, err := range errs {
			m.log.Warn("Image archive not imported", "error", err)
		}
		if !m.wait(ctx, w, cmp.Or(again, rescan)) {
			return nil
		}
	}
}

// wait returns after limit, or when something has happened in the directory and
// it has been quiet for a moment since; false when ctx has ended.
func (m *Images) wait(ctx context.Context, w *fsnotify.Watcher, limit time.Duration) bool {
	const quiet = 100 * time.Millisecond
	t := time.NewTimer(limit)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-t.C:
			return true
		case <-w.Events:
			t.Reset(quiet)
		case <-w.Errors: // events were lost; the directory is read instead
			t.Reset(quiet)
		}
	}
}

// pass imports what is new. again is when to look next because a file was being
// written or the runtime did not answer, 0 when there is no hurry.
func (m *Images) pass(ctx context.Context) (again time.Duration, errs []error) {
	found, err := m.scan()
	if err != nil {
		return 0, []error{err}
	}
	m.load()
	for name := range m.known {
		if _, ok := found[name]; !ok {
			delete(m.known, name)
		}
	}
	if len(found) == 0 || m.checked && len(m.fresh(found)) == 0 {
		return 0, nil
	}
	c, err := dial(m.endpoint)
	if err != nil {
		return 0, []error{err}
	}
	defer c.Close()
	if !m.check(ctx, c) {
		return settle, nil // others say that the runtime does not answer
	}
	distrusted := map[string]string{}
	for _, name := range m.fresh(found) {
		now := found[name]
		if age := time.Since(time.Unix(0, now.Mtime)); age >= 0 && age < settle {
			again = settle - age
			continue
		}
		err := m.take(ctx, c, name, now)
		distrust, isDistrusted := errors.AsType[*distrustError](err)
		switch {
		case err == nil:
		case errors.Is(err, errNoTransfer):
			if !m.told {
				errs = append(errs, fmt.Errorf("%s: %w", m.dir, err))
			}
			m.told = true
			return 0, errs
		case ctx.Err() != nil:
			return 0, errs
		case isDistrusted:
			distrusted[distrust.path] = err.Error()
			if m.distrusted[distrust.path] != err.Error() {
				m.distrusted[distrust.path] = err.Error()
				errs = append(errs, fmt.Errorf("%s: %w", filepath.Join(m.dir, name), err))
			}
		case status.Code(err) == codes.Unavailable:
			again = settle
		case !m.still(name, now): // somebody writes it: what it is, is to be seen
			again = settle
		default:
			now.fails = true
			m.known[name] = now
			errs = append(errs, fmt.Errorf("%s: %w", filepath.Join(m.dir, name), err))
		}
	}
	m.distrusted = distrusted
	return again, errs
}

// take imports one archive and remembers it.
func (m *Images) take(ctx context.Context, c *conn, name string, now archived) error {
	begin := time.Now()
	f, err := openSame(filepath.Join(m.dir, name), now)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := m.trusts(f); err != nil {
		return err
	}
	images, err := c.importFile(ctx, f)
	if err != nil {
		return err
	}
	if err := c.awaitImages(ctx, images); err != nil {
		return err
	}
	m.log.Info("Images imported", "archive", name, "images", images, "took", time.Since(begin).Round(time.Millisecond))
	for _, image := range images {
		if strings.HasPrefix(image, unnamed(name)) {
			m.log.Warn("An image archive names no image; it goes by its file's name", "archive", name, "image", image)
		}
	}
	now.Images = images
	m.known[name] = now
	return m.save()
}

// openSame opens an archive that was looked at before. Between the two, a user who can
// write in the directory can exchange it for a FIFO, which blocks open(2), for a link to a
// device, which opening can start, or for another file: only the file that was looked at is
// opened. O_PATH names a file without opening it. An open that does not block fails where
// the file's owner holds a write lease, which delays other opens.
func openSame(path string, want archived) (*os.File, error) {
	at, err := os.OpenFile(path, unix.O_PATH, 0)
	if err != nil {
		return nil, err
	}
	defer at.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(at.Fd()), &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || !archiveOf(&st).same(want) {
		return nil, errors.New("another file took its place")
	}
	fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(int(at.Fd())), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// trusts says who else could have written an archive: what is open is what is imported.
func (m *Images) trusts(f *os.File) error {
	if m.insecure {
		return nil
	}
	p, err := trust.Above(f.Name(), m.owners)
	if err != nil {
		return err
	}
	if p != nil {
		return &distrustError{p.Path, "lies in " + p.Path + ", which " + p.What, p.Fix}
	}
	st, err := f.Stat()
	if err != nil {
		return err
	}
	is := trust.Of(st)
	is.FD = int(f.Fd())
	if p = trust.Judge(f.Name(), is, m.owners); p != nil {
		return &distrustError{f.Name(), p.What, p.Fix}
	}
	return nil
}

// distrustError says that others could have written an archive. path is what they can
// write: the archive, or a directory above it.
type distrustError struct{ path, what, fix string }

func (e *distrustError) Error() string { return e.what + " (" + e.fix + ")" }

// scan returns the archives in the directory; none when it is missing.
func (m *Images) scan() (map[string]archived, error) {
	entries, err := os.ReadDir(m.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("image archives: %w", err)
	}
	found := map[string]archived{}
	for _, e := range entries {
		if stem(e.Name()) == "" {
			continue
		}
		if a, ok := m.look(e.Name()); ok {
			found[e.Name()] = a
		}
	}
	return found, nil
}

// look returns a file as it is now; false where there is none, or one that would block
// whoever opens it.
func (m *Images) look(name string) (archived, bool) {
	var st unix.Stat_t
	if unix.Stat(filepath.Join(m.dir, name), &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return archived{}, false
	}
	return archiveOf(&st), true
}

// archiveOf returns what identifies a version of a file.
func archiveOf(st *unix.Stat_t) archived {
	return archived{Dev: st.Dev, Ino: st.Ino, Size: st.Size, Mtime: st.Mtim.Nano()}
}

// still reports whether a file is what it was.
func (m *Images) still(name string, was archived) bool {
	now, ok := m.look(name)
	return ok && now.same(was)
}

// stem returns an archive's file name without its ending, "" when it is no
// archive's.
func stem(name string) string {
	if strings.HasPrefix(name, ".") {
		return ""
	}
	for _, ending := range []string{".tar", ".tar.gz", ".tgz", ".tar.zst"} {
		if s, ok := strings.CutSuffix(name, ending); ok {
			return s
		}
	}
	return ""
}

// unnamed returns the repository of images whose archive gives none: localhost,
// so that nobody pulls it from the outside, and the file's name.
func unnamed(name string) string {
	clean := strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' {
			return c
		}
		return '-'
	}, strings.ToLower(stem(filepath.Base(name))))
	return "localhost/" + cmp.Or(strings.Trim(clean, "-"), "image")
}

// fresh returns the names of those archives that are not known as they are now.
func (m *Images) fresh(found map[string]archived) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(found)), func(name string) bool {
		before, ok := m.known[name]
		return ok && before.same(found[name])
	})
}

// check forgets, once, the archives whose images the runtime does not have (any
// more): its store may have been emptied, or be another one. It reports false
// when the runtime does not answer.
func (m *Images) check(ctx context.Context, c *conn) bool {
	if m.checked {
		return true
	}
	for name, a := range m.known {
		for _, image := range a.Images {
			id, err := c.imageID(ctx, image)
			if code := status.Code(err); code == codes.Unavailable || code == codes.DeadlineExceeded {
				return false
			}
			if id == "" {
				delete(m.known, name)
			}
		}
	}
	m.checked = true
	return true
}

// load reads the memory, once. Lost or damaged, it costs importing again.
func (m *Images) load() {
	if m.known != nil {
		return
	}
	m.known = map[string]archived{}
	if js, err := os.ReadFile(m.memory); err == nil && json.Unmarshal(js, &m.known) != nil {
		m.known = map[string]archived{}
	}
}

func (m *Images) save() error {
	kept := maps.Clone(m.known)
	maps.DeleteFunc(kept, func(_ string, a archived) bool { return a.fails })
	js, err := json.Marshal(kept)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(m.memory, js, atomicfile.Options{}); err != nil {
		m.log.Warn("What was imported cannot be remembered", "error", err)
	}
	return nil
}

// ImportFile imports one image archive into the containerd behind endpoint and
// returns the names of its images, once CRI lists them.
func ImportFile(ctx context.Context, endpoint, path string) ([]string, error) {
	c, err := dial(endpoint)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	images, err := c.importPath(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return images, c.awaitImages(ctx, images)
}

// importPath is importFile for the file at a path.
func (c *conn) importPath(ctx context.Context, path string) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return c.importFile(ctx, f)
}

// importFile is importArchive for a file. An archive without any name goes by
// that of its file.
func (c *conn) importFile(ctx context.Context, f *os.File) ([]string, error) {
	path := f.Name()
	images, err := c.importArchive(ctx, f, unnamed(path), "")
	if err != nil || len(images) > 0 {
		return images, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	return c.importArchive(ctx, f, unnamed(path), unnamed(path)+":latest")
}
