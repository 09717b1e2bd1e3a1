package backoff

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestNext_DoublesFromFirstToLast(t *testing.T) {
	t.Parallel()
	var waits []time.Duration
	for wait := time.Duration(0); len(waits) < 6; {
		wait = Next(wait, time.Second, 10*time.Second)
		waits = append(waits, wait/time.Second)
	}
	if want := []time.Duration{1, 2, 4, 8, 10, 10}; !slices.Equal(waits, want) {
		t.Errorf("waits %d, want %d", waits, want)
	}
	if got := Next(time.Minute, time.Second, time.Second); got != time.Second {
		t.Errorf("after a longer wait with another limit comes %v", got)
	}
}

func TestAfter_IsNextNTimes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ first, last time.Duration }{{time.Second, 10 * time.Second}, {200 * time.Millisecond, 10 * time.Second}, {10 * time.Second, 5 * time.Minute}} {
		wait := time.Duration(0)
		for n := range 40 {
			wait = Next(wait, c.first, c.last)
			if got := After(n+1, c.first, c.last); got != wait {
				t.Errorf("after %d failures: %v, want %v", n+1, got, wait)
			}
		}
	}
	if got := After(0, time.Second, time.Minute); got != time.Second {
		t.Errorf("after no failure: %v", got)
	}
}

func TestJitter_StaysBetweenLowAndHigh(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ low, high float64 }{{0.5, 1.5}, {0.5, 1}, {0.9, 1.1}, {1, 1.04}, {1, 1.1}} {
		low, high, spread := 30*time.Second, time.Duration(0), map[time.Duration]bool{}
		for range 2000 {
			d := Jitter(10*time.Second, c.low, c.high)
			low, high, spread[d] = min(low, d), max(high, d), true
		}
		from, to := time.Duration(c.low*1e10), time.Duration(c.high*1e10)
		if margin := (to - from) / 20; low < from || high >= to || low > from+margin || high < to-margin || len(spread) < 1000 {
			t.Errorf("%v to %v: %v to %v, %d different ones", from, to, low, high, len(spread))
		}
	}
	for _, d := range []time.Duration{0, 1} {
		if got := Jitter(d, 0.5, 1.5); got < 0 || got > d {
			t.Errorf("jitter of %v is %v", d, got)
		}
	}
}

func TestSleep_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		if !Sleep(t.Context(), time.Hour) || time.Since(start) != time.Hour {
			t.Errorf("slept for %v", time.Since(start))
		}
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		start = time.Now()
		if Sleep(ctx, time.Hour) || time.Since(start) != time.Minute {
			t.Errorf("slept for %v after the context was done", time.Since(start))
		}
	})
}

// Events after a calm time are due at once. Those of another party that does not stop are due ever more
// seldom, and none is lost.
func TestPace_EventsEverySecond_AreDueEverMoreSeldom(t *testing.T) {
	t.Parallel()
	p := Pace{First: 200 * time.Millisecond, Last: 10 * time.Second, Calm: time.Minute}
	began := time.Unix(1000, 0)
	var due []time.Duration
	for second := range 60 {
		now := began.Add(time.Duration(second) * time.Second)
		at, pending := p.Next(now)
		if at.Before(now) {
			t.Fatalf("the event of second %d is due before it", second)
		}
		if !pending {
			due = append(due, at.Sub(began))
		}
	}
	want := []time.Duration{0, time.Second, 2 * time.Second, 3 * time.Second, 4600 * time.Millisecond}
	if !slices.Equal(due[:len(want)], want) || len(due) > 12 {
		t.Errorf("due at %v", due)
	}
	for i := len(due) - 2; i < len(due); i++ {
		if wait := due[i] - due[i-1]; wait != 10*time.Second {
			t.Errorf("the last waits: %v", due)
		}
	}
	for name, now := range map[string]time.Time{"after a calm time": began.Add(time.Hour), "after the clock was set back": began.Add(-time.Hour)} {
		one := p
		if at, pending := one.Next(now); !at.Equal(now) || pending {
			t.Errorf("%s: due after %v, %t", name, at.Sub(now), pending)
		}
	}
}
