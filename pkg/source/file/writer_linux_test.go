package file

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/source"
	"github.com/nodectl/nodectl/pkg/source/sourcetest"
	"github.com/nodectl/nodectl/test/wait"
)

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// bench is a source over a directory with counters in it.
type bench struct {
	*Source
	t      testing.TB
	dir    string
	opened atomic.Int64 // files opened to be read
	parsed atomic.Int64
	log    bytes.Buffer
}

func newBench(t testing.TB) *bench {
	t.Helper()
	return newBenchIn(t, t.TempDir())
}

// inMemory is newBench for very many files.
func inMemory(t testing.TB) *bench {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "nodectl-test-")
	if err != nil {
		return newBench(t)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return newBenchIn(t, dir)
}

func newBenchIn(t testing.TB, dir string) *bench {
	t.Helper()
	b := &bench{t: t, dir: dir}
	ok(t, os.Chmod(b.dir, 0o700))
	parse := sourcetest.Parse("file", b.dir)
	b.Source = New(Config{
		Path: b.dir, CheckFrequency: time.Hour, Owners: []int{os.Getuid()},
		Log: slog.New(slog.NewTextHandler(&b.log, nil)),
		Parse: func(data []byte, file string) (source.File, []pod.Problem) {
			b.parsed.Add(1)
			return parse(data, file)
		},
	})
	b.writerOf = func(f *opened) writer {
		b.opened.Add(1)
		return writerOf(f)
	}
	return b
}

func (b *bench) path(name string) string { return filepath.Join(b.dir, name) }

// put renames a finished file into place, from a name that the source ignores.
func (b *bench) put(name, text string) {
	b.t.Helper()
	temp := filepath.Join(filepath.Dir(b.path(name)), "..put")
	ok(b.t, os.WriteFile(temp, []byte(text), 0o600))
	ok(b.t, os.Rename(temp, b.path(name)))
}

// lookedAgain returns once the file was opened n more times.
func (b *bench) lookedAgain(n int64) {
	b.t.Helper()
	want := b.opened.Load() + n
	wait.True(b.t, "looked again", func() bool { return b.opened.Load() >= want })
}

// openFile opens path as a scan does.
func openFile(t testing.TB, path string) (*opened, *pod.Problem) {
	t.Helper()
	d, err := openDir(filepath.Dir(path), false)
	ok(t, err)
	defer d.close()
	f, _, problem := d.open(filepath.Base(path), path, nil)
	return f, problem
}

// Shows: F40
func TestF40_WrittenInTenChunksIsReadOnce(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a file that was read before", "a new file"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.leftOpen = time.Minute // this process may be delayed between two chunks
			before := name == "a file that was read before"
			if before {
				b.put("web.yaml", "pod old x\n")
			}
			l := sourcetest.Listen(t, b)
			l.Set()
			f, err := os.OpenFile(b.path("web.yaml"), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
			ok(t, err)
			want := []string{}
			for i := range 10 {
				want = append(want, fmt.Sprintf("p%d", i))
				_, err := fmt.Fprintf(f, "pod p%d x\n", i)
				ok(t, err)
				b.lookedAgain(2) // each prefix is a valid manifest
			}
			ok(t, f.Close())
			l.Set().Holds(t, want...)
			if n, most := b.parsed.Load(), int64(1); before && n != most+1 || !before && n != most {
				t.Errorf("parsed %d times", n)
			}
		})
	}
}

// Shows: F40
func TestF40_WriterKilledMidwayKeepsPods(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.put("web.yaml", "pod one x\n")
	l := sourcetest.Listen(t, b)
	l.Set()
	f, err := os.OpenFile(b.path("web.yaml"), os.O_WRONLY|os.O_TRUNC, 0o600)
	ok(t, err)
	_, err = io.WriteString(f, "pod one y\npod t") // and no more
	ok(t, err)
	ok(t, f.Close())
	w := l.Set()
	w.Holds(t, "!")
}

// A file that is rewritten by several opens loses pods for a moment; the source does
// not accept that at once.
//
// Shows: F40
func TestF40_ShortenedAndGrownAgainLosesNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.put("web.yaml", "pod one x\npod two x\n")
	b.Hold(0, 5*time.Second)
	l := sourcetest.Listen(t, b)
	l.Set()
	ok(t, os.WriteFile(b.path("web.yaml"), []byte("pod one y\n"), 0o600))
	b.lookedAgain(1)
	f, err := os.OpenFile(b.path("web.yaml"), os.O_WRONLY|os.O_APPEND, 0o600)
	ok(t, err)
	_, err = io.WriteString(f, "pod two y\n")
	ok(t, err)
	ok(t, f.Close())
	w := l.Set()
	w.Holds(t, "one", "two")
	w.Names(t, "one", "two")
}

// Shows: F40
func TestF40_FileLeftOpenIsReadOnceItStaysTheSame(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	l := sourcetest.Listen(t, b)
	l.Set()
	f, err := os.Create(b.path("web.yaml"))
	ok(t, err)
	defer f.Close()
	start := time.Now()
	_, err = io.WriteString(f, "pod one x\n")
	ok(t, err)
	l.Set().Holds(t, "one")
	if took := time.Since(start); took < 900*time.Millisecond {
		t.Errorf("a file open for writing was read after %v", took)
	}
}

// A file that is still being written while the agent starts is in the set, so that its
// pods do not count as removed.
//
// Shows: F40
func TestF40_BeingWrittenAtStartIsAProblem(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.leftOpen = time.Minute // this process may be delayed between two writes
	b.put("good.yaml", "pod good x\n")
	f, err := os.Create(b.path("log.yaml"))
	ok(t, err)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-time.After(5 * time.Millisecond):
				_, _ = io.WriteString(f, "#\n")
			case <-stop:
				_ = f.Close()
				return
			}
		}
	}()
	l := sourcetest.Listen(t, b)
	w := l.Set()
	w.Holds(t, "!", "good")
	if got := w.Files.At(1).Problems[0].Msg; got != "is still being written" {
		t.Errorf("problem %q", got)
	}
	close(stop)
	<-stopped
	l.Set().Holds(t, "good")
}

// Shows: F40
func TestF40_WithoutLeasesQuietDecides(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.writerOf = func(*opened) writer { b.opened.Add(1); return unknownWriter }
	l := sourcetest.Listen(t, b)
	l.Set()
	start := time.Now()
	b.put("web.yaml", "pod one x\n")
	l.Set().Holds(t, "one")
	if took := time.Since(start); took < 40*time.Millisecond {
		t.Errorf("read after %v", took)
	}
}

// Shows: F40
func TestF40_LeaseDetectsWritersWithoutASignal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	ok(t, os.WriteFile(path, []byte("x"), 0o600))
	f, problem := openFile(t, path)
	if problem != nil {
		t.Fatal(problem)
	}
	defer f.close()
	if got := writerOf(f); got != noWriter {
		t.Fatalf("without a writer: %v", got)
	}
	w, err := os.OpenFile(path, os.O_WRONLY, 0)
	ok(t, err)
	if got := writerOf(f); got != hasWriter {
		t.Errorf("with a writer: %v", got)
	}
	ok(t, w.Close())
	// A process opens the file for writing while the lease is held: the kernel sends
	// SIGIO, which must not end this process.
	_, err = unix.FcntlInt(uintptr(f.fd), unix.F_SETLEASE, unix.F_RDLCK)
	ok(t, err)
	if fd, err := unix.Open(path, unix.O_WRONLY|unix.O_NONBLOCK, 0); err == nil {
		_ = unix.Close(fd)
		t.Error("the lease delayed no open")
	}
	ok(t, unix.Kill(os.Getpid(), unix.SIGIO))
	_, err = unix.FcntlInt(uintptr(f.fd), unix.F_SETLEASE, unix.F_UNLCK)
	ok(t, err)
	if got := writerOf(f); got != noWriter {
		t.Errorf("after the lease: %v", got)
	}
}

// Shows: F42
func TestF42_UnmountedIsAnError(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var mount atomic.Uint64
	mount.Store(7)
	b.mountOf = func(*state) uint64 { return mount.Load() }
	b.poll = 10 * time.Millisecond
	b.cfg.CheckFrequency = 10 * time.Millisecond
	b.put("web.yaml", "pod one x\n")
	l := sourcetest.Listen(t, b)
	first := l.Set()
	// A scan after umount: another file system, no files.
	mount.Store(3)
	ok(t, os.Rename(b.path("web.yaml"), b.path(".kept")))
	if err := l.Error(); !strings.Contains(err.Error(), "unmounted") {
		t.Errorf("error %q", err)
	}
	mount.Store(7)
	ok(t, os.Rename(b.path(".kept"), b.path("web.yaml")))
	w := l.Set()
	w.Holds(t, "one")
	w.Names(t)
	if w.Pod("one") != first.Pod("one") {
		t.Error("the pod is another pointer")
	}
}

// Shows: F42
func TestF42_MountIsKnownHere(t *testing.T) {
	t.Parallel()
	if root, proc := statPath("/").mount, statPath("/proc").mount; root == 0 || proc == root {
		t.Errorf("mount of / is %d, of /proc %d", root, proc)
	}
}

// The FIFO stands for a file that was regular when the source read its status.
//
// Shows: F45
func TestF45_FIFOThatReplacesAFileIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "x.yaml")
	ok(t, unix.Mkfifo(path, 0o600))
	opens := opensIn(t, filepath.Dir(path))
	f, problem := openFile(t, path)
	if problem == nil {
		f.close()
		t.Fatal("a FIFO was opened for reading")
	}
	if want := "is a named pipe; only regular files are read"; problem.Msg != want {
		t.Errorf("problem %q, want %q", problem.Msg, want)
	}
	if got := opens(); got["x.yaml"] {
		t.Error("the FIFO was opened without need")
	}
}

// opensIn returns the names that were opened in dir since.
func opensIn(t *testing.T, dir string) func() map[string]bool {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	ok(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	_, err = unix.InotifyAddWatch(fd, dir, unix.IN_OPEN)
	ok(t, err)
	return func() map[string]bool {
		t.Helper()
		got := map[string]bool{}
		buf := make([]byte, 64<<10)
		n, err := unix.Read(fd, buf)
		if err != nil && err != unix.EAGAIN {
			t.Fatal(err)
		}
		for rest := buf[:max(n, 0)]; len(rest) > 0; {
			size := binary.NativeEndian.Uint32(rest[12:])
			got[string(bytes.TrimRight(rest[16:16+size], "\x00"))] = true
			rest = rest[16+size:]
		}
		return got
	}
}

// Only regular files are opened: opening a FIFO wakes its writer, and opening a
// watchdog starts it.
//
// Shows: F45
func TestF45_OnlyRegularFilesAreEverOpened(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.put("good.yaml", "pod good x\n")
	ok(t, unix.Mkfifo(b.path("fifo.yaml"), 0o600))
	socket, err := net.Listen("unix", b.path("socket.yaml"))
	ok(t, err)
	t.Cleanup(func() { _ = socket.Close() })
	want := []string{"!", "!", "good"}
	if os.Getuid() == 0 {
		ok(t, unix.Mknod(b.path("zero.yaml"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5))))
		want = append(want, "!")
	}
	opens := opensIn(t, b.dir)
	l := sourcetest.Listen(t, b)
	l.Set().Holds(t, want...)
	ok(t, os.Remove(b.path("fifo.yaml")))
	ok(t, unix.Mkfifo(b.path("fifo.yaml"), 0o600))
	b.put("good.yaml", "pod good y\n")
	l.Set().Holds(t, want...)
	got := opens()
	if !got["good.yaml"] || got["fifo.yaml"] || got["socket.yaml"] || got["zero.yaml"] {
		t.Errorf("opened: %v", got)
	}
}

// The source reads the file that it judged, even if the path changes meanwhile.
func TestPermissionsAreThoseOfWhatIsOpen(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.put("web.yaml", "pod good x\n")
	evil := t.TempDir()
	ok(t, os.WriteFile(filepath.Join(evil, "web.yaml"), []byte("pod evil x\n"), 0o666))
	read := func(swap func()) string {
		t.Helper()
		d, err := openDir(b.dir, false)
		ok(t, err)
		defer d.close()
		f, c, problem := d.open("web.yaml", b.path("web.yaml"), func(path string, st *state) violation {
			swap()
			return b.cfg.judge(path, st)
		})
		if problem != nil || !c.none() {
			t.Fatalf("problem %v, violation %v", problem, c)
		}
		defer f.close()
		data, _, problem := f.readAll()
		if problem != nil {
			t.Fatal(problem)
		}
		return string(data)
	}
	if got := read(func() { ok(t, os.Rename(filepath.Join(evil, "web.yaml"), b.path("web.yaml"))) }); got != "pod good x\n" {
		t.Errorf("the file was swapped and %q was read", got)
	}
	// The same holds for a directory that is open.
	b.put("web.yaml", "pod good x\n")
	d, err := openDir(b.dir, false)
	ok(t, err)
	defer d.close()
	ok(t, os.Rename(b.dir, b.dir+".away"))
	ok(t, os.Rename(evil, b.dir))
	ok(t, os.WriteFile(b.path("web.yaml"), []byte("pod evil x\n"), 0o600))
	f, _, problem := d.open("web.yaml", b.path("web.yaml"), b.cfg.judge)
	if problem != nil {
		t.Fatal(problem)
	}
	defer f.close()
	if data, _, _ := f.readAll(); string(data) != "pod good x\n" {
		t.Errorf("the directory was swapped and %q was read", data)
	}
}
