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
	settle = time.Second // a file with a later write may be incomplete
	rescan = time.Minute // between two readings of the directory without events
)

// Images imports the image archives of a directory into containerd: files from docker save,
// podman save, skopeo or buildah, named *.tar, *.tar.gz, *.tgz or *.tar.zst. It works with
// any containerd of 1.7 or later, also one that is not bundled.
//
// An archive is imported once. Images remembers its device, inode, size and time of change,
// so that neither a restart nor a rename of other files imports it again. It is imported
// again when it changes, or when a new Images finds that the runtime has lost its images.
//
// One goroutine uses an Images.
type Images struct {
	dir      string
	endpoint string
	memory   string
	owners   []int
	insecure bool
	log      *slog.Logger

	known    map[string]archived // by file name; loaded by the first pass
	checked  bool                // that the runtime still has the images in known
	reported bool                // logged that this runtime imports no archives
	// untrusted holds the last pass's reports of archives that others can write, by the
	// path that they can write: one report for a directory, however many files it has. An
	// archive is imported once only its owner can write it.
	untrusted map[string]string
}

// archived is the remembered state of one archive.
type archived struct {
	Dev, Ino uint64
	Size     int64
	Mtime    int64    // nanoseconds
	Images   []string // empty: the import failed, and is repeated only after a change
	fails    bool     // not saved: a new process tries again, and reports it again
}

func (a archived) same(b archived) bool {
	return a.Dev == b.Dev && a.Ino == b.Ino && a.Size == b.Size && a.Mtime == b.Mtime
}

// ImagesConfig says where the archives are and which runtime gets them.
type ImagesConfig struct {
	Dir      string // the directory; it may not exist yet
	Endpoint string // the runtime's socket, with or without unix://
	Memory   string // the file with the remembered imports; not in Dir
	// Owners are the users trusted beside root to own archives. An archive that others
	// could have written, or replaced through a directory above it, is not imported: it
	// would become the image of every pod that names it. See package trust.
	Owners []int
	// Insecure also imports archives that others could have written.
	Insecure bool
	Log      *slog.Logger // nil discards
}

// NewImages returns an Images. It reads nothing yet.
func NewImages(cfg ImagesConfig) *Images {
	log := cfg.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Images{dir: cfg.Dir, endpoint: "unix://" + socketPath(cfg.Endpoint), memory: cfg.Memory, owners: cfg.Owners, insecure: cfg.Insecure, log: log, untrusted: map[string]string{}}
}

// Import imports the archives in the directory and returns when the runtime lists their
// images. Until ctx ends it waits for files that grow, and for a runtime that does not
// answer yet. The error has one line for each archive whose import failed; the others were
// imported.
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

// Watch imports archives as they appear or change, until ctx ends, which is no error. It
// logs the errors of Import, one line for each archive and each change of it.
func (m *Images) Watch(ctx context.Context) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch %s: %w", m.dir, err)
	}
	defer w.Close()
	for {
		_ = w.Add(m.dir) // again each time: the directory may have been replaced
		again, errs := m.pass(ctx)
		for _, err := range errs {
			m.log.Warn("Failed to import image archive", "error", err)
		}
		if !m.wait(ctx, w, cmp.Or(again, rescan)) {
			return nil
		}
	}
}

// wait returns after limit, or once the directory has had an event and then been quiet for
// a moment; false if ctx has ended.
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

// pass imports new archives. again is when to read again because a file was being written or
// the runtime did not answer; 0: no early read.
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
		return settle, nil // other parts of the agent report that
	}
	distrusted := map[string]string{}
	for _, name := range m.fresh(found) {
		now := found[name]
		if age := time.Since(time.Unix(0, now.Mtime)); age >= 0 && age < settle {
			again = settle - age
			continue
		}
		err := m.importOne(ctx, c, name, now)
		distrust, isDistrusted := errors.AsType[*untrustedError](err)
		switch {
		case err == nil:
		case errors.Is(err, errNoTransfer):
			if !m.reported {
				errs = append(errs, fmt.Errorf("%s: %w", m.dir, err))
			}
			m.reported = true
			return 0, errs
		case ctx.Err() != nil:
			return 0, errs
		case isDistrusted:
			distrusted[distrust.path] = err.Error()
			if m.untrusted[distrust.path] != err.Error() {
				m.untrusted[distrust.path] = err.Error()
				errs = append(errs, fmt.Errorf("%s: %w", filepath.Join(m.dir, name), err))
			}
		case status.Code(err) == codes.Unavailable, errors.Is(err, unix.EWOULDBLOCK): // the kernel breaks a lease within 45 s
			again = settle
		case !m.still(name, now): // it is being written: the next pass imports it
			again = settle
		default:
			now.fails = true
			m.known[name] = now
			errs = append(errs, fmt.Errorf("%s: %w", filepath.Join(m.dir, name), err))
		}
	}
	m.untrusted = distrusted
	return again, errs
}

// importOne imports one archive and remembers it.
func (m *Images) importOne(ctx context.Context, c *conn, name string, now archived) error {
	begin := time.Now()
	at, err := nameSame(filepath.Join(m.dir, name), now)
	if err != nil {
		return err
	}
	defer at.Close()
	if err := m.trusts(at); err != nil {
		return err
	}
	f, err := open(at)
	if err != nil {
		return err
	}
	defer f.Close()
	images, err := c.importFile(ctx, f)
	if err != nil {
		return err
	}
	if err := c.awaitImages(ctx, images); err != nil {
		return err
	}
	m.log.Info("Imported images", "archive", name, "images", images, "took", time.Since(begin).Round(time.Millisecond))
	for _, image := range images {
		if strings.HasPrefix(image, unnamed(name)) {
			m.log.Warn("Image archive names no image; naming the image after the file", "archive", name, "image", image)
		}
	}
	now.Images = images
	m.known[name] = now
	return m.save()
}

// nameSame names the archive that want describes, and no other file, without opening it
// (O_PATH). A user who can write in the directory can replace it after the check: by a FIFO,
// which blocks open(2), a link to a device, which opening can start, or another file.
func nameSame(path string, want archived) (*os.File, error) {
	at, err := os.OpenFile(path, unix.O_PATH, 0)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(at.Fd()), &st); err != nil {
		_ = at.Close()
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || !archiveOf(&st).same(want) {
		_ = at.Close()
		return nil, errors.New("it was replaced by another file")
	}
	return at, nil
}

// open opens a file that was named. It does not block: it fails with EWOULDBLOCK if the
// file's owner holds a write lease.
func open(at *os.File) (*os.File, error) {
	fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(int(at.Fd())), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: at.Name(), Err: err}
	}
	return os.NewFile(uintptr(fd), at.Name()), nil
}

// trusts returns an error if others could have written the archive that f names, which is the
// one that is imported.
func (m *Images) trusts(f *os.File) error {
	if m.insecure {
		return nil
	}
	p, err := trust.ParentPath(f.Name(), m.owners)
	if err != nil {
		return err
	}
	if p != nil {
		return &untrustedError{p.Path, "lies in " + p.Path + ", which " + p.What, p.Fix}
	}
	st, err := f.Stat()
	if err != nil {
		return err
	}
	is := trust.Of(st)
	is.FD = int(f.Fd())
	if p = trust.Check(f.Name(), is, m.owners); p != nil {
		return &untrustedError{f.Name(), p.What, p.Fix}
	}
	return nil
}

// untrustedError says that other users could have written an archive. path is the writable file:
// the archive, or a directory above it.
type untrustedError struct{ path, text, fix string }

func (e *untrustedError) Error() string { return e.text + " (" + e.fix + ")" }

// scan returns the archives in the directory; none if it does not exist.
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
		if a, ok := m.archiveState(e.Name()); ok {
			found[e.Name()] = a
		}
	}
	return found, nil
}

// archiveState returns the present state of a file; false if it is missing or is one that could
// block an open, like a FIFO.
func (m *Images) archiveState(name string) (archived, bool) {
	var st unix.Stat_t
	if unix.Stat(filepath.Join(m.dir, name), &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return archived{}, false
	}
	return archiveOf(&st), true
}

// archiveOf returns the data that identifies a version of a file.
func archiveOf(st *unix.Stat_t) archived {
	return archived{Dev: st.Dev, Ino: st.Ino, Size: st.Size, Mtime: st.Mtim.Nano()}
}

// still reports whether a file has not changed.
func (m *Images) still(name string, was archived) bool {
	now, ok := m.archiveState(name)
	return ok && now.same(was)
}

// stem returns an archive's file name without its suffix, "" for other files.
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

// unnamed returns the repository of images whose archive has no names: localhost, so that
// no pod pulls it from a registry, and the file's name.
func unnamed(name string) string {
	clean := strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' {
			return c
		}
		return '-'
	}, strings.ToLower(stem(filepath.Base(name))))
	return "localhost/" + cmp.Or(strings.Trim(clean, "-"), "image")
}

// fresh returns the names of the archives that are new or have changed.
func (m *Images) fresh(found map[string]archived) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(found)), func(name string) bool {
		before, ok := m.known[name]
		return ok && before.same(found[name])
	})
}

// check forgets, once, the archives whose images the runtime does not have: its store may
// have been emptied, or be another one. It returns false if the runtime does not answer.
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

// load reads the memory file, once. If that is lost or damaged, the archives are imported
// again.
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
	if err := atomicfile.Write(m.memory, js, atomicfile.Options{Temp: ".tmp"}); err != nil {
		m.log.Warn("Failed to record imported image archives", "error", err)
	}
	return nil
}

// ImportedImages returns the names of the images that an Images with this memory file has imported.
func ImportedImages(memory string) (names []string) {
	known := map[string]archived{}
	js, err := os.ReadFile(memory)
	if err != nil || json.Unmarshal(js, &known) != nil {
		return nil
	}
	for _, a := range known {
		names = append(names, a.Images...)
	}
	return names
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

// importFile is importArchive for a file. The images of an archive without names are named
// after the file.
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
