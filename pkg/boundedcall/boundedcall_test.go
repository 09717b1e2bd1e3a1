package boundedcall

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A call hangs: it delays its caller by the limit, is not repeated until it has ended, and does
// not affect other names, of which only a bounded number may hang.
func TestDo_CallHangs_OthersAreMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(2)
		answers := make(chan struct{})
		hang := func() error { <-answers; return nil }
		well := func() error { return nil }
		began := time.Now()
		for what, got := range map[string]error{
			"the call that hangs": c.Do(t.Context(), "a", time.Second, hang),
			"its repetition":      c.Do(t.Context(), "a", time.Second, hang),
		} {
			if !errors.Is(got, ErrHangs) {
				t.Errorf("%s: %v", what, got)
			}
		}
		if took := time.Since(began); took != time.Second {
			t.Errorf("they took %s", took)
		}
		if err := c.Do(t.Context(), "b", time.Second, well); err != nil {
			t.Errorf("another name: %v", err)
		}
		_ = c.Do(t.Context(), "c", time.Second, hang)
		if err := c.Do(t.Context(), "d", time.Second, well); !errors.Is(err, ErrBusy) {
			t.Errorf("the third at once: %v", err)
		}
		close(answers)
		synctest.Wait()
		if err := c.Do(t.Context(), "a", time.Second, well); err != nil {
			t.Errorf("after it answers: %v", err)
		}
	})
}

// The context ends: a call that ends with it returns its error, one that hangs is left.
//
// Shows: F4
func TestDo_ContextEnds_ReturnsSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(2)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := c.Do(ctx, "a", 0, func() error { <-ctx.Done(); return ctx.Err() }); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a call that ends: %v", err)
		}
		answers := make(chan struct{})
		began := time.Now()
		if err := c.Do(ctx, "b", 0, func() error { <-answers; return nil }); !errors.Is(err, ErrHangs) || time.Since(began) != afterEnd {
			t.Errorf("a call that hangs: %v after %s", err, time.Since(began))
		}
		close(answers)
	})
}

func TestDo_Panic_IsAnError(t *testing.T) {
	t.Parallel()
	if err := New(1).Do(t.Context(), "a", 0, func() error { panic("broken") }); err == nil || err.Error() != "panic: broken" {
		t.Errorf("%v", err)
	}
}
