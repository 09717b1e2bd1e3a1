package file

import (
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/pkg/source"
	"github.com/nodectl/nodectl/pkg/source/sourcetest"
	"github.com/nodectl/nodectl/test/wait"
)

// silent is a watcher that has only the events that the test sends.
type silent struct {
	out   chan event
	fails error
}

func (s *silent) add(string) error { return s.fails }

func (s *silent) events() <-chan event { return s.out }

func (s *silent) close() {}

// Shows: F47
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

// Shows: F47
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

// Shows: F47
func TestF47_OverflowMeansAFullLook(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	w := &silent{out: make(chan event)}
	b.newWatcher = func() (watcher, error) { return w, nil }
	b.put("a.yaml", "pod one x\n")
	l := sourcetest.Listen(t, b)
	l.Set()
	b.put("a.yaml", "pod one y\n") // no event
	b.put("b.yaml", "pod two x\n")
	w.out <- event{lost: true}
	set := l.Set()
	set.Holds(t, "one", "two")
	set.Names(t, "one", "two")
}

// The test receives no sets, so the kernel's queue overflows.
//
// Shows: F47
func TestF47_RealOverflowMeansAFullLook(t *testing.T) {
	b := newBench(t)
	b.put("a.yaml", "pod one x\n")
	b.put("b.yaml", "pod two x\n")
	l := sourcetest.Listen(t, b)
	l.Set()
	b.put("a.yaml", "pod one y\n")
	wait.True(t, "the change is read", func() bool { return b.parsed.Load() == 3 }) // it receives no more
	limit, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	ok(t, err)
	most, err := strconv.Atoi(strings.TrimSpace(string(limit)))
	ok(t, err)
	stamp := time.Now()
	for n := range (most + 8192) / 2 { // the reader holds one full buffer
		ok(t, os.Chtimes(b.path("b.yaml"), stamp, stamp.Add(time.Duration(n))))
		ok(t, os.Chtimes(b.path("a.yaml"), stamp, stamp.Add(time.Duration(n))))
	}
	b.put("c.yaml", "pod three x\n") // without an event
	w := l.Set()
	for w.Pod("three") == nil {
		w = l.Set()
	}
	w.Holds(t, "one", "two", "three")
	l.Leave()
	l.Ended()
	if got := strings.Count(b.log.String(), "Lost events"); got != 1 {
		t.Errorf("the loss of events is logged %d times:\n%s", got, b.log.String())
	}
}

// The limits of a user namespace affect no other process.
//
// Shows: F47
func TestF47_RealLimitsOfInotify(t *testing.T) {
	if !inNamespaces(t, 0) {
		return
	}
	limit := func(name string, n int) {
		ok(t, os.WriteFile("/proc/sys/user/max_inotify_"+name, []byte(strconv.Itoa(n)), 0))
	}
	for name, least := range map[string]int{"instances": 0, "watches": 1} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.cfg.Recursive = true
			b.poll = 10 * time.Millisecond
			for _, sub := range []string{"s", "t"} {
				ok(t, os.Mkdir(b.path(sub), 0o700))
			}
			limit("instances", 10)
			limit("watches", 1000)
			limit(name, least)
			l := sourcetest.Listen(t, b)
			w := l.Set()
			notice := "changes are found by polling every 10ms: a limit of inotify is reached"
			for _, content := range []string{"x", "y"} {
				if len(w.Skipped) != 1 || w.Skipped[0].Msg != notice || !strings.Contains(w.Skipped[0].Hint, "max_user_"+name) {
					t.Fatalf("notices: %+v", w.Skipped)
				}
				b.put("t/web.yaml", "pod one "+content)
				w = l.Set()
				w.Holds(t, "one")
				w.Names(t, "one")
			}
			limit(name, 10)
			w = l.Set() // once it is watched, the notice ends
			w.Names(t)
			if len(w.Skipped) != 0 {
				t.Fatalf("notices: %+v", w.Skipped)
			}
			b.put("t/web.yaml", "pod one z") // the next rescan is an hour away
			l.Set().Names(t, "one")
			l.Leave()
			l.Ended()
			if log := b.log.String(); strings.Count(log, "polling instead") != 1 || strings.Count(log, "Watching manifests again") != 1 {
				t.Errorf("the log says\n%s", log)
			}
		})
	}
}

// Shows: F47
func TestF47_TouchStormIsCoalesced(t *testing.T) {
	b := newBench(t)
	b.put("web.yaml", "pod one x\n")
	l := sourcetest.Listen(t, b)
	first := l.Set()
	b.opened.Store(0)
	b.parsed.Store(0)
	start := time.Now()
	touches := 0
	for ; touches < 20_000; touches++ {
		stamp := start.Add(time.Duration(touches) * time.Millisecond)
		ok(t, os.Chtimes(b.path("web.yaml"), stamp, stamp))
	}
	took := time.Since(start)
	if most := burst + 1 + int64(took/spacing); b.opened.Load() > most {
		t.Errorf("%d scans at %d touches in %v, want at most %d", b.opened.Load(), touches, took, most)
	}
	b.put("new.yaml", "pod two x\n")
	w := l.Set()
	w.Holds(t, "one", "two")
	w.Names(t, "two")
	if w.Pod("one") != first.Pod("one") {
		t.Error("touching made another pointer")
	}
	if n := b.parsed.Load(); n != 1 {
		t.Errorf("parsed %d times: unchanged bytes are not parsed again", n)
	}
	t.Logf("%d touches in %v: %d scans", touches, took, b.opened.Load())
}

// With ten thousand files one event reads one and looks at few names.
//
// Shows: F48
func TestF48_OneChangeOfTenThousandCostsOne(t *testing.T) {
	t.Parallel()
	const many = 10_000
	b := inMemory(t)
	l := settled(b, many)
	if l.err != nil || l.cost.read != many {
		t.Fatalf("error %v, cost of the first scan %+v", l.err, l.cost)
	}
	event := func(op fsnotify.Op, name string) (cost, source.Snapshot) {
		l.cost, l.budget = cost{}, budget{}
		l.handle(event{name: b.path(name), op: op})
		l.round()
		return l.cost, l.set.Snapshot()
	}
	b.put("05000.yaml", "pod p5000 y\n")
	c, s := event(fsnotify.Create, "05000.yaml")
	if c.listed != 0 || c.opened != 1 || c.read != 1 || c.looked > 2 || len(s.Changed) != 1 {
		t.Errorf("an edit cost %+v and changed %v", c, s.Changed)
	}
	b.put("new.yaml", "pod new x\n")
	if c, s = event(fsnotify.Create, "new.yaml"); c.listed != 0 || c.opened != 1 || c.read != 1 || c.looked > 2 || len(s.Changed) != 1 {
		t.Errorf("a new file cost %+v and changed %v", c, s.Changed)
	}
	b.vanishing = 0
	ok(t, os.Remove(b.path("new.yaml")))
	if c, _ = event(fsnotify.Remove, "new.yaml"); c.listed+c.opened+c.read != 0 || c.looked > 6 {
		t.Errorf("a removal cost %+v", c)
	}
	if l.set.Has(b.path("new.yaml")) {
		t.Error("the removed file is in the set")
	}
	if c, s = event(fsnotify.Chmod, "00001.yaml"); c.listed+c.opened+c.read != 0 || c.looked > 2 || len(s.Changed) != 0 {
		t.Errorf("nothing at all cost %+v and changed %v", c, s.Changed)
	}
	// And all of them unchanged: one listing, one scan each, and only files too new to
	// be trusted are opened.
	l.cost = cost{}
	l.full()
	if c := l.cost; c.listed != 1 || c.opened > 1 || c.read > 1 || c.looked > many+5 {
		t.Errorf("a rescan cost %+v", c)
	}
}

// Shows: F48
func TestF48_OneChangeReadsOneFile(t *testing.T) {
	t.Parallel()
	const many = 500
	b := newBench(t)
	for n := range many {
		b.put(fmt.Sprintf("%04d.yaml", n), fmt.Sprintf("pod p%d x\n", n))
	}
	l := sourcetest.Listen(t, b)
	if w := l.Set(); w.Files.Len() != many || len(w.Changed) != many {
		t.Fatalf("%d files, %d changed keys", w.Files.Len(), len(w.Changed))
	}
	b.opened.Store(0)
	b.parsed.Store(0)
	b.put("0250.yaml", "pod p250 y\n")
	l.Set().Names(t, "p250")
	if o, p := b.opened.Load(), b.parsed.Load(); o != 1 || p != 1 {
		t.Errorf("%d files opened, %d parsed, want 1 and 1", o, p)
	}
}

// scans counts the lines of a debug log, one a full scan.
type scans struct{ atomic.Int64 }

func (l *scans) Write(line []byte) (int, error) {
	l.Add(1)
	return len(line), nil
}

// A skipped file is reported once, however often it is seen.
func TestSkipsAreReportedOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var looked scans
	b.cfg.Log = slog.New(slog.NewTextHandler(&looked, &slog.HandlerOptions{Level: slog.LevelDebug}))
	b.cfg.CheckFrequency = time.Millisecond
	b.put("web.yaml", "pod one x")
	ok(t, os.WriteFile(b.path("notes.txt"), nil, 0o600))
	l := sourcetest.Listen(t, b)
	first := l.Set()
	wait.True(t, "looked often", func() bool { return looked.Load() > 20 })
	b.put("web.yaml", "pod one y")
	w := l.Set() // the next set
	w.Names(t, "one")
	if len(w.Skipped) != 1 || !slices.Equal(first.Skipped, w.Skipped) {
		t.Errorf("skipped %v, then %v", first.Skipped, w.Skipped)
	}
}

// A rescan opens no file whose identity is unchanged (M12).
func TestRescanIsStatGated(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	w := &silent{out: make(chan event)}
	b.newWatcher = func() (watcher, error) { return w, nil }
	for n := range 50 {
		path := b.path(fmt.Sprintf("%02d.yaml", n))
		ok(t, os.WriteFile(path, fmt.Appendf(nil, "pod p%d x\n", n), 0o600))
	}
	b.ages("49.yaml")
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
		t.Errorf("%d scans in a second, want %d", taken, burst+9)
	}
	now = now.Add(time.Minute)
	for n := range burst {
		if !b.take(now) {
			t.Errorf("scan %d of a burst after a pause is refused", n)
		}
	}
	if b.take(now) || b.next() != now.Add(spacing) {
		t.Errorf("after the burst the next scan is at %v, want %v", b.next(), now.Add(spacing))
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
				ok(b, os.WriteFile(s.path("..put"), fmt.Appendf(nil, "pod p0 %d\n", n), 0o600))
				start := time.Now()
				ok(b, os.Rename(s.path("..put"), s.path("0000.yaml")))
				l.Set()
				took = append(took, time.Since(start))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "ms/median")
		})
	}
}
