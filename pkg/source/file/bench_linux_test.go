package file

import (
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/test/wait"
)

// settled is a scan that has read n files whose stamps are old enough to be
// trusted.
func settled(b *bench, n int) *scan {
	b.t.Helper()
	for i := range n {
		ok(b.t, os.WriteFile(b.path(fmt.Sprintf("%05d.yaml", i)), fmt.Appendf(nil, "pod p%d x\n", i), 0o600))
	}
	b.ages(fmt.Sprintf("%05d.yaml", n-1))
	l := newScan(b.t.Context(), b.Source)
	b.t.Cleanup(l.unwatch)
	l.round()
	l.set.Snapshot()
	l.yielded = true
	return l
}

// ages waits until a file's time stamps are old enough for the source to trust them. Only
// the kernel can set the change time.
func (b *bench) ages(name string) {
	b.t.Helper()
	wait.True(b.t, "stamps are old", func() bool { return !statPath(b.path(name)).id.racy(time.Now()) })
}

// spent is the CPU time of this process, which other load on the machine does not
// affect.
func spent(b *testing.B) time.Duration {
	b.Helper()
	var use unix.Rusage
	ok(b, unix.Getrusage(unix.RUSAGE_SELF, &use))
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}

// BenchmarkRescan is a full scan of files of which none has changed; the
// kubelet takes 127 ms for a thousand.
func BenchmarkRescan(b *testing.B) {
	for _, files := range []int{1000, 10_000} {
		b.Run(fmt.Sprintf("files=%d", files), func(b *testing.B) {
			l := settled(newBench(b), files)
			b.ReportAllocs()
			before := spent(b)
			for b.Loop() {
				l.full()
			}
			b.ReportMetric(float64(spent(b)-before)/float64(b.N), "cpu-ns/op")
			if l.err != nil || l.set.Dirty() || l.cost.opened != files {
				b.Fatalf("error %v, dirty %v, %d files opened", l.err, l.set.Dirty(), l.cost.opened)
			}
		})
	}
}

// BenchmarkOneChange measures one change, from the event to the snapshot, beside many other files.
func BenchmarkOneChange(b *testing.B) {
	for _, files := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("files=%d", files), func(b *testing.B) {
			s := newBench(b)
			l := settled(s, files)
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				n++
				s.put("00007.yaml", fmt.Sprintf("pod p7 %d\n", n))
				l.budget = budget{}
				l.dirty[s.path("00007.yaml")] = true
				l.round()
				if l.set.Snapshot().Changed == nil {
					b.Fatal("nothing changed")
				}
			}
		})
	}
}
