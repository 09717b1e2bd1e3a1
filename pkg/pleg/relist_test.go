package pleg

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/pod"
)

// Two readings of the clock that are more than two periods apart show a stop.
//
// Shows: F5
func TestF5_GapIsNoticed(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		gap  time.Duration
		want bool
	}{{10 * time.Second, false}, {20 * time.Second, false}, {21 * time.Second, true}, {8 * time.Hour, true}, {-time.Hour, false}} {
		if got := stopped(at, at.Add(c.gap), 10*time.Second); got != c.want {
			t.Errorf("stopped(gap %s) = %v, want %v", c.gap, got, c.want)
		}
	}
}

// countingRuntime counts its relists. The next one can take long, as if the process was stopped
// during it.
type countingRuntime struct {
	Runtime
	n     atomic.Int32
	delay atomic.Int64 // of the next relist, in nanoseconds
}

func (l *countingRuntime) Relist(ctx context.Context) (map[pod.Key]uint64, error) {
	l.n.Add(1)
	time.Sleep(time.Duration(l.delay.Swap(0)))
	return l.Runtime.Relist(ctx)
}

// After a suspend of the machine or a stop of the process, PLEG relists, since events may be
// missing. The monotonic clock and the timers do not count a suspend: only the wall clock
// shows it. Both clocks show a stop of the process.
//
// Shows: F5
func TestF5_GapForcesARelist(t *testing.T) {
	for name, c := range map[string]struct {
		ahead time.Duration // of the wall clock, after half a minute
		want  int32         // relists within 20 s after that
	}{
		"no suspend":             {0, 0},
		"a suspend of 5 s":       {5 * time.Second, 0}, // readings 15 s apart, at most 20 s are normal
		"a suspend of 15 s":      {15 * time.Second, 1},
		"a suspend of 8 h":       {8 * time.Hour, 1},
		"the clock was set back": {-8 * time.Hour, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, p := newCountingRuntime()
				var ahead atomic.Int64
				p.wall = func() time.Time { return wall().Add(time.Duration(ahead.Load())) }
				readHints(t, p)
				time.Sleep(30*time.Second + time.Millisecond) // the clock is read every 10 s
				l.n.Store(0)
				ahead.Store(int64(c.ahead))
				time.Sleep(11 * time.Second)
				synctest.Wait()
				if got := l.n.Load(); got != c.want {
					t.Errorf("%d relists after the gap, want %d", got, c.want)
				}
				time.Sleep(9 * time.Second)
				synctest.Wait()
				if got := l.n.Load(); got != c.want {
					t.Errorf("%d relists 20 s after the gap, want %d: one gap causes one relist", got, c.want)
				}
			})
		})
	}
	t.Run("the process was stopped", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l, p := newCountingRuntime()
			readHints(t, p)
			time.Sleep(30 * time.Second)
			l.n.Store(0)
			l.delay.Store(int64(25 * time.Second)) // the next relist is due one minute after the start
			time.Sleep(45 * time.Second)
			synctest.Wait()
			if got := l.n.Load(); got != 1 {
				t.Fatalf("%d relists, want the one during which the process is stopped", got)
			}
			time.Sleep(11 * time.Second)
			synctest.Wait()
			if got := l.n.Load(); got != 2 {
				t.Errorf("%d relists, want another one after the process continued", got)
			}
		})
	})
}

func newCountingRuntime() (*countingRuntime, *PLEG) {
	l := &countingRuntime{Runtime: critest.New().CRI(cri.Config{Node: "n1"})}
	return l, New(Config{Runtime: l})
}

// readHints reads the hints of p until the end of the bubble's test.
func readHints(t *testing.T, p *PLEG) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range p.Hints(ctx) {
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
}

// Observe gets the duration of each relist, the time since the previous one, and the error.
func TestObserve_EveryRelist_IsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, p := newCountingRuntime()
		type relist struct {
			took, since time.Duration
			err         error
		}
		var reported []relist // written by the relist goroutine, read while that is idle
		p.cfg.Observe = func(took, since time.Duration, err error) { reported = append(reported, relist{took, since, err}) }
		l.delay.Store(int64(3 * time.Second))
		readHints(t, p)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if len(reported) < 3 || len(reported) != int(l.n.Load()) {
			t.Fatalf("%d of %d relists were reported, want all, and at least 3", len(reported), l.n.Load())
		}
		if first := reported[0]; first.took != 3*time.Second || first.since != 0 || first.err != nil {
			t.Errorf("first relist: %+v", first)
		}
		for _, r := range reported[1:] {
			if r.since <= 0 || r.took != 0 {
				t.Errorf("later relist: %+v", r)
			}
		}
	})
}
