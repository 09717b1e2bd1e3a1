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

// Shows: F5
func TestF5_GapIsNoticed(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		gap  time.Duration
		want bool
	}{{10 * time.Second, false}, {20 * time.Second, false}, {21 * time.Second, true}, {8 * time.Hour, true}, {-time.Hour, false}} {
		if got := overslept(at, at.Add(c.gap), 10*time.Second); got != c.want {
			t.Errorf("overslept(gap %s) = %v, want %v", c.gap, got, c.want)
		}
	}
}

// lists is a runtime that counts its lists; the next one can take a time, as if the process
// was stopped.
type lists struct {
	Runtime
	n     atomic.Int32
	still atomic.Int64 // nanoseconds
}

func (l *lists) Relist(ctx context.Context) (map[pod.Key]uint64, error) {
	l.n.Add(1)
	time.Sleep(time.Duration(l.still.Swap(0)))
	return l.Runtime.Relist(ctx)
}

// TestF5_GapForcesARelist: after a gap in its own time, PLEG relists, because events may be
// missing. A suspend shows only on the wall clock, since timers sleep too; a stop of the
// process shows on both clocks.
//
// Shows: F5
func TestF5_GapForcesARelist(t *testing.T) {
	for name, c := range map[string]struct {
		ahead time.Duration // of the wall clock, from half a minute on
		want  int32         // relists within the ten seconds after that
	}{
		"no gap":                     {0, 0},
		"a moment":                   {5 * time.Second, 0},
		"the machine slept":          {8 * time.Hour, 1},
		"the clock was set back":     {-8 * time.Hour, 0},
		"it slept for half a period": {15 * time.Second, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, p := listing(t)
				var ahead atomic.Int64
				p.wall = func() time.Time { return wall().Add(time.Duration(ahead.Load())) }
				readHints(t, p)
				time.Sleep(30*time.Second + time.Millisecond) // past a reading of the clock
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
					t.Errorf("%d relists a while after it, want %d: one gap is one relist", got, c.want)
				}
			})
		})
	}
	t.Run("the process was stopped", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l, p := listing(t)
			readHints(t, p)
			time.Sleep(30 * time.Second)
			l.n.Store(0)
			l.still.Store(int64(25 * time.Second)) // in the next relist, which is due after a minute
			time.Sleep(45 * time.Second)
			synctest.Wait()
			if got := l.n.Load(); got != 1 {
				t.Fatalf("%d relists before it goes on, want the one in which it stands", got)
			}
			time.Sleep(11 * time.Second)
			synctest.Wait()
			if got := l.n.Load(); got != 2 {
				t.Errorf("%d relists, want another one when it has gone on", got)
			}
		})
	})
}

func listing(t *testing.T) (*lists, *PLEG) {
	l := &lists{Runtime: critest.New().CRI(cri.Config{Node: "n1"})}
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

// TestObserve_EveryRelist_IsReported: Observe gets the duration, the time since the relist
// before, and the error.
func TestObserve_EveryRelist_IsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, p := listing(t)
		type relist struct {
			took, since time.Duration
			err         error
		}
		var reported []relist // written by the relist goroutine, read while that is idle
		p.cfg.Observe = func(took, since time.Duration, err error) { reported = append(reported, relist{took, since, err}) }
		l.still.Store(int64(3 * time.Second))
		readHints(t, p)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if len(reported) < 3 || len(reported) != int(l.n.Load()) {
			t.Fatalf("reported of %d relists of %d", len(reported), l.n.Load())
		}
		if first := reported[0]; first.took != 3*time.Second || first.since != 0 || first.err != nil {
			t.Errorf("the first is %+v", first)
		}
		for _, r := range reported[1:] {
			if r.since <= 0 || r.took != 0 {
				t.Errorf("another is %+v", r)
			}
		}
	})
}
