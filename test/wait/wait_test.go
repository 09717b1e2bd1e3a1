package wait

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// recorder is a testing.TB that keeps the message of Fatalf and ends the goroutine.
type recorder struct {
	testing.TB
	fatal string
}

func (r *recorder) Helper() {}
func (r *recorder) Fatalf(format string, args ...any) {
	r.fatal = fmt.Sprintf(format, args...)
	panic(r)
}
func (r *recorder) Fatal(args ...any) { r.Fatalf("%s", fmt.Sprint(args...)) }

// failing runs f and returns the message it failed with, and how long it took.
func failing(f func(testing.TB)) (message string, took time.Duration) {
	r, begun := &recorder{}, time.Now()
	func() {
		defer func() {
			if v := recover(); v != nil && v != any(r) {
				panic(v)
			}
		}()
		f(r)
	}()
	return r.fatal, time.Since(begun)
}

func TestUntil_ValueKeepsChanging_WaitsPastStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		got := Until(t, "two stalls have passed", func() (time.Duration, bool) {
			since := time.Since(begun)
			return since, since >= 2*Stall
		})
		if got < 2*Stall {
			t.Errorf("returned after %s", got)
		}
	})
}

func TestUntil_ObservationTakesLong_IsMadeLessOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun, calls := time.Now(), 0
		True(t, "10 s have passed", func() bool {
			calls++
			time.Sleep(100 * time.Millisecond)
			return time.Since(begun) >= 10*time.Second
		})
		if calls > 11 {
			t.Errorf("%d observations of 100 ms in 10 s, want one a second", calls)
		}
	})
}

func TestUntil_ValueUnchanged_FailsAfterStallWithLastValue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		message, took := failing(func(t testing.TB) {
			Until(t, "n is 9", func() (int, bool) { n = min(n+1, 5); return n, n == 9 })
		})
		if !strings.Contains(message, "until n is 9") || !strings.HasSuffix(message, "last observed: 5") {
			t.Errorf("failed with %q", message)
		}
		if took < Stall || took > Stall+time.Second {
			t.Errorf("failed after %s, want %s", took, Stall)
		}
	})
}

func TestUntil_ValueAlwaysChanges_FailsAtTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		message, took := failing(func(t testing.TB) {
			Until(t, "never", func() (int, bool) { n++; return n, false })
		})
		if !strings.Contains(message, "not within "+Limit.String()) || took < Limit || took > Limit+time.Second {
			t.Errorf("failed after %s with %q", took, message)
		}
	})
}

func TestUntil_ObserveBlocks_FailsAtTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan bool) // closed at the end: an RPC without a deadline
		defer close(answer)
		n := 0
		message, took := failing(func(t testing.TB) {
			Until(t, "it answers", func() (int, bool) {
				if n++; n > 2 {
					<-answer
				}
				return n, false
			})
		})
		if !strings.HasSuffix(message, "still observing, last observed: 2") || took != Limit {
			t.Errorf("failed after %s with %q", took, message)
		}
	})
}

func TestUntil_ValueMayStayTheSame_FailsAtTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		message, took := failing(func(t testing.TB) { NoError(t, func() error { return errors.New("queued") }, WithoutStall) })
		if !strings.HasSuffix(message, "last observed: queued") || took < Limit || took > Limit+time.Second {
			t.Errorf("failed after %s with %q", took, message)
		}
	})
}

// A Goexit or a panic in observe ends the test.
func TestUntil_ObserveEndsItsGoroutine_EndsTheCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		returned, ended := false, make(chan struct{})
		go func() {
			defer close(ended)
			_ = Try(func() error { runtime.Goexit(); return nil })
			returned = true
		}()
		<-ended
		if returned {
			t.Error("FailNow in observe did not end the test")
		}
		defer func() {
			if v := recover(); v != "mine" {
				t.Errorf("recovered %v", v)
			}
		}()
		_ = Try(func() error { panic("mine") })
	})
}

func TestNoError_LastErrorIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		NoError(t, func() error {
			if n++; n < 3 {
				return errors.New("not yet")
			}
			return nil
		})
		message, _ := failing(func(t testing.TB) { NoError(t, func() error { return errors.New("no route") }) })
		if !strings.HasSuffix(message, "last observed: no route") {
			t.Errorf("failed with %q", message)
		}
	})
}

func TestReceive_NothingComes_Fails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := make(chan int, 1)
		c <- 7
		if got := Receive(t, "a number", c); got != 7 {
			t.Errorf("received %d", got)
		}
		message, took := failing(func(t testing.TB) { Receive(t, "a number", c) })
		if message == "" || took != Limit {
			t.Errorf("failed after %s with %q", took, message)
		}
	})
}
