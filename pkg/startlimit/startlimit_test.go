package startlimit

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func limiting(t *testing.T, slots int, f func(ctx context.Context, t *testing.T, l *Limiter)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		l := New(slots)
		go l.Run(ctx)
		defer cancel()
		f(ctx, t, l)
	})
}

// received reports whether the waiter has got its slot, and takes it.
func received(w *Waiter) bool {
	select {
	case <-w.Granted():
		return true
	default:
		return false
	}
}

// Few pods of a burst start at first, and more with each completed start. A slot that is
// returned for another reason adds none. The next burst begins with the first limit.
//
// Shows: I5
func TestLimiter_ManyWait_EachStartAddsSlots(t *testing.T) {
	limiting(t, 3, func(ctx context.Context, t *testing.T, l *Limiter) {
		burst := func() (waiting []*Waiter) {
			for i := range 20 {
				w, err := l.Request(ctx, 0, 0, uint64(i))
				if err != nil {
					t.Error(err)
				}
				waiting = append(waiting, w)
			}
			return waiting
		}
		// granted takes the slots that are granted now.
		granted := func(waiting *[]*Waiter) (n int) {
			synctest.Wait()
			*waiting = slices.DeleteFunc(*waiting, func(w *Waiter) bool {
				if received(w) {
					n++
					return true
				}
				return false
			})
			return n
		}
		for range 2 {
			waiting := burst()
			running := granted(&waiting)
			if running != 3 {
				t.Errorf("%d start at first", running)
			}
			var most []int
			for _, started := range []bool{false, true, false, true, true, true, true} {
				l.Release(ctx, started)
				running += granted(&waiting) - 1
				most = append(most, running)
			}
			if want := []int{3, 5, 5, 7, 9, 10, 10}; !slices.Equal(most, want) {
				t.Errorf("%d run at once, want %d", most, want)
			}
			for ; running > 0; running-- {
				l.Release(ctx, true)
				running += granted(&waiting)
			}
			if len(waiting) > 0 {
				t.Errorf("%d wait on", len(waiting))
			}
		}
	})
}

func TestLimiter_SlotIsFree_HighestPriorityThenOldestGetsIt(t *testing.T) {
	limiting(t, 1, func(ctx context.Context, t *testing.T, l *Limiter) {
		requests := []struct {
			name     string
			priority int32
			created  int64
			order    uint64
		}{{"first", 0, 9, 9}, {"newer", 0, 6, 3}, {"older", 0, 6, 2}, {"oldest", 0, 5, 7}, {"critical", 1000, 8, 8}, {"low", -1, 1, 1}}
		waiting := map[string]*Waiter{}
		for _, r := range requests {
			w, err := l.Request(ctx, r.priority, r.created, r.order)
			if err != nil {
				t.Fatal(err)
			}
			waiting[r.name] = w
		}
		var order []string
		for range requests {
			synctest.Wait()
			for name, w := range waiting {
				if received(w) {
					order = append(order, name)
				}
			}
			l.Release(ctx, false)
		}
		if want := []string{"first", "critical", "oldest", "older", "newer", "low"}; !slices.Equal(order, want) {
			t.Errorf("granted %q, want %q", order, want)
		}
	})
}

// A waiter that withdraws, before or after its grant, costs no slot.
func TestWithdraw_BeforeOrAfterTheGrant_CostsNoSlot(t *testing.T) {
	limiting(t, 1, func(ctx context.Context, t *testing.T, l *Limiter) {
		request := func() *Waiter {
			w, err := l.Request(ctx, 0, 0, 0)
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			return w
		}
		granted, queued := request(), request()
		l.Withdraw(ctx, queued)
		l.Withdraw(ctx, granted)
		if next := request(); !received(next) {
			t.Error("no slot is free")
		}
		if next := request(); received(next) {
			t.Error("a second slot has appeared")
		}
	})
}

// Shows: F22
func TestSlotTimeout_FollowsHowLongCallsLast(t *testing.T) {
	t.Parallel()
	l := New(1)
	if got := l.SlotTimeout(); got != 5*time.Second {
		t.Errorf("before the first call: %s", got)
	}
	l.RecordCall(100 * time.Millisecond)
	if got := l.SlotTimeout(); got != 900*time.Millisecond {
		t.Errorf("after a call of 100 ms: %s", got)
	}
	for range 100 {
		l.RecordCall(time.Minute)
	}
	if got := l.SlotTimeout(); got != 5*time.Second {
		t.Errorf("after calls of a minute: %s", got)
	}
}
