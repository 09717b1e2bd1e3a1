package file

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/source"
	"github.com/nodectl/nodectl/pkg/source/sourcetest"
)

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// until polls a condition that another goroutine brings about.
func until(t testing.TB, what string, reached func() bool) {
	t.Helper()
	for deadline := time.Now().Add(sourcetest.Patience); !reached(); {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		<-time.After(time.Millisecond)
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
	b := &bench{t: t, dir: t.TempDir()}
	parse := sourcetest.Parse("file", b.dir)
	b.Source = New(Config{
		Path: b.dir, CheckFrequency: time.Hour,
		Log: slog.New(slog.NewTextHandler(&b.log, nil)),
		Parse: func(data []byte, file string) (source.File, []pod.Problem) {
			b.parsed.Add(1)
			return parse(data, file)
		},
	})
	b.writerOf = func(fd int) writer {
		b.opened.Add(1)
		return writerOf(fd)
	}
	return b
}

func (b *bench) path(name string) string { return filepath.Join(b.dir, name) }

func (b *bench) put(name, text string) {
	b.t.Helper()
	ok(b.t, os.WriteFile(b.path(".put"), []byte(text), 0o600))
	ok(b.t, os.Rename(b.path(".put"), b.path(name)))
}

// lookedAgain returns once the file was opened n more times.
func (b *bench) lookedAgain(n int64) {
	b.t.Helper()
	want := b.opened.Load() + n
	until(b.t, "looked again", func() bool { return b.opened.Load() >= want })
}

// silent is a watcher that tells only what the test sends.
type silent struct {
	out   chan event
	fails error
}

func (s *silent) add(string) error     { return s.fails }
func (s *silent) events() <-chan event { return s.out }
func (s *silent) close()               {}

func TestF40_WrittenInTenChunksIsReadOnce(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a file that was read before", "a new file"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
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

// Text that grows by one open and close after the other loses pods for a
// moment; that is not believed at once.
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

func TestF40_FileLeftOpenIsReadOnceItStaysTheSame(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	l := sourcetest.Listen(t, b)
	l.Set()
	f, err := os.Create(b.path("web.yaml"))
	ok(t, err)
	defer f.Close()
	_, err = io.WriteString(f, "pod one x\n")
	ok(t, err)
	start := time.Now()
	l.Set().Holds(t, "one")
	if took := time.Since(start); took < 900*time.Millisecond {
		t.Errorf("a file open for writing was believed after %v", took)
	}
}

// A file that somebody goes on writing while the agent starts is shown, so
// that its pods are not taken for removed.
func TestF40_BeingWrittenAtStartIsAProblem(t *testing.T) {
	t.Parallel()
	b := newBench(t)
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
	if got := w.Files[1].Problems[0].Msg; got != "is still being written" {
		t.Errorf("problem %q", got)
	}
	close(stop)
	<-stopped
	l.Set().Holds(t, "good")
}

func TestF40_WithoutLeasesQuietDecides(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.writerOf = func(int) writer { b.opened.Add(1); return unknownWriter }
	l := sourcetest.Listen(t, b)
	l.Set()
	start := time.Now()
	b.put("web.yaml", "pod one x\n")
	l.Set().Holds(t, "one")
	if took := time.Since(start); took < 40*time.Millisecond {
		t.Errorf("believed after %v", took)
	}
}

func TestF40_LeaseTellsWritersAndCostsNoSignal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	ok(t, os.WriteFile(path, []byte("x"), 0o600))
	f, problem := openRegular(path)
	if problem != nil {
		t.Fatal(problem)
	}
	defer f.close()
	if got := writerOf(f.fd); got != noWriter {
		t.Fatalf("nobody writes: %v", got)
	}
	w, err := os.OpenFile(path, os.O_WRONLY, 0)
	ok(t, err)
	if got := writerOf(f.fd); got != hasWriter {
		t.Errorf("somebody writes: %v", got)
	}
	ok(t, w.Close())
	// A writer who comes while the lease is held: the kernel sends SIGIO, which
	// must not end the process.
	_, err = unix.FcntlInt(uintptr(f.fd), unix.F_SETLEASE, unix.F_RDLCK)
	ok(t, err)
	if fd, err := unix.Open(path, unix.O_WRONLY|unix.O_NONBLOCK, 0); err == nil {
		_ = unix.Close(fd)
		t.Error("the lease held nobody back")
	}
	ok(t, unix.Kill(os.Getpid(), unix.SIGIO))
	_, err = unix.FcntlInt(uintptr(f.fd), unix.F_SETLEASE, unix.F_UNLCK)
	ok(t, err)
	if got := writerOf(f.fd); got != noWriter {
		t.Errorf("after the lease: %v", got)
	}
}

func TestF42_UnmountedIsAnError(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var mount atomic.Uint64
	mount.Store(7)
	b.mountID = func(string) uint64 { return mount.Load() }
	b.poll = 10 * time.Millisecond
	b.cfg.CheckFrequency = 10 * time.Millisecond
	b.put("web.yaml", "pod one x\n")
	l := sourcetest.Listen(t, b)
	first := l.Set()
	// What umount does to a look: other file system, nothing there.
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

func TestF42_MountIsKnownHere(t *testing.T) {
	t.Parallel()
	if mountID("/") == 0 || mountID("/proc") == mountID("/") {
		t.Errorf("mount of / is %d, of /proc %d", mountID("/"), mountID("/proc"))
	}
}

func TestF45_FIFOThatReplacesAFileIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "x.yaml")
	ok(t, unix.Mkfifo(path, 0o600))
	// As if it had been a regular file when it was looked at.
	f, problem := openRegular(path)
	if problem == nil {
		f.close()
		t.Fatal("a FIFO was opened for reading")
	}
	if want := "is a named pipe; only regular files are read"; problem.Msg != want {
		t.Errorf("problem %q, want %q", problem.Msg, want)
	}
}

func TestF47_WatchLimitMeansPolling(t *testing.T) {
	t.Parallel()
	limits := map[string]func(*bench){
		"no inotify instance": func(b *bench) {
			b.newWatcher = func() (watcher, error) { return nil, os.NewSyscallError("inotify_init1", unix.EMFILE) }
		},
		"no watch left": func(b *bench) {
			b.newWatcher = func() (watcher, error) { return &silent{fails: unix.ENOSPC}, nil }
		},
	}
	for name, limit := range limits {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.poll = 10 * time.Millisecond
			limit(b)
			l := sourcetest.Listen(t, b)
			l.Set()
			for _, content := range []string{"x", "y", "z"} {
				b.put("web.yaml", "pod one "+content)
				w := l.Set()
				w.Holds(t, "one")
				w.Names(t, "one")
			}
			l.Leave()
			l.Ended()
			if got := strings.Count(b.log.String(), "\n"); got != 1 || !strings.Contains(b.log.String(), "limit of inotify") {
				t.Errorf("the log says %d lines:\n%s", got, b.log.String())
			}
		})
	}
}

func TestF47_WatchIsTriedAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.poll = 5 * time.Millisecond
	b.cfg.CheckFrequency = time.Hour
	tries := 0
	b.newWatcher = func() (watcher, error) {
		if tries++; tries < 3 {
			return nil, unix.EMFILE
		}
		return newFSWatcher()
	}
	l := sourcetest.Listen(t, b)
	l.Set()
	b.put("web.yaml", "pod one x")
	l.Set().Holds(t, "one")
	b.put("web.yaml", "pod one y")
	l.Set().Names(t, "one")
}

func TestF47_OverflowMeansAFullLook(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	w := &silent{out: make(chan event)}
	b.newWatcher = func() (watcher, error) { return w, nil }
	b.put("a.yaml", "pod one x\n")
	l := sourcetest.Listen(t, b)
	l.Set()
	b.put("a.yaml", "pod one y\n") // nobody tells
	b.put("b.yaml", "pod two x\n")
	w.out <- event{lost: true}
	set := l.Set()
	set.Holds(t, "one", "two")
	set.Names(t, "one", "two")
}

func TestF47_TouchStormIsCoalesced(t *testing.T) {
	b := newBench(t)
	b.put("web.yaml", "pod one x\n")
	l := sourcetest.Listen(t, b)
	first := l.Set()
	b.opened.Store(0)
	b.parsed.Store(0)
	start := time.Now()
	for n := range 20_000 {
		stamp := start.Add(time.Duration(n) * time.Millisecond)
		ok(t, os.Chtimes(b.path("web.yaml"), stamp, stamp))
	}
	took := time.Since(start)
	b.put("new.yaml", "pod two x\n")
	w := l.Set()
	w.Holds(t, "one", "two")
	w.Names(t, "two")
	if w.Pod("one") != first.Pod("one") {
		t.Error("touching made another pointer")
	}
	took = max(took, time.Since(start))
	// One look opens at most two files; a file found changed under the look is
	// looked at once more.
	if most := 4 * (burst + 2 + int64(took/spacing)); b.opened.Load() > most {
		t.Errorf("%d files opened in %v, want at most %d", b.opened.Load(), took, most)
	}
	if n := b.parsed.Load(); n != 1 {
		t.Errorf("parsed %d times: unchanged bytes are not parsed again", n)
	}
}

func TestF48_OneChangeReadsOneFile(t *testing.T) {
	t.Parallel()
	const many = 500
	b := newBench(t)
	for n := range many {
		b.put(fmt.Sprintf("%04d.yaml", n), fmt.Sprintf("pod p%d x\n", n))
	}
	l := sourcetest.Listen(t, b)
	if w := l.Set(); len(w.Files) != many || len(w.Changed) != many {
		t.Fatalf("%d files, %d changed keys", len(w.Files), len(w.Changed))
	}
	b.opened.Store(0)
	b.parsed.Store(0)
	b.put("0250.yaml", "pod p250 y\n")
	l.Set().Names(t, "p250")
	if o, p := b.opened.Load(), b.parsed.Load(); o != 1 || p != 1 {
		t.Errorf("%d files opened, %d parsed, want 1 and 1", o, p)
	}
}

// A rescan opens no file whose identity is what it was (A9, lever 9).
func TestRescanIsStatGated(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	w := &silent{out: make(chan event)}
	b.newWatcher = func() (watcher, error) { return w, nil }
	for n := range 50 {
		path := b.path(fmt.Sprintf("%02d.yaml", n))
		ok(t, os.WriteFile(path, fmt.Appendf(nil, "pod p%d x\n", n), 0o600))
	}
	// Stamps that are fresh are not trusted; wait until they are not.
	until(t, "stamps are old", func() bool {
		id, _, _ := probe(b.path("49.yaml"))
		return !id.racy(time.Now())
	})
	l := sourcetest.Listen(t, b)
	l.Set()
	if n := b.opened.Load(); n != 50 {
		t.Fatalf("%d files opened at first", n)
	}
	b.put("new.yaml", "pod new x\n")
	w.out <- event{lost: true}
	l.Set().Names(t, "new")
	if n := b.opened.Load(); n != 51 {
		t.Errorf("%d files opened in all, want 51", n)
	}
}

func TestBudgetIsABurstThenTenASecond(t *testing.T) {
	var b budget
	now := time.Unix(1000, 0)
	taken := 0
	for range 1000 {
		if b.take(now) {
			taken++
		}
		now = now.Add(time.Millisecond)
	}
	if taken != burst+9 {
		t.Errorf("%d looks in a second, want %d", taken, burst+9)
	}
	now = now.Add(time.Minute)
	for n := range burst {
		if !b.take(now) {
			t.Errorf("look %d of a burst after a pause is refused", n)
		}
	}
	if b.take(now) || b.next() != now.Add(spacing) {
		t.Errorf("after the burst the next look is at %v, want %v", b.next(), now.Add(spacing))
	}
}

func BenchmarkRenameToSnapshot(b *testing.B) {
	for _, files := range []int{1, 1000} {
		b.Run(fmt.Sprintf("files=%d", files), func(b *testing.B) {
			s := newBench(b)
			for n := range files {
				s.put(fmt.Sprintf("%04d.yaml", n), fmt.Sprintf("pod p%d x\n", n))
			}
			l := sourcetest.Listen(b, s)
			l.Set()
			var took []time.Duration
			for n := range b.N {
				<-time.After(spacing)
				ok(b, os.WriteFile(s.path(".put"), fmt.Appendf(nil, "pod p0 %d\n", n), 0o600))
				start := time.Now()
				ok(b, os.Rename(s.path(".put"), s.path("0000.yaml")))
				l.Set()
				took = append(took, time.Since(start))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "ms/median")
		})
	}
}
